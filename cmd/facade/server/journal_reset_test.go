package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// running is a cluster with one conversation, whose session has the given address.
type running struct {
	stopped
	address string
}

func (c *running) CachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation, err := c.stopped.CachedConversation(ctx, key)
	conversation.Status.State, conversation.Status.PodIP = v1alpha1.StateRunning, c.address
	return conversation, err
}

// sessionOf serves a session with three events at an address that no other test uses.
func sessionOf(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(session.Port)))
	if err != nil {
		t.Fatal(err)
	}
	number := func(r *http.Request, name string) int {
		n, err := strconv.Atoi(r.URL.Query().Get(name))
		if err != nil {
			t.Errorf("%s is not a number: %v", name, err)
		}
		return n
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+session.EventsPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") })
	mux.HandleFunc(session.EventsPath, func(w http.ResponseWriter, r *http.Request) {
		var events []string
		for id := number(r, "start_id"); id < 3; id++ {
			events = append(events, fmt.Sprintf(`{"id":%d}`, id))
		}
		fmt.Fprintf(w, `{"events":[%s],"has_more":false}`, strings.Join(events, ","))
	})
	mux.HandleFunc(session.StreamPath, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, ": here\n\n")
		for id := number(r, "after") + 1; id < 3; id++ {
			fmt.Fprintf(w, "id: %d\ndata: {\"id\":%d}\n\n", id, id)
		}
	})
	served := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux}}
	served.Start()
	t.Cleanup(served.Close)
}

// A session that lost its journal starts again at event 0. Clients that reconnect send the ID of
// their last event, which was in the old journal. If the new journal has no event with this ID, the
// clients must get all events of the new journal.
func TestStreamsRestartAfterAJournalReset(t *testing.T) {
	t.Parallel()
	const address = "127.31.4.2"
	sessionOf(t, address)
	options := DefaultOptions()
	options.SigningKeyDir = signingKey(t)
	served := httptest.NewServer(New(&running{address: address}, options, prometheus.NewRegistry()))
	t.Cleanup(served.Close)
	for after, want := range map[string]string{"": "0 1 2", "-1": "0 1 2", "0": "1 2", "2": "", "3": "0 1 2",
		"50": "0 1 2"} {
		if got := streamed(t, served.URL, after); got != want {
			t.Errorf("after %q the events are %q, want %q", after, got, want)
		}
		if got := overSocket(t, served.URL, after, want); got != want {
			t.Errorf("over a socket, after %q the events are %q, want %q", after, got, want)
		}
	}
}

// streamed returns the IDs of the events that a client receives. The argument after is the ID of
// the last event that the client already has.
func streamed(t *testing.T, url, after string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/conversations/talk/events/stream",
		http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(rest.KeyHeader, stubKey)
	request.Header.Set("Last-Event-ID", after)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return idsIn(string(text))
}

// overSocket returns the IDs of the events that a client receives. It stops when the client has the
// wanted events and the pong to its ping.
func overSocket(t *testing.T, url, after, want string) string {
	t.Helper()
	url += "/socket.io/?EIO=4&transport=websocket&conversation_id=talk&session_api_key=" + stubKey
	conn, _, err := websocket.Dial(t.Context(), url+"&latest_event_id="+after, nil) //nolint:bodyclose // the connection
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("40")); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for pinged := false; ; {
		_, frame, err := conn.Read(t.Context())
		if err != nil || string(frame) == "3" {
			return idsIn(all.String())
		}
		all.Write(frame)
		if len(idsIn(all.String())) >= len(want) && !pinged && strings.Contains(all.String(), "40{") {
			pinged = true
			if err := conn.Write(t.Context(), websocket.MessageText, []byte("2")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func idsIn(text string) string {
	var ids []string
	for _, rest := range strings.Split(text, `{"id":`)[1:] {
		ids = append(ids, rest[:1])
	}
	return strings.Join(ids, " ")
}
