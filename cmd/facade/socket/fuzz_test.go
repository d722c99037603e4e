package socket

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-dev/parley/cmd/facade/live"
)

// quiet is a conversation without events.
type quiet struct{ sent chan json.RawMessage }

func (q quiet) Backlog(context.Context, int, func(live.Event) error) error { return nil }

func (q quiet) Follow(ctx context.Context, _ int, _ func(live.Event) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func (q quiet) Count() error { return nil }

func (q quiet) Receive(_ context.Context, from io.Reader) ([]byte, func(), error) {
	frame, err := io.ReadAll(from)
	return frame, func() {}, err
}

func (q quiet) Send(_ context.Context, action json.RawMessage, _ func()) error {
	select {
	case q.sent <- action:
	default:
	}
	return nil
}

func serve(w http.ResponseWriter, r *http.Request, c Conversation) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	if client, _, err := Greet(r.Context(), conn); err == nil {
		client.Serve(r.Context(), c, -1)
	}
}

func dial(t testing.TB, c Conversation) *websocket.Conn {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(w, r, c) }))
	t.Cleanup(server.Close)
	conn, response, err := websocket.Dial(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.Body != nil {
		_ = response.Body.Close()
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

func next(t testing.TB, conn *websocket.Conn) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, frame, err := conn.Read(ctx)
	return string(frame), err
}

func TestAnUnknownSocketIONamespaceIsRefused(t *testing.T) {
	conn := dial(t, quiet{})
	if _, err := next(t, conn); err != nil {
		t.Fatal(err)
	}
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("40/admin,{}")); err != nil {
		t.Fatal(err)
	}
	if frame, err := next(t, conn); frame != `44/admin,{"message":"unknown Socket.IO namespace"}` {
		t.Errorf("got %s, %v", frame, err)
	}
}

// Whatever frame the client sends, the server responds with valid frames or ends the connection.
// Only valid JSON reaches the session.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{"3", "2", "1", "41", `42["oh_user_action",{"action":"message"}]`,
		`4212["oh_user_action",{}]`, "42", "42[", `42["x"]`, `42["oh_user_action",1,2]`, "44", "40/x", "\x00",
		`42-1["oh_user_action",{}]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, frame string) {
		q := quiet{sent: make(chan json.RawMessage, 1)}
		conn := dial(t, q)
		if _, err := next(t, conn); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"40", frame, "2"} {
			if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
				return // the connection ended
			}
		}
		for {
			answer, err := next(t, conn)
			if err != nil || answer == "3" {
				break
			}
			if packet, is := strings.CutPrefix(answer, packetEvent); is && !json.Valid([]byte(packet)) {
				t.Errorf("%q is answered with %s", frame, answer)
			}
		}
		select {
		case action := <-q.sent:
			if !json.Valid(action) {
				t.Errorf("%q sends %s", frame, action)
			}
		default:
		}
	})
}
