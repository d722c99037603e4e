package driver

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// AnalyzerLLM is the security analyzer with which the agent rates the risk of its actions.
const AnalyzerLLM = "llm"

// An action's confirmation_state has one of these values.
const (
	awaitingConfirmation = "awaiting_confirmation"
	confirmed            = "confirmed"
)

// needsConfirmation reports whether an action must wait for the user in confirmation mode. An
// action without a rating counts as risky.
func (d *Driver) needsConfirmation(c *call) bool {
	risk := c.risk()
	return ptr.Deref(d.Doc.Settings.SecurityAnalyzer, "") != AnalyzerLLM || risk != "LOW" && risk != "MEDIUM"
}

// permission answers the agent's request for permission. If the user must decide, it waits for the
// user's answer.
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
	// Clients can show only one question at a time.
	d.asking.Lock()
	defer d.asking.Unlock()

	d.mu.Lock()
	if d.turnOver() {
		d.mu.Unlock()
		return acp.Dismissed(), nil
	}
	known := d.translator.merge(update, request.ToolCall.Content)
	question := known.digest()
	d.restoreRecorded(known, question)
	rule, label := d.ruleOf(known)
	approval, approved := d.history.approvals[rule]
	answered := d.history.answers[update.ID].question == question // possibly in an earlier attempt
	waits := answered || d.confirms() && !approved && d.needsConfirmation(known)
	confirmation := ""
	switch {
	case waits:
		confirmation = awaitingConfirmation
	case d.confirms():
		confirmation = confirmed
	}
	err := d.record(d.translator.asked(known, confirmation)...)
	switch {
	case err != nil, waits && d.history.knows(update.ID, question):
	case waits:
		ask := session.StateChange(session.StateConfirmation, "")
		ask.ToolCall = &session.ToolCall{ID: update.ID}
		ask.Extras[extraQuestion] = question
		if rule != "" {
			ask.Extras[extraRule], ask.Extras[argRemember] = rule, label
		}
		if known.incomplete {
			ask.Extras["incomplete"] = true
		}
		err = d.record(ask)
	case approved && d.confirms():
		err = d.record(d.approvedEarlier(update.ID, label, approval))
	default: // an earlier attempt with other settings may have asked this question
		err = d.record(d.endQuestion(update.ID)...)
	}
	d.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case !waits:
		return d.allow(request.Options), nil
	}
	return d.answer(ctx, update.ID, question, request.Options)
}

// approvedEarlier returns the notice for an action that an earlier approval covers.
func (d *Driver) approvedEarlier(id, label string, approval int) session.Event {
	notice := d.texts.observed(session.ObservedNotice, "Approved without a question: you approved "+label+".")
	if action, known := d.history.actions[id]; known {
		notice.Cause = &action
	}
	notice.Meta = &session.EventMeta{ApprovedBy: &approval}
	return notice
}

// restoreRecorded decides whether a call repeats an action of the history or is a new action, and
// sets the flags of the call. Agents may reuse IDs, so a call is new if an earlier call with its ID
// has finished. In confirmation mode, a call is also new if it differs from the action that the
// user saw. A new action gets its own event, so that the user sees it. d.mu is held.
func (d *Driver) restoreRecorded(c *call, question string) {
	_, recorded := d.history.actions[c.ID]
	before, asked := d.history.questions[c.ID]
	_, answered := d.history.answers[c.ID]
	done := c.observed || d.history.observed[c.ID] && !answered // in this attempt or an earlier one
	shown := c.shown == c.display() || asked && before == question
	anew := done || d.confirms() && !shown
	c.started = recorded && !anew // possibly recorded by an earlier attempt
	if anew {
		c.observed, c.Status = false, ""
	}
}

func (d *Driver) confirms() bool { return ptr.Deref(d.Doc.Settings.ConfirmationMode, false) }

// allow grants permission. In confirmation mode, it grants permission for one call only.
func (d *Driver) allow(options []acp.PermissionOption) acp.PermissionResult {
	if d.confirms() {
		return acp.Choose(options, acp.AllowOnce, acp.AllowOnce)
	}
	return acp.Choose(options, acp.AllowOnce, acp.AllowAlways)
}

// answer waits for the user's answer to a question. While it waits, the session may become idle.
func (d *Driver) answer(ctx context.Context, id, question string, options []acp.PermissionOption) (any, error) {
	d.waitForUser(true)
	defer d.waitForUser(false)
	var choice any = acp.Dismissed()
	var err error
	d.await(ctx, func() bool {
		answer, answered := d.history.answers[id]
		switch {
		case d.turnOver():
		case answered && answer.question == question:
			choice, err = d.applyAnswer(id, answer, options)
		default:
			return false
		}
		return true
	})
	return choice, err
}

// applyAnswer records the user's answer and returns the agent's option that matches the answer.
// d.mu is held.
func (d *Driver) applyAnswer(id string, answer answer, options []acp.PermissionOption) (any, error) {
	choice := d.allow(options)
	if answer.said == session.StateRejected {
		choice = acp.Choose(options, acp.RejectOnce, acp.RejectAlways)
		if answer.reason != "" {
			choice.Meta = acp.Meta{acp.MetaReason: answer.reason}
		}
	}
	return choice, d.record(d.endQuestion(id)...)
}

// endQuestion returns the events that end the pending question about a call, including the user's
// answer. If the agent does not support reasons for rejections, the reason becomes the user's next
// message. A rejection or message that an earlier attempt recorded is left out. d.mu is held.
func (d *Driver) endQuestion(id string) (events []session.Event) {
	if id == "" || id != d.history.asked {
		return nil
	}
	given := d.history.answers[id]
	if given.question == d.history.questions[id] {
		events = append(events, session.StateChange(given.said, ""))
		if given.said == session.StateRejected {
			events = append(events, d.rejection(id, given.reason)...)
		}
	}
	return append(events, session.StateChange(session.StateRunning, ""))
}

func (d *Driver) rejection(id, reason string) (events []session.Event) {
	text, key := "The user rejected this action.", fmt.Sprint("reason for ", d.history.question.id)
	if reason != "" {
		text = "The user rejected this action: " + reason
	}
	if !d.history.rejected[id] {
		events = append(events, session.Event{
			Source: session.FromUser, Observation: session.ObservedRejected, Message: d.texts.line(text), Content: &text,
			ToolCall: &session.ToolCall{ID: id},
		})
	}
	if reason != "" && !d.agent.can.ReadsReasons() && !d.history.keys[digestOf(key)] {
		events = append(events, keyed(session.UserMessage(reason, nil), key))
	}
	return events
}
