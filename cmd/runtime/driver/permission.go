package driver

import (
	"context"
	"encoding/json"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// AnalyzerLLM lets the agent rate the risk of its actions.
const AnalyzerLLM = "llm"

// Values of an action's confirmation_state.
const (
	awaitingConfirmation = "awaiting_confirmation"
	confirmed            = "confirmed"
)

// needsConfirmation reports whether an action waits for the user in confirmation mode. An action
// without a rating may have any risk.
func (d *Driver) needsConfirmation(c *call) bool {
	risk := c.risk()
	return ptr.Deref(d.Doc.Settings.SecurityAnalyzer, "") != AnalyzerLLM || risk != "LOW" && risk != "MEDIUM"
}

// permission answers the agent's request for permission, at once or when the user has answered.
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
	update := &request.ToolCall.toolCall
	if update.ID == "" {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "the tool call has no toolCallId"}
	}
	if d.confirms() && !acp.Offers(request.Options, acp.AllowOnce) {
		d.Notice("The agent " + d.Doc.Agent.Name + " offered only a permanent permission for an action, so the action was " +
			"rejected: " + d.texts.line(update.Title))
		return acp.Choose(request.Options, acp.RejectOnce, acp.RejectAlways), nil
	}
	// Clients show one question at a time.
	d.asking.Lock()
	defer d.asking.Unlock()

	d.mu.Lock()
	known := d.translator.merge(update, request.ToolCall.Content)
	question := known.digest()
	d.restoreRecorded(known, question)
	confirmation, waits := "", false
	switch {
	case d.confirms() && d.needsConfirmation(known):
		confirmation, waits = awaitingConfirmation, true
	case d.confirms():
		confirmation = confirmed
	}
	events := d.translator.asked(known, confirmation)
	if waits && !d.history.knows(update.ID, question) {
		ask := session.StateChange(session.StateConfirmation, "")
		ask.ToolCall = &session.ToolCall{ID: update.ID}
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
	return d.answer(ctx, update.ID, question, request.Options)
}

// restoreRecorded sets a call's flags from the history; d.mu is held. A call is a new action if the
// agent reuses the ID of a finished call, or of a call with another question: the user must see the
// action that the answer is about.
func (d *Driver) restoreRecorded(c *call, question string) {
	_, recorded := d.history.actions[c.ID]
	before, asked := d.history.questions[c.ID]
	_, answered := d.history.answers[c.ID]
	done := c.observed || d.history.observed[c.ID] && !answered // in this attempt or an earlier one
	anew := done || asked && before != question
	c.started = recorded && !anew // possibly by an earlier attempt
	if anew {
		c.observed, c.Status = false, ""
	}
}

// confirms reports whether confirmation mode is on.
func (d *Driver) confirms() bool { return ptr.Deref(d.Doc.Settings.ConfirmationMode, false) }

// allow grants a permission. In confirmation mode, the permission is for one call only.
func (d *Driver) allow(options []acp.PermissionOption) acp.PermissionResult {
	if d.confirms() {
		return acp.Choose(options, acp.AllowOnce, acp.AllowOnce)
	}
	return acp.Choose(options, acp.AllowOnce, acp.AllowAlways)
}

// answer waits for the user's answer to a question. The session may become idle meanwhile.
func (d *Driver) answer(ctx context.Context, id, question string, options []acp.PermissionOption) (any, error) {
	d.waitForUser(true)
	defer d.waitForUser(false)
	for {
		d.mu.Lock()
		changed := d.changed
		answer, answered := d.history.answers[id]
		cancelled := d.stopped != nil || d.history.turn < 0
		d.mu.Unlock()
		switch {
		case answered && answer.question == question:
			return d.applyAnswer(id, answer.said, options)
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

// applyAnswer records the user's answer and returns the option to choose.
func (d *Driver) applyAnswer(id string, said session.State, options []acp.PermissionOption) (any, error) {
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
