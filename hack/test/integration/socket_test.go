package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/parley-dev/parley/api/session"
)

// connect opens a Socket.IO connection and sends the first frame.
func (p *person) connect(t *testing.T, id string, after int, header http.Header) (*websocket.Conn, int, error) {
	t.Helper()
	url := strings.Replace(p.url, "http", "ws", 1) + fmt.Sprintf(
		"/socket.io/?EIO=4&transport=websocket&conversation_id=%s&latest_event_id=%d&session_api_key=%s", id, after, p.key)
	conn, response, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: header})
	if response != nil && response.Body != nil {
		_ = response.Body.Close()
	}
	if err != nil {
		code := 0
		if response != nil {
			code = response.StatusCode
		}
		return nil, code, err
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	if frame := read(t, conn); !strings.HasPrefix(frame, `0{"`) {
		t.Fatalf("the first frame is %s", frame)
	}
	write(t, conn, "40")
	return conn, 0, nil
}

func read(t *testing.T, conn *websocket.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, frame, err := conn.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return string(frame)
}

func write(t *testing.T, conn *websocket.Conn, frame string) {
	t.Helper()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(frame)); err != nil {
		t.Fatal(err)
	}
}

func event(t *testing.T, conn *websocket.Conn) session.Event {
	t.Helper()
	frame := read(t, conn)
	text, found := strings.CutPrefix(frame, `42["oh_event",`)
	if !found {
		t.Fatalf("no event: %s", frame)
	}
	e, err := session.ParseEvent([]byte(strings.TrimSuffix(text, "]")))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestASocketClientReceivesEventsAndSendsMessages(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	count := len(ada.events(t, "talk"))

	conn, _, err := ada.connect(t, "talk", -1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if frame := read(t, conn); !strings.HasPrefix(frame, `40{"sid":"`) {
		t.Fatalf("the answer to the connection is %s", frame)
	}
	// The client gets all earlier events except state changes. After them, it gets the latest
	// state.
	var seen []string
	for {
		e := event(t, conn)
		seen = append(seen, fmt.Sprintf("%s%s %s", e.Action, e.Observation, e.StateOf()))
		if e.StateOf() != "" {
			break
		}
	}
	if got := strings.Join(seen, "; "); got != "message ; message ; agent_state_changed awaiting_user_input" {
		t.Errorf("the client saw %s", got)
	}
	write(t, conn, `420["oh_user_action",{"action":"message","args":{"content":"again","image_urls":[],"file_urls":[],`+
		`"timestamp":"2026-01-01T00:00:00Z"}}]`)
	acknowledged, said := false, ""
	for !acknowledged || said != "Two." {
		frame := read(t, conn)
		if frame == "430[]" {
			acknowledged = true
			continue
		}
		var packet []json.RawMessage
		if err := json.Unmarshal([]byte(strings.TrimPrefix(frame, "42")), &packet); err != nil {
			t.Fatalf("%s: %v", frame, err)
		}
		if e, err := session.ParseEvent(packet[1]); err != nil || e.ID < count {
			t.Fatalf("%s was repeated, or: %v", frame, err)
		} else if e.Source == session.FromAgent && e.Action == session.ActionMessage {
			said = e.Text()
		}
	}
	// The facade reports an error as an event.
	write(t, conn, `42["oh_user_action",{"action":"run"}]`)
	for {
		if frame := read(t, conn); strings.Contains(frame, `"status_update":true`) {
			if !strings.Contains(frame, "action: must be message, change_agent_state or revoke_approval") {
				t.Errorf("the error is %s", frame)
			}
			break
		}
	}
}

func TestSocketsAreRefusedWithoutAccess(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil)
	ada.converse(t, "talk", nil)
	for name, c := range map[string]struct {
		id, key, origin string
		want            int
	}{
		"a wrong key":            {"talk", "wrong", "", 401},
		"no such conversation":   {"absent", ada.key, "", 404},
		"a page of another site": {"talk", ada.key, "https://elsewhere.example.com", 403},
		"the facade's own page":  {"talk", ada.key, ada.url, 0},
	} {
		p, header := *ada, http.Header{}
		p.key = c.key
		if c.origin != "" {
			header.Set("Origin", c.origin)
		}
		if _, code, err := p.connect(t, c.id, -1, header); code != c.want {
			t.Errorf("%s: answered %d, %v, want %d", name, code, err, c.want)
		}
	}
	for query, want := range map[string]int{
		"EIO=4&transport=polling": 400, "EIO=3&transport=websocket": 400,
		"EIO=4&transport=websocket&conversation_id=talk&latest_event_id=x&session_api_key=" + ada.key: 422,
	} {
		ada.wants(t, want, "GET", "/socket.io/?"+query, "")
	}
}
