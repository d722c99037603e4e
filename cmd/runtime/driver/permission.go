package driver

import (
	"context"
	"encoding/json"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// AnalyzerLLM has the agent rate what it is about to do.
const AnalyzerLLM = "llm"

// What an action says of whether it may be done.
const (
	awaitingConfirmation = "awaiting_confirmation"
	confirmed            = "confirmed"
)

// asks says whether an action waits for a user who wants to be asked.
func (d *Driver) asks(c *call) bool {
	// What an agent does not rate may be anything.
	risk := c.risk()
	return ptr.Deref(d.Doc.Settings.SecurityAnalyzer, "") != AnalyzerLLM || risk != "LOW" && risk != "MEDIUM"
}

// permission answers an agent that asks whether it may do something: at once, or when the user has.
func (d *Driver) permission(ctx context.Context, params json.RawMessage) (any, error) {
	var request struct {
		ToolCall struct {
			toolCall
			Content json.RawMessage `json:"content"`
		} `json:"toolCall"`
		Options []acp.PermissionOption `json:"options"`
	}
	if err := json.Unmarshal(params, &request); err != nil {
		return nil, err
	}
	told := &request.ToolCall.toolCall
	if told.ID == "" {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "the call of the tool has no toolCallId"}
	}
	if d.confirms() && !acp.Offers(request.Options, acp.AllowOnce) {
		d.Notice("The agent " + d.Doc.Agent.Name + " asked for something that could only be allowed for good, and was " +
			"refused: " + d.texts.line(told.Title))
		return acp.Choose(request.Options, acp.RejectOnce, acp.RejectAlways), nil
	}
	// One question at a time: a client shows one.
	d.asking.Lock()
	defer d.asking.Unlock()

	d.mu.Lock()
	known := d.translator.known(told, request.ToolCall.Content)
	question := known.digest()
	d.recall(known, question)
	confirmation, waits := "", false
	switch {
	case d.confirms() && d.asks(known):
		confirmation, waits = awaitingConfirmation, true
	case d.confirms():
		confirmation = confirmed
	}
	events := d.translator.asked(known, confirmation)
	if waits && !d.history.knows(told.ID, question) {
		ask := session.StateChange(session.StateConfirmation, "")
		ask.ToolCall = &session.ToolCall{ID: told.ID}
		ask.Extras[extraQuestion] = question
		events = append(events, ask)
	}
	err := d.record(events...)
	d.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case !waits:
		return d.allow(request.Options), nil
	}
	return d.answer(ctx, told.ID, question, request.Options)
}

// recall what is on record of a call that the agent asks about; d.mu is held. What was asked about
// is an action of its own where the agent gives its name to something else, or to the same once
// more: a user who answers must see what the answer is about.
func (d *Driver) recall(c *call, question string) {
	_, recorded := d.history.actions[c.ID]
	before, asked := d.history.questions[c.ID]
	_, answered := d.history.answers[c.ID]
	done := c.observed || d.history.observed[c.ID] && !answered // in this attempt, or in an earlier one
	anew := done || asked && before != question
	c.started = recorded && !anew // also by an earlier attempt
	if anew {
		c.observed, c.Status = false, ""
	}
}

// confirms says whether the user wants to be asked.
func (d *Driver) confirms() bool { return ptr.Deref(d.Doc.Settings.ConfirmationMode, false) }

// allow what is asked for. A user who is asked each time allows just that.
func (d *Driver) allow(options []acp.PermissionOption) acp.PermissionResult {
	if d.confirms() {
		return acp.Choose(options, acp.AllowOnce, acp.AllowOnce)
	}
	return acp.Choose(options, acp.AllowOnce, acp.AllowAlways)
}

// answer of the user to a question, once there is one. Until then nothing keeps the session from
// being idle.
func (d *Driver) answer(ctx context.Context, id, question string, options []acp.PermissionOption) (any, error) {
	d.asksUser(true)
	defer d.asksUser(false)
	for {
		d.mu.Lock()
		changed := d.changed
		answer, answered := d.history.answers[id]
		cancelled := d.stopped != nil || d.history.turn < 0
		d.mu.Unlock()
		switch {
		case answered && answer.question == question:
			return d.follows(id, answer.said, options)
		case cancelled:
			return acp.Dismissed(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return acp.Dismissed(), nil
		}
	}
}

// follows the answer of the user.
func (d *Driver) follows(id string, said session.State, options []acp.PermissionOption) (any, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	events := []session.Event{session.StateChange(said, "")}
	choice := d.allow(options)
	if said == session.StateRejected {
		choice = acp.Choose(options, acp.RejectOnce, acp.RejectAlways)
		text := "The user rejected this action."
		events = append(events, session.Event{
			Source: session.FromUser, Observation: session.ObservedRejected, Message: text, Content: &text,
			ToolCall: &session.ToolCall{ID: id},
		})
	}
	if d.history.state == session.StateRunning {
		return choice, nil // an earlier attempt recorded it
	}
	return choice, d.record(append(events, session.StateChange(session.StateRunning, ""))...)
}
