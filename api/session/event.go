package session

import (
	"encoding/json"
	"time"
)

// Event is an event of a session: an action, or an observation, which may be the result of an
// action. OpenHands clients, the journal, the trajectory and replays use this format.
type Event struct {
	// ID counts from 0, without gaps.
	ID        int    `json:"id"`
	Timestamp string `json:"timestamp"`
	Source    Source `json:"source"`
	// Message is a one-line summary.
	Message string `json:"message"`

	// Action is the kind of action, and Args are its arguments. Both are empty in an observation.
	Action string         `json:"action,omitempty"`
	Args   map[string]any `json:"args,omitempty"`

	// Observation is the kind of observation, Cause is the ID of the event that caused it, and the
	// other fields are its data. All of them are empty in an action.
	Observation string         `json:"observation,omitempty"`
	Cause       *int           `json:"cause,omitempty"`
	Content     *string        `json:"content,omitempty"`
	Extras      map[string]any `json:"extras,omitempty"`
	Success     *bool          `json:"success,omitempty"`

	// ToolCall names the tool call of this event.
	ToolCall *ToolCall `json:"tool_call_metadata,omitempty"`
	// Meta contains data that only the runtime and Parley's own clients read.
	Meta *EventMeta `json:"_meta,omitempty"`
}

// ToolCall names a tool call.
type ToolCall struct {
	ID       string `json:"tool_call_id"`
	Function string `json:"function_name,omitempty"`
}

// EventMeta contains the data with which a later attempt continues the work of an earlier attempt.
type EventMeta struct {
	// Session is the ID of the agent's session that this event belongs to.
	Session string `json:"session,omitempty"`
	// Seq is the number that the agent gave the update; 0 if the agent does not number its updates.
	Seq int `json:"seq,omitempty"`
	// Turn is the event ID of a turn's message. Only the event that starts the turn has this field.
	Turn *int `json:"turn,omitempty"`
	// Key is a digest of the sender's idempotency key.
	Key string `json:"key,omitempty"`
	// Withdrawn is the event ID of a message whose turn could not start. The message waits for a
	// retry.
	Withdrawn *int `json:"withdrawn,omitempty"`
	// Delivered is the event ID of a message that reached the agent during a turn, and waits no longer.
	Delivered *int `json:"delivered,omitempty"`
	// ApprovedBy is the ID of the event with which the user approved all similar actions.
	ApprovedBy *int `json:"approved_by,omitempty"`
	// Revokes is the ID of the event with the approval that the user revokes.
	Revokes *int `json:"revokes,omitempty"`
	// Usage is the model's usage so far. A later attempt adds its own usage to this usage.
	Usage json.RawMessage `json:"usage,omitempty"`
}

// EventPage is a part of a session's events.
type EventPage struct {
	Events  []json.RawMessage `json:"events"`
	HasMore bool              `json:"has_more"`
}

// Source is the origin of an event.
type Source string

// The sources of events.
const (
	FromAgent       Source = "agent"
	FromUser        Source = "user"
	FromEnvironment Source = "environment"
)

// The kinds of actions.
const (
	ActionMessage     = "message"
	ActionSystem      = "system"
	ActionThink       = "think"
	ActionRun         = "run"
	ActionEdit        = "edit"
	ActionRead        = "read"
	ActionTool        = "call_tool_mcp"
	ActionChangeState = "change_agent_state"
	// ActionRevoke revokes the approval of all actions of a kind.
	ActionRevoke = "revoke_approval"
)

// Kinds of observations. Other observations are results of actions, and have the kinds of these
// actions, such as ActionRun.
const (
	ObservedState    = "agent_state_changed"
	ObservedTool     = "mcp"
	ObservedTasks    = "task_tracking"
	ObservedError    = "error"
	ObservedRejected = "user_rejected"
	// ObservedUpdate contains an agent's update of an unknown kind.
	ObservedUpdate = "agent_update"
	// ObservedNotice is a notice of the session to its user.
	ObservedNotice = "notice"
	// ObservedUsage is recorded at the end of an attempt if no earlier event contains the model's
	// latest usage. The usage is in Meta.Usage; the event has no other data.
	ObservedUsage = "usage"
)

// State is the state of a conversation's agent, as OpenHands clients know it.
type State string

// The states of an agent. Users can request StateRunning, StatePaused, StateConfirmed,
// StateRejected and StateStopped.
const (
	StateLoading      State = "loading"
	StateRunning      State = "running"
	StateAwaiting     State = "awaiting_user_input"
	StateConfirmation State = "awaiting_user_confirmation"
	StatePaused       State = "paused"
	StateFinished     State = "finished"
	StateError        State = "error"
	StateConfirmed    State = "user_confirmed"
	StateRejected     State = "user_rejected"
	StateStopped      State = "stopped"
)

// Timestamp formats the time of an event.
func Timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000") }

// StateChange returns the event for a new state of the agent.
func StateChange(state State, reason string) Event {
	return Event{
		Source: FromEnvironment, Observation: ObservedState, Content: new(string),
		Extras: map[string]any{"agent_state": string(state), "reason": reason},
	}
}

// StateOf returns the state in an ObservedState event; empty for other events.
func (e *Event) StateOf() State {
	if e.Observation != ObservedState {
		return ""
	}
	state, _ := e.Extras["agent_state"].(string)
	return State(state)
}

// UserMessage returns the event of a user's message.
func UserMessage(text string, images []string) Event {
	if images == nil {
		images = []string{}
	}
	return Event{
		Source: FromUser, Action: ActionMessage, Message: text,
		Args: map[string]any{"content": text, "image_urls": images, "wait_for_response": false},
	}
}

// IsUserMessage reports whether an event is a user's message.
func (e *Event) IsUserMessage() bool { return e.Action == ActionMessage && e.Source == FromUser }

// Text returns the text of a message.
func (e *Event) Text() string {
	text, _ := e.Args["content"].(string)
	return text
}

// ParseEvent reads a line of the journal.
func ParseEvent(line []byte) (Event, error) {
	var e Event
	err := json.Unmarshal(line, &e)
	return e, err
}
