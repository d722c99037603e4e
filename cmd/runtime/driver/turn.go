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

// cancelGrace is how long an agent may take to end a cancelled turn.
const cancelGrace = 15 * time.Second

type ending struct {
	state session.State
	// reason says why the turn failed. id is one of errorIDs, or empty.
	reason string
	id     string
	// notStarted is set if the agent could not be started. The message of a new turn then waits again,
	// and the field withdrawn is the event ID of this message. For a resumed turn, the field is nil.
	notStarted bool
	withdrawn  *int
	// idle is set if the user did not answer the agent's question in time.
	idle bool
}

func failedTurn(reason string) ending { return ending{state: session.StateError, reason: reason} }

func (e ending) termination(d *Driver) *session.Termination {
	name := d.Doc.Agent.Name
	switch e.state {
	case session.StateFinished, session.StateAwaiting:
		return &session.Termination{Reason: v1alpha1.ReasonCompleted, Message: fmt.Sprintf("the agent %s has finished", name)}
	case session.StateError:
		return failure(e.reason)
	}
	return failure(fmt.Sprintf("the agent %s was stopped", name))
}

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
		d.wakePreviews()
	}()
	memory := process.WatchMemory(d.Cgroups)
	var end ending
	if d.command() {
		end = d.runCommand(ctx, t)
	} else {
		end = d.converse(ctx, t)
	}
	if ctx.Err() != nil || end.idle {
		return end // the turn is unfinished; a later attempt resumes it
	}
	if end.state == session.StateError && memory.RanOut() {
		end.reason += "; memory ran out, and the kernel killed a process of the session (" + session.OOMKilled + ")"
	}
	d.recordEnd(&end)
	// EndTurn forgets the usage of the turn, so it is called after the end of the turn is recorded.
	// If EndTurn came first and the runtime then crashed, the resumed turn would get its whole
	// budget again.
	if err := d.Model.EndTurn(); err != nil {
		d.Log.Error("recording the end of a turn failed", "error", err)
	}
	return end
}

func (d *Driver) recordEnd(end *ending) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		*end = ending{state: d.stopped.state, reason: d.stopped.reason}
	}
	failure := d.texts.observed(session.ObservedError, end.reason)
	end.reason = *failure.Content
	events := d.translator.flush()
	ended := end.state == session.StateAwaiting || end.state == session.StateFinished
	events = append(events, d.closeActions(stoppedAction, func(id string) bool {
		return ended && d.translator.calls[id] != nil // the agent may report the result in its next turn
	})...)
	if end.state == session.StateError {
		d.Log.Error("the agent's turn failed", "reason", shortened(end.reason, maxLogged))
		failure.Extras = map[string]any{extraErrorID: end.id}
		if end.notStarted {
			failure.Extras[extraNotStarted] = true
		}
		events = append(events, failure)
	}
	// A one-shot session is finished after its turn, unless a message waits. This message can only be
	// the user's reason for rejecting an action. The agent must still read this reason.
	if end.state == session.StateAwaiting && d.Doc.OneShot && len(d.history.waiting) == 0 {
		end.state = session.StateFinished
	}
	last := session.StateChange(end.state, end.reason)
	if end.withdrawn != nil {
		last.Meta = &session.EventMeta{Withdrawn: end.withdrawn}
	}
	_ = d.record(append(events, last)...) // Run checks d.broken
}

// converse runs a turn with an agent that speaks ACP.
func (d *Driver) converse(ctx context.Context, t task) ending {
	if t.resumed && d.stopping(t) {
		return d.stoppedUnprompted(t)
	}
	d.setup(ctx, t)
	if d.stopping(t) {
		return d.stoppedUnprompted(t)
	}
	d.refreshModel(ctx)
	if err := d.ensureAgent(ctx); err != nil {
		return d.startFailed(ctx, t, err)
	}
	if d.stopping(t) {
		return d.stoppedUnprompted(t)
	}
	if err := d.beginTurn(t); err != nil {
		return failedTurn(err.Error())
	}
	prompt, err := d.prompt(ctx, t)
	if err != nil {
		return failedTurn(err.Error())
	}
	d.archive(ctx)
	return d.promptAgent(ctx, t, prompt)
}

// stoppedUnprompted ends a turn that the user stopped before the agent received the prompt. The
// agent gets its instructions with the first prompt of an ACP session. If this turn counted as the
// first turn of a new ACP session, the agent would never get the instructions. The turn is
// therefore recorded with the ACP session of the previous turn.
func (d *Driver) stoppedUnprompted(t task) ending {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.resumed {
		_ = d.record(turnEvent(t.message, d.history.session)) // Run checks d.broken
	}
	return failedTurn("the turn was stopped before the agent received the message")
}

// startFailed ends a turn whose agent could not be started. The message of a new turn waits for a
// retry; the message of a resumed turn does not.
func (d *Driver) startFailed(ctx context.Context, t task, err error) ending {
	switch {
	case ctx.Err() != nil:
		return ending{}
	case d.stopping(t):
		return d.stoppedUnprompted(t)
	}
	end := failedTurn(fmt.Sprintf("the agent %s cannot be started: %v", d.Doc.Agent.Name, err))
	end.notStarted = true
	if !t.resumed {
		end.withdrawn = &t.message
	}
	return end
}

func turnEvent(message int, in string) session.Event {
	event := session.StateChange(session.StateRunning, "")
	event.Meta = &session.EventMeta{Turn: &message, Session: in}
	return event
}

func (d *Driver) beginTurn(t task) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.resumed {
		d.translator.begin()
	}
	var events []session.Event
	if d.history.retrying { // the earlier attempt ended while its agent waited for a retry
		events = append(events, session.StateChange(session.StateRunning, ""))
	}
	if t.resumed && !d.agent.remembers() {
		// Record a result for each unfinished action, because the agent will not report the results
		// of actions from before the restart.
		events = append(events, d.closeActions(restartedAction, func(id string) bool {
			_, answered := d.history.answers[id]
			return answered // stays open: the agent may request approval for the same call again
		})...)
	}
	if !d.agent.remembers() || !d.confirms() { // the question is not asked again
		events = append(events, d.endQuestion(d.history.asked)...)
	}
	if err := d.record(events...); err != nil {
		return err
	}
	if !t.resumed || d.history.session != d.agent.session {
		// A turn that resumes in a new ACP session is recorded again, with the new session ID.
		if err := d.record(turnEvent(t.message, d.agent.session)); err != nil {
			return err
		}
	}
	if text := d.instructions(); text != "" && d.history.sessionTurns == 1 && !d.history.instructed {
		event := session.Event{Source: session.FromAgent, Action: session.ActionSystem, Message: text,
			Args: map[string]any{"content": text}}
		if err := d.record(event); err != nil {
			return err
		}
	}
	if err := d.Model.BeginTurn(strconv.Itoa(t.message)); err != nil {
		return fmt.Errorf("record the turn: %w", err)
	}
	return nil
}

// promptAgent sends the prompt and waits for the end of the turn. A write blocks if the agent does
// not read, so goroutines do the writing. The cancel notification is sent after the prompt, because
// a notification before the prompt has no effect.
func (d *Driver) promptAgent(ctx context.Context, t task, prompt acp.PromptParams) ending {
	call, cancel := context.WithCancel(context.Background())
	defer cancel()
	type answer struct {
		acp.PromptResult
		err error
	}
	agent := d.agent
	answered, sent := make(chan answer, 1), make(chan struct{})
	go func() {
		var a answer
		request, err := agent.conn.Send(acp.MethodPrompt, prompt)
		close(sent)
		if a.err = err; err == nil {
			go d.steer(call, t, agent)
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
		stopping := d.mustStop(t.message)
		d.mu.Unlock()
		if stopping && grace == nil {
			cancelled = make(chan struct{})
			go func() {
				defer close(cancelled)
				<-sent
				_ = agent.conn.Notify(acp.MethodCancel, acp.CancelParams{SessionID: prompt.SessionID})
			}()
			grace = time.After(cancelGrace)
		}
		select {
		case a := <-answered:
			if cancelled != nil { // a late cancel would end the next turn
				select {
				case <-cancelled:
				case <-grace:
					d.agent.stop()
				case <-ctx.Done():
				}
			}
			return d.endingOf(a.StopReason, a.err)
		case <-changed:
		case <-grace:
			d.agent.stop()
			return failedTurn("the agent was terminated, because it did not stop after a cancel request")
		case <-idle:
			return ending{idle: true}
		case <-ctx.Done():
			return ending{}
		}
	}
}

// mustStop reports whether the message's turn must end. If the user requested the end, it sets
// d.stopped. d.mu is held.
func (d *Driver) mustStop(message int) bool {
	if state := d.history.requestedEnd(message); d.stopped == nil && state != "" {
		d.stopped = &stop{state: state}
	}
	return d.stopped != nil || d.broken != nil
}

func (d *Driver) stopping(t task) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mustStop(t.message)
}

// turnOver reports whether no turn is running or the current turn must end; d.mu is held.
func (d *Driver) turnOver() bool { return d.history.turn < 0 || d.mustStop(d.history.turn) }

// await waits until a condition is met or ctx ends. It evaluates the condition under d.mu after
// each event.
func (d *Driver) await(ctx context.Context, met func() bool) {
	for {
		d.mu.Lock()
		changed, done := d.changed, met()
		d.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// errorIDs are the OpenHands IDs for model errors.
var errorIDs = map[string]string{
	"authentication": "STATUS$ERROR_LLM_AUTHENTICATION", "model_not_found": "STATUS$ERROR_LLM_MODEL_NOT_FOUND",
	"rate_limit": "STATUS$ERROR_LLM_RATE_LIMIT",
	"context":    "STATUS$ERROR_LLM_CONTEXT_WINDOW", "network": "STATUS$ERROR_LLM_SERVICE_UNAVAILABLE",
	"provider": "STATUS$ERROR_LLM_INTERNAL_SERVER_ERROR",
}

func (d *Driver) endingOf(reason acp.StopReason, err error) ending {
	var answer *acp.Error
	switch {
	case errors.As(err, &answer):
		end := failedTurn(answer.Error())
		if answer.Data != nil {
			end.id = errorIDs[answer.Data.Kind]
		}
		return end
	case err != nil:
		return failedTurn(d.agent.exitReason())
	}
	switch reason {
	case acp.EndTurn, acp.Cancelled:
		return ending{state: session.StateAwaiting}
	case acp.MaxTokens:
		return failedTurn("the model's answer exceeded its token limit")
	case acp.MaxTurns:
		return failedTurn("the agent reached its own limit of model calls")
	case acp.Refusal:
		return failedTurn("the agent refused to continue")
	}
	return failedTurn(fmt.Sprintf("the agent ended its turn with an unknown stop reason: %q", reason))
}

// busy(true) keeps the session from becoming idle, until busy(false) is called; d.mu is held.
func (d *Driver) busy(busy bool) {
	switch {
	case busy && d.done == nil:
		d.done = d.Busy()
	case !busy && d.done != nil:
		d.done()
		d.done = nil
	}
}

// waitForUser lets the session become idle if asking is set: the agent then waits for the user's
// answer.
func (d *Driver) waitForUser(asking bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.working {
		d.busy(!asking)
	}
}
