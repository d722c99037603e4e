package driver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// Whatever an agent prints, nothing hangs or fails. All events can be read and contain no secret.
// Updates of an unknown kind are recorded.
func FuzzAgent(f *testing.F) {
	update := func(text string) string {
		return `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":` + text + `}}` + "\n"
	}
	ask := func(text string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":` + text + `}` + "\n"
	}
	for _, seed := range []string{
		"", "log line\n", update(`{}`), update(`null`), update(`"x"`),
		update(`{"sessionUpdate":"brand_new","secret":"hunter2"}`),
		update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi hunter2"}}`) +
			update(`{"sessionUpdate":"agent_thought_chunk","content":[{"type":"text","text":"hm"},5]}`),
		update(`{"sessionUpdate":"tool_call","toolCallId":"1","title":"t","kind":"execute","rawInput":{"command":["ls",5]},`+
			`"status":"pending"}`) +
			update(`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","content":[{"type":"diff",`+
				`"path":"a","oldText":null,"newText":"b"}],"rawOutput":{"exit":"x"}}`),
		update(`{"sessionUpdate":"tool_call_update","toolCallId":"unknown","status":"failed"}`),
		update(`{"sessionUpdate":"plan","entries":[{"content":"a","status":"?"},{}]}`),
		update(`{"sessionUpdate":"tool_call","toolCallId":5}`), update(`{"sessionUpdate":"tool_call",` +
			`"toolCallId":"hunter2","name":"hunter2","status":"failed","_meta":{"parley/seq":1}}`),
		update(`{"sessionUpdate":"agent_message_chunk","_meta":{"parley/seq":1e300}}`),
		ask(`{"toolCall":{"toolCallId":"1"},"options":[{"optionId":"a","kind":"allow_once"}]}`), ask(`{}`),
		ask(`{"toolCall":null,"options":null}`), ask(`5`), ask(`{"toolCall":{"toolCallId":"1","rawInput":5,"content":"x"}}`),
		`{"id":1,"result":{}}` + "\n" + `{"id":"x","method":"fs/read_text_file","params":{}}` + "\n",
		"{\"method\":\"session/update\"}\n",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, said []byte, confirm bool) {
		j, err := journal.Open(filepath.Join(t.TempDir(), "events.jsonl"),
			func(text string) string { return strings.ReplaceAll(text, "hunter2", "***") })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = j.Close() }()
		d, err := driver.New(driver.Options{
			Doc: &session.Document{Settings: v1alpha1.UserSettingsSpec{ConfirmationMode: ptr.To(confirm)},
				Agent: &session.Agent{Name: "fuzz", Command: []string{"none"}}},
			Journal: j, Model: &turns{}, Output: func(string) io.WriteCloser { return discard{io.Discard} },
			Busy: func() func() { return func() {} },
			Idle: func(context.Context) <-chan struct{} { return nil }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		hear(t, d, said)
		checkRecords(t, j, said)
	})
}

// hear passes an agent's output to the driver. It returns when all requests in the output are
// answered.
func hear(t *testing.T, d *driver.Driver, said []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &asked{Driver: d, done: make(chan struct{}, bytes.Count(said, []byte("\n"))+1)}
	ended := make(chan error, 1)
	conn := acp.NewConn(bytes.NewReader(said), io.Discard)
	go func() { ended <- conn.Serve(ctx, h) }()
	wait := time.After(patience)
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("%q ends in %v", said, err)
		}
	case <-wait:
		t.Fatalf("%q is read without end", said)
	}
	cancel() // as the driver does when an agent exits
	for range h.requests {
		select {
		case <-h.done:
		case <-wait:
			t.Fatalf("%q asks something that never ends", said)
		}
	}
}

// asked is a driver that signals the end of each request.
type asked struct {
	*driver.Driver
	requests int
	done     chan struct{}
}

func (a *asked) Request(ctx context.Context, method string, params json.RawMessage) func() (any, error) {
	work := a.Driver.Request(ctx, method, params)
	a.requests++
	return func() (any, error) {
		defer func() { a.done <- struct{}{} }()
		return work()
	}
}

func checkRecords(t *testing.T, j *journal.Journal, said []byte) {
	t.Helper()
	id, unknown := 0, 0
	err := j.Events(0, func(e *session.Event) bool {
		if e.ID != id {
			t.Errorf("%q: event %d is %d", said, id, e.ID)
		}
		id++
		if e.Observation == session.ObservedUpdate {
			unknown++
		}
		return true
	})
	if err != nil {
		t.Fatalf("%q: %v", said, err)
	}
	lines, err := j.Lines(0, j.Len())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if bytes.Contains(line, []byte("hunter2")) {
			t.Errorf("%q: a secret is recorded: %s", said, line)
		}
	}
	if want := unknownUpdates(said); unknown < want {
		t.Errorf("%q has %d unknown updates, but %d are recorded", said, want, unknown)
	}
}

func unknownUpdates(said []byte) (count int) {
	for line := range bytes.Lines(said) {
		var m struct {
			ID     *json.RawMessage `json:"id"`
			Method string           `json:"method"`
			Params struct {
				SessionID string `json:"sessionId"`
				Update    struct {
					Kind string `json:"sessionUpdate"`
					Meta any    `json:"_meta"`
				} `json:"update"`
			} `json:"params"`
		}
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &m) == nil && m.ID == nil &&
			m.Method == acp.MethodUpdate &&
			m.Params.Update.Kind == "brand_new" && m.Params.Update.Meta == nil && simple(line) {
			count++
		}
	}
	return count
}

// simple reports whether the update has no field except its kind. Any other field could make the
// update invalid.
func simple(line []byte) bool {
	var m struct {
		Params struct {
			Update map[string]any `json:"update"`
		} `json:"params"`
	}
	return json.Unmarshal(line, &m) == nil && len(m.Params.Update) == 1
}
