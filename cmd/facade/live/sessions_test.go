package live

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// talking starts a stub of a session, and returns a client with a short idle timeout.
func talking(t testing.TB, serve http.HandlerFunc) (*Sessions, *v1alpha1.Conversation) {
	t.Helper()
	dir := t.TempDir()
	mount(t, dir, "1")
	server := httptest.NewServer(serve)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	s := NewSessions(NewSigner(dir))
	s.port, s.idleTimeout = server.Listener.Addr().(*net.TCPAddr).Port, time.Second
	c := &v1alpha1.Conversation{}
	c.UID, c.Status.State, c.Status.PodIP = "u", v1alpha1.StateRunning, "127.0.0.1"
	return s, c
}

// stalls returns a handler that sends a text and then nothing.
func stalls(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

func TestAStalledResponseTimesOut(t *testing.T) {
	t.Parallel()
	s, c := talking(t, stalls(`{"begun": `))
	if _, err := s.Read(t.Context(), c, Call{Method: http.MethodGet, Path: "/"},
		100); answer.CodeOf(err) != http.StatusServiceUnavailable {
		t.Errorf("answered %v", err)
	}
	response, err := s.Ask(t.Context(), c, Call{Method: http.MethodGet, Path: session.ZipPath})
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err == nil {
		t.Error("a truncated answer looks complete")
	}
}

func TestASilentStreamTimesOut(t *testing.T) {
	t.Parallel()
	s, c := talking(t, stalls("id: 0\ndata: {}\n\n"))
	events := 0
	take := func(Event) error {
		events++
		<-time.After(2 * s.idleTimeout) // a slow client does not count as silence
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	for try := 0; events == 0 && try < 10; try++ { // on a busy machine the event may be late
		err = s.Follow(ctx, c, -1, false, hold(responseBudget(0), "ada"), take, func() error { return nil })
	}
	if err == nil || ctx.Err() != nil || events != 1 {
		t.Errorf("after %d events: %v", events, err)
	}
}

func TestASessionsResponseIsBounded(t *testing.T) {
	t.Parallel()
	s, c := talking(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"0123456789"`) })
	s.idleTimeout = time.Minute
	if text, err := s.Read(t.Context(), c, Call{Method: http.MethodGet, Path: "/"}, 12); err != nil ||
		string(text) != `"0123456789"` {
		t.Errorf("read %s, %v", text, err)
	}
	if _, err := s.Read(t.Context(), c, Call{Method: http.MethodGet, Path: "/"},
		11); answer.CodeOf(err) != http.StatusRequestEntityTooLarge {
		t.Errorf("answered %v", err)
	}
}
