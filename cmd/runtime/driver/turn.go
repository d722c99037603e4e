package driver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/process"
)

// cancelGrace is how long an agent may take to end a turn that is cancelled.
const cancelGrace = 15 * time.Second

// ending of a turn.
type ending struct {
	state session.State
	// reason why it is an error.
	reason string
	// id of the error that clients know.
	id string
	// withdrawn: the turn could not begin, and its message waits.
	withdrawn *int
	// idle: nobody answered what the agent asks.
	idle bool
}

func failedTurn(reason string) ending { return ending{state: session.StateError, reason: reason} }

// termination of a session that ends with its turn.
func (e ending) termination(d *Driver) *session.Termination {
	name := d.Doc.Agent.Name
	switch e.state {
	case session.StateFinished, session.StateAwaiting:
		return &session.Termination{Reason: v1alpha1.ReasonCompleted, Message: fmt.Sprintf("the agent %s is done", name)}
	case session.StateError:
		return failure(e.reason)
	}
	return failure(fmt.Sprintf("the agent %s was stopped", name))
}

// work on a message: one turn of the agent.
func (d *Driver) work(ctx context.Context, t task) ending {
	d.mu.Lock()
	d.stopped, d.working = nil, true
	d.busy(true)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.working = false
		d.busy(false)
	}()
	memory := process.WatchMemory(d.Cgroups)
	var end ending
	if d.command() {
		end = d.runCommand(ctx, t)
	} else {
		end = d.converse(ctx, t)
	}
	if ctx.Err() != nil || end.idle {
		return end // the turn is under way still, and a later attempt goes on with it
	}
	if end.state == session.StateError && memory.RanOut() {
		end.reason += "; memory ran out, and the kernel killed a process of the session (" + session.OOMKilled + ")"
	}
	d.recordEnd(&end)
	// Only now: a turn whose end is not on record is gone on with, with what is left of its budget.
	if err := d.Model.EndTurn(); err != nil {
		d.Log.Error("the end of a turn could not be recorded", "error", err)
	}
	return end
}

// recordEnd records how the turn ended.
func (d *Driver) recordEnd(end *ending) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		*end = ending{state: d.stopped.state, reason: d.stopped.reason}
	}
	failure := d.texts.observed(session.ObservedError, end.reason)
	end.reason = *failure.Content
	events := d.translator.flush()
	if end.state == session.StateError {
		d.Log.Error("the agent's turn failed", "reason", shortened(end.reason, maxLogged))
		failure.Extras = map[string]any{"error_id": end.id}
		events = append(events, failure)
	}
	if end.state == session.StateAwaiting && d.Doc.OneShot {
		end.state = session.StateFinished
	}
	last := session.StateChange(end.state, end.reason)
	if end.withdrawn != nil {
		last.Meta = &session.EventMeta{Withdrawn: end.withdrawn}
	}
	_ = d.record(append(events, last)...) // Run looks at what is broken
}

// converse with an agent that speaks ACP.
func (d *Driver) converse(ctx context.Context, t task) ending {
	if t.again && d.stopping(t) {
		return d.unheard(t)
	}
	d.setup(ctx)
	if err := d.ensureAgent(ctx); err != nil {
		return d.notStarted(ctx, t, err)
	}
	if d.stopping(t) {
		return d.unheard(t)
	}
	if err := d.beginTurn(t); err != nil {
		return failedTurn(err.Error())
	}
	prompt, err := d.prompt(ctx, t)
	if err != nil {
		return failedTurn(err.Error())
	}
	return d.promptAgent(ctx, t, prompt)
}

// unheard is the end of a turn that the user stopped before this attempt's agent heard of it. It is
// recorded with the session that the turn before was in: one that the agent has heard nothing in still needs
// to be told what each session begins with.
func (d *Driver) unheard(t task) ending {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.again {
		_ = d.record(turnEvent(t.message, d.history.session)) // Run looks at what is broken
	}
	return failedTurn("the turn ended before the agent was asked to work on it")
}

// notStarted is the end of a turn that had no agent. One that had not begun waits for another try.
func (d *Driver) notStarted(ctx context.Context, t task, err error) ending {
	switch {
	case ctx.Err() != nil:
		return ending{}
	case d.stopping(t):
		return d.unheard(t)
	}
	end := failedTurn(fmt.Sprintf("the agent %s cannot be started: %v", d.Doc.Agent.Name, err))
	if !t.again {
		end.withdrawn = &t.message
	}
	return end
}

func turnEvent(message int, in string) session.Event {
	event := session.StateChange(session.StateRunning, "")
	event.Meta = &session.EventMeta{Turn: &message, Session: in}
	return event
}

// beginTurn records the turn before the agent hears of it.
func (d *Driver) beginTurn(t task) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.again {
		d.translator.begin()
	}
	if !t.again || d.history.session != d.agent.session {
		// Also a turn that goes on in another session of the agent.
		if err := d.record(turnEvent(t.message, d.agent.session)); err != nil {
			return err
		}
	}
	if told := d.instructions(); told != "" && d.history.sessionTurns == 1 && !d.history.instructed {
		event := session.Event{Source: session.FromAgent, Action: session.ActionSystem, Message: told,
			Args: map[string]any{"content": told}}
		if err := d.record(event); err != nil {
			return err
		}
	}
	if err := d.Model.BeginTurn(strconv.Itoa(t.message)); err != nil {
		return fmt.Errorf("record the turn: %w", err)
	}
	return nil
}

// promptAgent sends the prompt and waits for the turn's end, whoever ends it.
//
// An agent that does not read holds up whoever writes to it. So this only ever waits, and what is
// sent is sent beside it: the prompt, and after it the word to stop, which means nothing to an agent
// that has not heard the prompt.
func (d *Driver) promptAgent(ctx context.Context, t task, prompt acp.PromptParams) ending {
	call, cancel := context.WithCancel(context.Background())
	defer cancel()
	type answer struct {
		acp.PromptResult
		err error
	}
	conn := d.agent.conn
	answered, sent := make(chan answer, 1), make(chan struct{})
	go func() {
		var a answer
		request, err := conn.Send(acp.MethodPrompt, prompt)
		close(sent)
		if a.err = err; err == nil {
			a.err = request.Answer(call, &a.PromptResult)
		}
		answered <- a
	}()
	var grace <-chan time.Time
	var cancelled chan struct{}
	idle := d.Idle(call)
	for {
		d.mu.Lock()
		changed := d.changed
		stopping := d.follow(t.message)
		d.mu.Unlock()
		if stopping && grace == nil {
			cancelled = make(chan struct{})
			go func() {
				defer close(cancelled)
				<-sent
				_ = conn.Notify(acp.MethodCancel, acp.CancelParams{SessionID: prompt.SessionID})
			}()
			grace = time.After(cancelGrace)
		}
		select {
		case a := <-answered:
			if cancelled != nil { // a cancel that is still under way would end the next turn
				select {
				case <-cancelled:
				case <-grace:
					d.agent.stop()
				case <-ctx.Done():
				}
			}
			return d.ended(a.StopReason, a.err)
		case <-changed:
		case <-grace:
			d.agent.stop()
			return failedTurn("the agent did not stop when it was told to, and was ended")
		case <-idle:
			return ending{idle: true}
		case <-ctx.Done():
			return ending{}
		}
	}
}

// follow the user's wish to end the turn of a message; d.mu is held. It says whether the turn is to
// end.
func (d *Driver) follow(message int) bool {
	if wish := d.history.ends(message); d.stopped == nil && wish != "" {
		d.stopped = &stop{state: wish}
	}
	return d.stopped != nil || d.broken != nil
}

func (d *Driver) stopping(t task) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.follow(t.message)
}

// errorIDs are what clients know an error of the model by.
var errorIDs = map[string]string{
	"authentication": "STATUS$ERROR_LLM_AUTHENTICATION", "model_not_found": "STATUS$ERROR_LLM_MODEL_NOT_FOUND",
	"rate_limit": "STATUS$ERROR_LLM_RATE_LIMIT",
	"context":    "STATUS$ERROR_LLM_CONTEXT_WINDOW", "network": "STATUS$ERROR_LLM_SERVICE_UNAVAILABLE",
	"provider": "STATUS$ERROR_LLM_INTERNAL_SERVER_ERROR",
}

// ended is how the agent says that its turn ended.
func (d *Driver) ended(reason acp.StopReason, err error) ending {
	var told *acp.Error
	switch {
	case errors.As(err, &told):
		end := failedTurn(told.Error())
		if told.Data != nil {
			end.id = errorIDs[told.Data.Kind]
		}
		return end
	case err != nil:
		return failedTurn(d.agent.whyGone())
	}
	switch reason {
	case acp.EndTurn, acp.Cancelled:
		return ending{state: session.StateAwaiting}
	case acp.MaxTokens:
		return failedTurn("the model's answer was longer than it may be")
	case acp.MaxTurns:
		return failedTurn("the agent reached its own limit of calls of the model")
	case acp.Refusal:
		return failedTurn("the agent refused to go on")
	}
	return failedTurn(fmt.Sprintf("the agent ended its turn for a reason that is not known here: %q", reason))
}

// busy keeps the session from being idle while a turn is worked on, but not while the user is
// asked; d.mu is held.
func (d *Driver) busy(busy bool) {
	switch {
	case busy && d.done == nil:
		d.done = d.Busy()
	case !busy && d.done != nil:
		d.done()
		d.done = nil
	}
}

// asks the user, or goes on with the turn, if that is still under way.
func (d *Driver) asksUser(asking bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.working {
		d.busy(!asking)
	}
}
