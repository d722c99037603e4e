// Package driver runs an agent on the users' messages and records events. The journal holds the
// session's whole state, so a new attempt resumes from the journal.
package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// Model measures the model usage of a turn and enforces the limits of the turn.
type Model interface {
	BeginTurn(id string) error
	EndTurn() error
	// Counted returns the usage so far, for the journal.
	Counted() json.RawMessage
}

// Options configure a Driver.
type Options struct {
	Doc *session.Document
	// Input and Env are passed to the agent, which works in Dir.
	Input session.AgentInput
	Env   []string
	Dir   string
	// ToolsURL is the URL of the session's tools.
	ToolsURL string
	Journal  *journal.Journal
	Model    Model
	// Output returns a log writer that writes the name before each line. The name of a plain
	// command is empty.
	Output func(name string) io.WriteCloser
	// MaskUnfinished masks secrets in an unfinished text. It removes the end of the text if a
	// secret may begin there.
	MaskUnfinished func(text string) string
	// Busy keeps the session from becoming idle until done() is called. Idle returns a
	// channel that is closed when the session is idle.
	Busy func() (done func())
	Idle func(context.Context) <-chan struct{}
	// Notices are recorded at the start of the first attempt.
	Notices []string
	// Archive waits until the archive has stored the journal. It is nil if the journal survives the
	// loss of the pod.
	Archive func(context.Context)
	// LostRecord is set if an earlier attempt may have worked on the first message, and the journal
	// of that attempt is lost.
	LostRecord bool
	// Refresh returns the change of the model settings since the last turn, if there is one. The
	// function may be nil.
	Refresh func(context.Context) *ModelChange
	// Ended is set if an earlier attempt ended the session but could not report the termination.
	Ended *session.Termination
	// Cgroups is the container's cgroup directory, in which the kernel counts OOM kills.
	Cgroups string
	Log     *slog.Logger
}

// Driver runs a session's agent.
type Driver struct {
	Options
	agent *agentProcess
	texts texts
	// preface is sent to the agent before its next message.
	preface string

	mu         sync.Mutex
	history    *history
	translator *translator
	// loading is set while the agent loads an earlier session. exact is set if the agent replays
	// its updates with the same content and the same sequence numbers. replayedSeq is the highest
	// sequence number that was replayed.
	loading, exact bool
	replayedSeq    int
	// stopped says how the current turn must end. It is nil if the turn need not end.
	stopped *stop
	// closed is set as soon as the session accepts no more messages. leaving is set if the method
	// Leave ended the session.
	closed, leaving bool
	// changed is closed and replaced whenever an event is recorded.
	changed chan struct{}
	// previewed is the channel that Preview returned, or nil if there is no reader. previewDue is
	// set if the channel will be closed soon.
	previewed  chan struct{}
	previewDue bool
	previews   previewCache
	// working is set during a turn. done is the function that Busy returned for this turn.
	working bool
	done    func()
	// broken is the error that made the journal unusable.
	broken   error
	prepared bool // the setup script ran
	asking   sync.Mutex
}

type stop struct {
	state  session.State
	reason string
}

// Conflict is the error for a valid request that conflicts with the session's state.
type Conflict string

func (c Conflict) Error() string { return string(c) }

// ErrNoAgent, ErrOver and ErrOneShot are the errors for refused messages.
const (
	ErrNoAgent Conflict = "this session has no agent that accepts messages"
	ErrOver    Conflict = session.Over
	ErrOneShot Conflict = "a one-shot session works on its first message only; start another conversation"
)

// New returns a driver that resumes from the journal. New records the first message if the journal
// lacks it.
func New(o Options) (*Driver, error) {
	t := texts{mask: o.Journal.Mask}
	d := &Driver{Options: o, texts: t, history: newHistory(), translator: newTranslator(t), changed: make(chan struct{})}
	err := o.Journal.Events(0, func(e *session.Event) bool {
		d.history.fold(e)
		return true
	})
	if err != nil {
		return nil, err
	}
	d.history.held, d.preface = false, d.history.preface
	return d, d.open()
}

// HasAgent reports whether the session's document names an agent with a command.
func HasAgent(doc *session.Document) bool { return doc.Agent != nil && len(doc.Agent.Command) > 0 }

// Run runs the agent on each message until the session ends. It returns nil if ctx ended.
func (d *Driver) Run(ctx context.Context) *session.Termination {
	defer d.end()
	if d.Ended != nil {
		return d.Ended
	}
	// A plain command runs only one time. done is set if the command has already finished in an
	// earlier attempt.
	done := d.command() && d.look(func(h *history) bool { return h.turns > 0 && h.turn < 0 })
	for {
		next, changed, broken := d.next()
		switch {
		case ctx.Err() != nil:
			return nil
		case broken != nil:
			return failure(broken.Error())
		case d.look(func(*history) bool { return d.leaving }):
			return left()
		case next == nil:
			if ended := d.wait(ctx, changed); ended != nil {
				return ended
			}
			continue
		}
		end := d.work(ctx, *next)
		switch {
		case ctx.Err() != nil:
			return nil
		case end.idle:
			return d.idled() // waiting messages are in the journal for the next attempt
		case !done && (d.Doc.OneShot && end.state != session.StateAwaiting || d.command()):
			return end.termination(d)
		}
	}
}

type task struct {
	message int
	// resumed is set if an earlier attempt started the turn.
	resumed bool
}

// next returns the current turn or the next message, or nil if there is neither. The channel is
// closed when the next event is recorded, so a message that arrives after this call is not missed.
// The error says why the journal cannot be used.
func (d *Driver) next() (*task, <-chan struct{}, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.history
	switch {
	case !HasAgent(d.Doc):
	case h.turn >= 0:
		return &task{message: h.turn, resumed: true}, d.changed, d.broken
	case len(h.waiting) > 0 && !h.held:
		return &task{message: h.waiting[0]}, d.changed, d.broken
	}
	return nil, d.changed, d.broken
}

// open records the session's first events. The first message is recorded before users can send
// messages.
func (d *Driver) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.history.state == "" {
		events := []session.Event{session.StateChange(session.StateLoading, "")}
		for _, text := range d.Notices {
			events = append(events, d.texts.observed(session.ObservedNotice, text))
		}
		if err := d.record(events...); err != nil {
			return err
		}
	}
	if HasAgent(d.Doc) && d.Doc.HasWork() && d.history.messages == 0 {
		first := session.UserMessage(d.Doc.FirstMessage, d.firstImages())
		if d.Doc.FirstMessage == "" && d.Doc.Replay {
			first.Message = "Replaying a recorded session."
		}
		if d.LostRecord {
			return d.refuseRepetition(first)
		}
		return d.record(first)
	}
	return nil
}

// wait blocks until there may be a task. It returns a termination if the session has become idle.
func (d *Driver) wait(ctx context.Context, changed <-chan struct{}) *session.Termination {
	d.mu.Lock()
	if d.history.state == session.StateLoading && HasAgent(d.Doc) {
		_ = d.record(session.StateChange(session.StateAwaiting, "")) // next() returns d.broken
		d.mu.Unlock()
		return nil
	}
	d.mu.Unlock()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-changed:
	case <-ctx.Done():
	case <-d.Idle(waiting):
		d.mu.Lock()
		defer d.mu.Unlock()
		// If a message arrived just before the timeout and the agent can work on it, the session
		// continues. Otherwise the session ends.
		if len(d.history.waiting) == 0 || d.history.held || !HasAgent(d.Doc) {
			d.closed = true
			return d.idled()
		}
	}
	return nil
}

func (d *Driver) idled() *session.Termination {
	return &session.Termination{Reason: v1alpha1.ReasonIdle, Message: fmt.Sprintf("no activity for %s",
		d.Doc.IdleTimeout.Duration)}
}

// end stops the agent and rejects further messages. It also records usage that is not in the
// journal yet.
func (d *Driver) end() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	if d.agent != nil {
		d.agent.stop()
	}
	if usage := d.Model.Counted(); d.look(func(h *history) bool { return moreUsage(usage, h.usage) }) {
		_ = d.add(session.Event{Source: session.FromEnvironment, Observation: session.ObservedUsage, Content: new(string)})
	}
}

// Message records a user's message and returns when the message is on disk. The agent receives
// messages in the order in which they were recorded. A repeated message with the same key is
// ignored.
func (d *Driver) Message(text string, images []string, key string) error {
	return d.take(key, func() error {
		if d.Doc.OneShot && d.history.messages > 0 {
			return ErrOneShot
		}
		return d.record(keyed(session.UserMessage(text, images), key))
	})
}

// take records a user's input if the agent accepts messages. It ignores input whose key is already
// known.
func (d *Driver) take(key string, record func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.history.keys[digestOf(key)]:
		return nil
	case !HasAgent(d.Doc) || d.command():
		return ErrNoAgent
	case d.closed:
		return ErrOver
	}
	return record()
}

// Notice records a notice from the runtime to the user.
func (d *Driver) Notice(text string) { _ = d.add(d.texts.observed(session.ObservedNotice, text)) }

// Published records the link to a pull request. It does nothing if the last recorded link is the
// same.
func (d *Driver) Published(link string) {
	if link == d.PullRequest() {
		return
	}
	notice := d.texts.observed(session.ObservedNotice, "Pull request: "+link)
	notice.Extras = map[string]any{extraPullRequest: link}
	_ = d.add(notice)
}

// PullRequest returns the link to the session's last pull request, or an empty string.
func (d *Driver) PullRequest() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.history.pullRequest
}

// Limit ends a turn that has reached a limit. It does nothing if the turn is over.
func (d *Driver) Limit(turn, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil || d.history.turn < 0 || turn != strconv.Itoa(d.history.turn) {
		return
	}
	d.stopped = &stop{session.StateError, reason}
	d.wake()
}

// State returns the agent's state and its last message.
func (d *Driver) State() (state session.State, said string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.history.state, d.history.said
}

func (d *Driver) look(at func(*history) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return at(d.history)
}

// command reports whether the agent is a plain command. A plain command gets one message and exits.
func (d *Driver) command() bool {
	return HasAgent(d.Doc) && d.Doc.Agent.Protocol != session.ProtocolACP
}

func (d *Driver) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
	d.wakePreviews()
}

func failure(message string) *session.Termination {
	return &session.Termination{Reason: v1alpha1.ReasonFailed, Message: message}
}
