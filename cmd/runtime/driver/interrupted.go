package driver

import (
	"maps"
	"slices"

	"github.com/parley-dev/parley/api/session"
)

// extraInterrupted is a field in the result of an action that did not run to its end.
const extraInterrupted = "interrupted"

// If the agent did not report the result of an action, the runtime records one of these results.
const (
	stoppedAction   = "[The turn ended before this action ended. The action may be partly done.]"
	restartedAction = "[The session was restarted during this action. The action may be partly done.]"
	unansweredCall  = "[The turn ended before this action was approved. It was not done.]"
)

// notRepeated is the error for the first message if the record of earlier work is lost.
const notRepeated = "An earlier attempt of this session may have worked on this message, and the record of its work " +
	"is lost. The agent did not work on the message again. Check for finished work, such as pushed commits, before you " +
	"send the message again."

// refuseRepetition records the first message and a failed turn for it. Later attempts therefore do
// not work on the message either. d.mu is held.
func (d *Driver) refuseRepetition(first session.Event) error {
	turn := turnEvent(d.Journal.Len(), "")
	events, err := d.Journal.Append(first, turn, d.texts.observed(session.ObservedError, notRepeated),
		session.StateChange(session.StateError, notRepeated))
	for i := range events {
		d.history.fold(&events[i])
	}
	if d.Doc.OneShot || d.command() {
		d.Ended = failure(notRepeated)
	}
	return err
}

// closeActions returns a result event for each action of the turn that has no result. Otherwise,
// clients would show the action as running forever. d.mu is held.
func (d *Driver) closeActions(result string, except func(id string) bool) (events []session.Event) {
	h := d.history
	calls := slices.SortedFunc(maps.Keys(h.actions), func(a, b string) int { return h.actions[a] - h.actions[b] })
	for _, id := range calls {
		if h.observed[id] || except(id) {
			continue
		}
		action, err := d.event(h.actions[id])
		if err != nil {
			d.Log.Warn("an unfinished action cannot be read", "error", err)
			continue
		}
		text := result
		if h.asked == id {
			text = unansweredCall
		}
		events = append(events, interruptedAction(action, text))
		if c := d.translator.calls[id]; c != nil {
			c.observed = true
		}
	}
	return events
}

func interruptedAction(action *session.Event, text string) session.Event {
	failed := false
	e := session.Event{Source: action.Source, Observation: action.Action, Message: text, Content: &text, Success: &failed,
		Extras: map[string]any{extraInterrupted: true}, ToolCall: action.ToolCall}
	switch action.Action {
	case session.ActionRun:
		e.Extras[argCommand] = action.Args[argCommand]
		e.Extras["metadata"] = map[string]any{"exit_code": exitInterrupted}
	case session.ActionTool:
		e.Observation = session.ObservedTool
		e.Extras["name"], e.Extras["arguments"] = action.Args["name"], action.Args["arguments"]
	case session.ActionRead, session.ActionEdit:
		e.Extras["path"] = action.Args["path"]
	}
	return e
}
