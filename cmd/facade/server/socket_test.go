package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/audit"
	"github.com/parley-dev/parley/cmd/internal/limits"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// A URL may reach the log of a proxy, so clients can send the key in their first frame instead.
func TestASocketAuthenticatesWithItsFirstFrame(t *testing.T) {
	t.Parallel()
	const address = "127.31.4.9"
	sessionOf(t, address)
	options := DefaultOptions()
	options.SigningKeyDir = signingKey(t)
	handler := New(&running{address: address}, options, prometheus.NewRegistry())
	served := httptest.NewServer(handler)
	t.Cleanup(served.Close)
	for first, want := range map[string]string{
		`40{"session_api_key":"` + stubKey + `"}`: `40{"sid":"`,
		`40{"session_api_key":"wrong"}`:           `44{"message":"Unauthorized"}`,
		`40{"session_api_key":7}`:                 `44{"message":"Unauthorized"}`,
		`40{"session_api_key"`:                    `44{"message":"Unauthorized"}`,
		`40{}`:                                    `44{"message":"Unauthorized"}`,
		`40`:                                      `44{"message":"Unauthorized"}`,
	} {
		url := served.URL + "/socket.io/?EIO=4&transport=websocket&conversation_id=talk"
		conn, _, err := websocket.Dial(t.Context(), url, nil) //nolint:bodyclose // the connection
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.CloseNow() })
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(first)); err != nil {
			t.Fatal(err)
		}
		var frames []string
		for range 2 {
			_, frame, err := conn.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, string(frame))
		}
		if !strings.HasPrefix(frames[1], want) {
			t.Errorf("%s is answered %s, want %s", first, frames[1], want)
		}
	}
	if got := testutil.ToFloat64(handler.server.metrics.authFailures); got != 5 {
		t.Errorf("%v failures are counted", got)
	}
}

type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestApprovalsOverASocketAreAudited(t *testing.T) {
	t.Parallel()
	const address = "127.31.4.10"
	sessionOf(t, address)
	log, registry := &syncBuffer{}, prometheus.NewRegistry()
	options := DefaultOptions()
	options.SigningKeyDir, options.Audit = signingKey(t), audit.New(log, registry)
	served := httptest.NewServer(New(&running{address: address}, options, registry))
	t.Cleanup(served.Close)
	url := served.URL + "/socket.io/?EIO=4&transport=websocket&conversation_id=talk"
	conn, _, err := websocket.Dial(t.Context(), url, nil) //nolint:bodyclose // the connection
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	for _, frame := range []string{`40{"session_api_key":"` + stubKey + `"}`,
		`42["oh_user_action",{"action":"change_agent_state","args":{"agent_state":"user_confirmed","reason":"secret"}}]`} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(frame)); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Await(t, func() error {
		var entry audit.Entry
		if err := json.Unmarshal([]byte(log.String()), &entry); err != nil {
			return fmt.Errorf("the log is %s: %w", log, err)
		}
		if entry.How != "key" || entry.Settings != "default/ada" || entry.Call != "SOCKET /socket.io/" ||
			entry.Action != "change_agent_state user_confirmed" || entry.Conversation != "talk" || entry.Outcome == 0 ||
			entry.Address != "127.0.0.1" || entry.RequestID == "" || strings.Contains(log.String(), "secret") {
			return fmt.Errorf("the log is %s", log)
		}
		return nil
	})
}

// Clients that never authenticate must not use up the sockets of users.
func TestUnauthenticatedSocketsAreBounded(t *testing.T) {
	t.Parallel()
	handler := handler(&stopped{})
	for range maxStrangers {
		if _, err := handler.server.strangers.Take("", limits.Streams); err != nil {
			t.Fatal(err)
		}
	}
	served := httptest.NewServer(handler)
	t.Cleanup(served.Close)
	url := served.URL + "/socket.io/?EIO=4&transport=websocket&conversation_id=talk"
	for query, want := range map[string]int{"": 503, "&session_api_key=" + stubKey: 101} {
		conn, response, err := websocket.Dial(t.Context(), url+query, nil) //nolint:bodyclose // the connection
		if response == nil || response.StatusCode != want {
			t.Errorf("%q is answered %v, %v", query, response, err)
		}
		if err == nil {
			_ = conn.CloseNow()
		}
	}
}

// The session ends before the socket has received the session's last events. The archive contains
// these events.
func TestASocketReceivesTheLastEventsOfAStoppedSession(t *testing.T) {
	t.Parallel()
	const address = "127.31.6.1"
	sessionOf(t, address) // with the events 0 to 2
	cluster := newSleeper(address, "")
	cluster.watched = func() {
		cluster.update(func(s *v1alpha1.ConversationStatus) {
			s.State, s.Reason = v1alpha1.StateStopped, v1alpha1.ReasonIdle
		})
	}
	options := DefaultOptions()
	options.SigningKeyDir, options.Archive = signingKey(t), &stubArchive{sizes: []int{0, 0, 0, 0, 0}}
	served := httptest.NewServer(New(cluster, options, prometheus.NewRegistry()))
	t.Cleanup(served.Close)
	const want = "0 1 2 3 4"
	if got := overSocket(t, served.URL, "-1", want); got != want {
		t.Errorf("the events are %q, want %q", got, want)
	}
}

// checkedSession serves a session whose journal has one event. The parameter failures is the number
// of requests for a page of events that fail before a request succeeds.
func checkedSession(t *testing.T, address string, failures int) {
	t.Helper()
	var pages atomic.Int32
	sessionAt(t, address, func(w http.ResponseWriter, r *http.Request) {
		start, after := r.URL.Query().Get("start_id"), r.URL.Query().Get("after")
		switch {
		case r.URL.Path == session.StreamPath && after == "-1":
			_, _ = io.WriteString(w, "id: 0\ndata: {\"id\":0}\n\n")
		case r.URL.Path == session.StreamPath:
			_, _ = io.WriteString(w, ": here\n\n")
		case int(pages.Add(1)) <= failures:
			w.WriteHeader(http.StatusServiceUnavailable)
		case start == "0":
			_, _ = io.WriteString(w, `{"events":[{"id":0}],"has_more":false}`)
		default:
			_, _ = io.WriteString(w, `{"events":[],"has_more":false}`)
		}
	})
}

// The session's second attempt has a new journal. The facade checks whether this journal contains
// the client's last event. The first request of this check fails.
func TestASocketNoticesAJournalResetAfterAFailedCheck(t *testing.T) {
	t.Parallel()
	const first, next = "127.31.6.2", "127.31.6.3"
	sessionOf(t, first)
	checkedSession(t, next, 1)
	cluster := newSleeper(first, next)
	cluster.watched = func() {
		cluster.update(func(s *v1alpha1.ConversationStatus) { s.Attempt, s.PodIP = 2, next })
	}
	options := DefaultOptions()
	options.SigningKeyDir = signingKey(t)
	served := httptest.NewServer(New(cluster, options, prometheus.NewRegistry()))
	t.Cleanup(served.Close)
	const want = "0 1 2 0"
	if got := overSocket(t, served.URL, "-1", want); got != want {
		t.Errorf("the events are %q, want %q", got, want)
	}
}
