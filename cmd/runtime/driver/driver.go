// Package driver has an agent work on the messages of a session's users, and records what happens.
// What it knows of the session is what the journal says: an attempt that finds one goes on from
// there.
package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// Model counts what a turn uses, and keeps it within its limits.
type Model interface {
	BeginTurn(id string) error
	EndTurn() error
}

// Options of a Driver.
type Options struct {
	Doc *session.Document
	// Input and Env of the agent, which works in Dir. Home is its home directory.
	Input session.AgentInput
	Env   []string
	Dir   string
	// ToolsURL serves the session's tools.
	ToolsURL string
	Journal  *journal.Journal
	Model    Model
	// Output of the agent and of the setup script, by its name.
	Output func(name string) io.WriteCloser
	// Busy keeps the session from being idle until done is called. What Idle returns is closed when
	// it is.
	Busy func() (done func())
	Idle func(context.Context) <-chan struct{}
	// Notices for the user, once.
	Notices []string
	// Ended is why an earlier attempt was about to end, where it did not get to say so.
	Ended *session.Termination
	// Cgroups is where the kernel counts the processes that it killed because memory ran out.
	Cgroups string
	Log     *slog.Logger
}

// Driver of a session's agent.
type Driver struct {
	Options
	agent *connected
	texts texts

	mu         sync.Mutex
	history    *history
	translator *translator
	// loading is set while the agent tells an old session again, and exact where that is just what
	// it told before.
	loading, exact bool
	// stopped is why the turn under way is to end.
	stopped *stop
	// closed: nothing is taken any more.
	closed bool
	// changed is closed, and made anew, when something was recorded.
	changed chan struct{}
	// working is set during a turn; done ends what keeps the session from being idle.
	working bool
	done    func()
	// broken is why nothing can be recorded any more.
	broken   error
	prepared bool // the setup script ran
	asking   sync.Mutex
}

// stop of a turn before the agent ends it.
type stop struct {
	state  session.State
	reason string
}

// ErrNoAgent and ErrOver are why a message is not taken.
var (
	ErrNoAgent = errors.New("this session has no agent that takes messages")
	ErrOver    = errors.New("the session has ended, or is about to")
)

// New is a driver that goes on from what the journal says. The first message is on record when it
// returns.
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
	d.history.held = false
	return d, d.open()
}

// HasAgent says whether there is an agent to work on messages.
func HasAgent(doc *session.Document) bool { return doc.Agent != nil && len(doc.Agent.Command) > 0 }

// Run the agent on each message until the session is over. It returns why that is; nil where ctx
// ended.
func (d *Driver) Run(ctx context.Context) *session.Termination {
	defer d.end()
	if d.Ended != nil {
		return d.Ended
	}
	// A command works on one message, which an earlier attempt had.
	done := d.command() && d.look(func(h *history) bool { return h.turns > 0 && h.turn < 0 })
	for {
		next, changed, broken := d.next()
		switch {
		case ctx.Err() != nil:
			return nil
		case broken != nil:
			return failure(broken.Error())
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
			return d.idled() // what waits is on record, and is worked on after a start
		case !done && (d.Doc.OneShot || d.command()):
			return end.termination(d)
		}
	}
}

// task is what to do next.
type task struct {
	message int
	// again: an earlier attempt began it.
	again bool
}

// next is the turn under way, or else the next message; nil where there is neither. The channel is
// closed once there may be more: a message that comes just after the look must not be missed. The
// error is why nothing can be recorded any more.
func (d *Driver) next() (*task, <-chan struct{}, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.history
	switch {
	case !HasAgent(d.Doc):
	case h.turn >= 0:
		return &task{message: h.turn, again: true}, d.changed, d.broken
	case len(h.waiting) > 0 && !h.held:
		return &task{message: h.waiting[0]}, d.changed, d.broken
	}
	return nil, d.changed, d.broken
}

// open records what a session begins with. Nobody's message comes before the first.
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
			first.Message = "A recorded session is replayed."
		}
		return d.record(first)
	}
	return nil
}

// wait until there is something to do. It returns why the session ends, where it does.
func (d *Driver) wait(ctx context.Context, changed <-chan struct{}) *session.Termination {
	d.mu.Lock()
	if d.history.state == session.StateLoading && HasAgent(d.Doc) {
		_ = d.record(session.StateChange(session.StateAwaiting, "")) // what is wrong with the journal shows at the next look
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
		// Unless a message came at the last moment.
		if len(d.history.waiting) == 0 || d.history.held || !HasAgent(d.Doc) {
			d.closed = true
			return d.idled()
		}
	}
	return nil
}

func (d *Driver) idled() *session.Termination {
	return &session.Termination{Reason: v1alpha1.ReasonIdle, Message: fmt.Sprintf("nothing happened for %s",
		d.Doc.IdleTimeout.Duration)}
}

// end the agent, and take nothing more.
func (d *Driver) end() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	if d.agent != nil {
		d.agent.stop()
	}
}

// Message from a user. It is on the disk when it is taken; the agent gets it when it is done with
// those before. One that has a key is taken once, however often it is sent.
func (d *Driver) Message(text string, images []string, key string) error {
	return d.take(key, func() error { return d.record(keyed(session.UserMessage(text, images), key)) })
}

// take what a user sends, while an agent takes messages. What has a key is taken once.
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

// digestOf a key, so that what is kept of it is short, and no secret if it should be one.
func digestOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// keyed is an event with the key that its sender gave it, if any.
func keyed(e session.Event, key string) session.Event {
	if key != "" {
		e.Meta = &session.EventMeta{Key: digestOf(key)}
	}
	return e
}

// ErrNothingAsked is why an answer is not taken.
var ErrNothingAsked = errors.New("nothing waits for a confirmation")

// ChangeState follows a user's wish: to confirm or reject what is asked, to pause, to stop the
// turn, or to go on. A wish that has a key is taken once, too: what is asked by then may be something
// else.
func (d *Driver) ChangeState(state session.State, key string) error {
	return d.take(key, func() error {
		switch {
		case (state == session.StateConfirmed || state == session.StateRejected) && d.history.asked == "":
			return ErrNothingAsked
		case state == session.StateRunning && d.history.state == session.StatePaused:
			// The key is the last one's: if only the first is recorded, it is sent again.
			return d.record(changeOf(state), keyed(session.UserMessage("Go on.", nil), key))
		}
		return d.record(keyed(changeOf(state), key))
	})
}

func changeOf(state session.State) session.Event {
	return session.Event{
		Source: session.FromUser, Action: session.ActionChangeState, Message: "The state is to be " + string(state),
		Args: map[string]any{"agent_state": string(state), argThought: ""},
	}
}

// Notice tells the user something that the agent does not.
func (d *Driver) Notice(text string) { _ = d.add(d.texts.observed(session.ObservedNotice, text)) }

// Limit ends a turn, if it is still under way: it has used what it may.
func (d *Driver) Limit(turn, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil || d.history.turn < 0 || turn != strconv.Itoa(d.history.turn) {
		return
	}
	d.stopped = &stop{session.StateError, reason}
	d.wake()
}

// State of the agent, and what it said last.
func (d *Driver) State() (state session.State, said string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.history.state, d.history.said
}

// look at the history.
func (d *Driver) look(at func(*history) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return at(d.history)
}

// command says whether the agent is a plain command, which works on one message and exits.
func (d *Driver) command() bool {
	return HasAgent(d.Doc) && d.Doc.Agent.Protocol != session.ProtocolACP
}

// add records events; d.mu is not held.
func (d *Driver) add(events ...session.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.record(events...)
}

// record events; d.mu is held. What came of the call of a tool is told of the action that called
// it. An event that is too large loses what makes it so; only a message of a user must be as it was
// sent.
func (d *Driver) record(events ...session.Event) error {
	for _, event := range events {
		if event.ToolCall != nil {
			event.ToolCall = &session.ToolCall{ID: d.texts.id(event.ToolCall.ID), Function: event.ToolCall.Function}
		}
		if event.ToolCall != nil && event.Observation != "" {
			if cause, known := d.history.actions[event.ToolCall.ID]; known {
				event.Cause = &cause
			}
		}
		written, err := d.Journal.Append(event)
		if errors.Is(err, journal.ErrTooLarge) && !event.IsUserMessage() {
			written, err = d.Journal.Append(d.texts.lean(event))
		}
		switch {
		case errors.Is(err, journal.ErrTooLarge) && event.IsUserMessage():
			return err // the user is told, and the session goes on without it
		case err != nil:
			d.broken = err
			d.wake()
			return err
		}
		d.history.fold(&written[0])
	}
	d.wake()
	return nil
}

// Failed records why a session ends before it has a driver.
func Failed(events *journal.Journal, reason string) error {
	failure := texts{mask: events.Mask}.observed(session.ObservedError, reason)
	_, err := events.Append(failure, session.StateChange(session.StateError, *failure.Content))
	return err
}

func (d *Driver) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func failure(message string) *session.Termination {
	return &session.Termination{Reason: v1alpha1.ReasonFailed, Message: message}
}
