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

// asks says whether an action waits for the user.
func (d *Driver) asks(c *call) bool {
	settings := &d.Doc.Settings
	if !ptr.Deref(settings.ConfirmationMode, false) {
		return false
	}
	if ptr.Deref(settings.SecurityAnalyzer, "") != AnalyzerLLM {
		return true
	}
	// What an agent does not rate may be anything.
	risk := c.risk()
	return risk != "LOW" && risk != "MEDIUM"
}

// permission answers an agent that asks whether it may do something: at once, or when the user has.
func (d *Driver) permission(ctx context.Context, params json.RawMessage) (any, error) {
	var request struct {
		ToolCall json.RawMessage        `json:"toolCall"`
		Options  []acp.PermissionOption `json:"options"`
	}
	if err := json.Unmarshal(params, &request); err != nil {
		return nil, err
	}
	var told toolCall
	var content struct {
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(request.ToolCall, &told); err != nil {
		return nil, err
	}
	_ = json.Unmarshal(request.ToolCall, &content) // it is an object: the line before says so
	// One question at a time: a client shows one.
	d.asking.Lock()
	defer d.asking.Unlock()

	d.mu.Lock()
	confirmation := ""
	if ptr.Deref(d.Doc.Settings.ConfirmationMode, false) {
		confirmation = confirmed
	}
	known := d.translator.known(&told, content.Content)
	waits := d.asks(known)
	if waits {
		confirmation = awaitingConfirmation
	}
	if _, recorded := d.history.actions[told.ID]; recorded {
		known.started = true // by an earlier attempt
	}
	_, events := d.translator.asked(&told, content.Content, confirmation)
	if waits && d.history.asked != told.ID {
		question := session.StateChange(session.StateConfirmation, "")
		question.ToolCall = &session.ToolCall{ID: told.ID}
		events = append(events, question)
	}
	err := d.record(events...)
	d.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case !waits:
		return acp.Choose(request.Options, acp.AllowOnce, acp.AllowAlways), nil
	}
	return d.answer(ctx, told.ID, request.Options)
}

// answer of the user to a question, once there is one. Until then nothing keeps the session from
// being idle.
func (d *Driver) answer(ctx context.Context, id string, options []acp.PermissionOption) (any, error) {
	defer d.asksUser()()
	for {
		d.mu.Lock()
		changed := d.changed
		said := d.history.answers[id]
		cancelled := d.stopped != nil || d.history.turn < 0
		d.mu.Unlock()
		switch {
		case said != "":
			return d.follows(id, said, options)
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
	choice := acp.Choose(options, acp.AllowOnce, acp.AllowAlways)
	if said == session.StateRejected {
		choice = acp.Choose(options, acp.RejectOnce, acp.RejectAlways)
		text := "The user rejected this action."
		events = append(events, session.Event{
			Source: session.FromUser, Observation: session.ObservedRejected, Message: text, Content: &text, ToolCall: &session.ToolCall{ID: id},
		})
	}
	if d.history.state == session.StateRunning {
		return choice, nil // an earlier attempt recorded it
	}
	return choice, d.record(append(events, session.StateChange(session.StateRunning, ""))...)
}
