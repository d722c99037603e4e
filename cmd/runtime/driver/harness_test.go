package driver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

const patience = 90 * time.Second // the race detector makes megabytes of JSON slow

// longSecret, pemSecret and the password hunter2 are masked in these tests.
const (
	longSecret = "sk-q0W1e2R3t4Y5u6I7o8P9a0S1d2F3g4H5j6K7l8Z9"
	pemSecret  = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n-----END " +
		"KEY-----"
)

var masking = secrets.New(map[string]string{"password": "hunter2", "key": longSecret, "pem": pemSecret})

type drive struct {
	t       *testing.T
	dir     string
	doc     session.Document
	can     string
	idle    chan struct{}
	driver  *driver.Driver
	journal *journal.Journal
	cancel  context.CancelFunc
	ended   chan *session.Termination
	turns   turns
	early   string // message that is sent before Run
	refresh func(context.Context) *driver.ModelChange
	log     bytes.Buffer // complete once the session is over
}

// turns is a driver.Model that records the calls of its methods.
type turns struct {
	mu      sync.Mutex
	calls   []string
	ended   []session.State
	state   func() (session.State, string)
	counted json.RawMessage
}

func (t *turns) Counted() json.RawMessage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counted
}

func (t *turns) count(usage string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counted = json.RawMessage(usage)
}

func (t *turns) heard() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.calls, ", ")
}

func (t *turns) BeginTurn(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, "begin "+id)
	return nil
}

func (t *turns) EndTurn() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, "end")
	if t.state != nil {
		state, _ := t.state()
		t.ended = append(t.ended, state)
	}
	return nil
}

type discard struct{ io.Writer }

func (discard) Close() error { return nil }

func newDrive(t *testing.T, doc session.Document) *drive {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if doc.Agent == nil {
		doc.Agent = &session.Agent{Name: "stub", Protocol: session.ProtocolACP, Command: []string{self}}
	}
	return &drive{t: t, dir: t.TempDir(), doc: doc, can: "plain", idle: make(chan struct{})}
}

func (d *drive) start() *drive {
	d.t.Helper()
	var err error
	d.journal, err = journal.Open(filepath.Join(d.dir, "events.jsonl"), masking.Mask)
	if err != nil {
		d.t.Fatal(err)
	}
	message := filepath.Join(d.dir, "message")
	if err := os.WriteFile(message, []byte(d.doc.FirstMessage), 0o600); err != nil {
		d.t.Fatal(err)
	}
	d.driver, err = driver.New(driver.Options{
		Doc: &d.doc, Dir: d.dir, Journal: d.journal, Model: &d.turns, ToolsURL: "http://127.0.0.1:1/mcp",
		Input:  session.AgentInput{MessageFile: message, ReplayFile: filepath.Join(d.dir, "replay")},
		Env:    append(os.Environ(), stubVariable+"="+d.can, "HEARD="+filepath.Join(d.dir, "heard")),
		Output: func(string) io.WriteCloser { return discard{io.Discard} }, MaskUnfinished: masking.MaskUnfinished,
		Busy:    func() func() { return func() {} },
		Idle:    func(context.Context) <-chan struct{} { return d.idle },
		Refresh: d.refresh,
		Log:     slog.New(slog.NewTextHandler(masking.Output(&d.log).Lines(""), nil)),
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.turns.state = d.driver.State
	if d.early != "" {
		if err := d.driver.Message(d.early, nil, ""); err != nil {
			d.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(d.t.Context())
	d.cancel, d.ended = cancel, make(chan *session.Termination, 1)
	running, journal := d.driver, d.journal
	ended := d.ended
	over := make(chan struct{})
	go func() {
		defer close(over)
		ended <- running.Run(ctx)
	}()
	d.t.Cleanup(func() {
		cancel()
		<-over
		_ = journal.Close()
	})
	return d
}

// stop ends the attempt, and leaves the journal as the loss of a node would leave it.
func (d *drive) stop() {
	d.t.Helper()
	d.cancel()
	d.over()
	_ = d.journal.Close()
}

func (d *drive) over() *session.Termination {
	d.t.Helper()
	select {
	case termination := <-d.ended:
		return termination
	case <-time.After(patience):
		d.t.Fatalf("the session does not end; its events are\n%s", strings.Join(d.events(), "\n"))
		return nil
	}
}

func (d *drive) events() []string {
	d.t.Helper()
	var lines []string
	err := d.journal.Events(0, func(e *session.Event) bool {
		lines = append(lines, line(e))
		return true
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return lines
}

func line(e *session.Event) string {
	content := ""
	if e.Content != nil {
		content = *e.Content
	}
	switch {
	case e.Observation == session.ObservedState:
		return strings.TrimSpace(fmt.Sprintf("state %s %v", e.StateOf(), e.Extras["reason"]))
	case e.Action == session.ActionMessage:
		return fmt.Sprintf("%s: %s", e.Source, e.Text())
	case e.Action == session.ActionRun:
		return strings.TrimSpace(fmt.Sprintf("run %v %v", e.Args["command"], text(e.Args["confirmation_state"])))
	case e.Action != "":
		return strings.TrimSpace(fmt.Sprintf("%s %v", e.Action, text(e.Args["thought"])))
	case e.Observation == session.ActionRun:
		return fmt.Sprintf("ran %v: %s %v, of %d", e.Extras["command"], content, e.Extras["metadata"], *e.Cause)
	}
	return strings.TrimSpace(e.Observation + " " + content)
}

func text(value any) string {
	text, _ := value.(string)
	return text
}

func (d *drive) until(state session.State) {
	d.t.Helper()
	d.wait("the state "+string(state), func() bool {
		now, _ := d.driver.State()
		return now == state
	})
}

func (d *drive) wait(condition string, met func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(patience); !met(); {
		if time.Now().After(deadline) {
			d.t.Fatalf("timed out waiting for %s; the events are\n%s", condition, strings.Join(d.events(), "\n"))
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (d *drive) expect(want ...string) {
	d.t.Helper()
	if got := strings.Join(d.events(), "\n"); got != strings.Join(want, "\n") {
		d.t.Errorf("the events are\n%s\n\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func (d *drive) heard() string {
	text, _ := os.ReadFile(filepath.Join(d.dir, "heard"))
	return string(text)
}

func (d *drive) setup(script string) {
	d.t.Helper()
	file := filepath.Join(d.dir, ".openhands", "setup.sh")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		d.t.Fatal(err)
	}
}
