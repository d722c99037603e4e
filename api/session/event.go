package session

import (
	"encoding/json"
	"time"
)

// Event is one thing that happened in a session: something that was done or is to be done (an
// action), or what came of it (an observation). Clients of the existing service know this form; it
// is that of the journal, of the trajectory and of a replay.
type Event struct {
	// ID counts from 0, without gaps.
	ID        int    `json:"id"`
	Timestamp string `json:"timestamp"`
	Source    Source `json:"source"`
	// Message is one line for people.
	Message string `json:"message"`

	// Action and its Args; empty in an observation.
	Action string         `json:"action,omitempty"`
	Args   map[string]any `json:"args,omitempty"`

	// Observation, the event that it came of, and what was observed; empty in an action.
	Observation string         `json:"observation,omitempty"`
	Cause       *int           `json:"cause,omitempty"`
	Content     *string        `json:"content,omitempty"`
	Extras      map[string]any `json:"extras,omitempty"`
	Success     *bool          `json:"success,omitempty"`

	// ToolCall names the call of a tool that this event is of.
	ToolCall *ToolCall `json:"tool_call_metadata,omitempty"`
	// Meta is the runtime's own, and means nothing to clients but Parley's own.
	Meta *EventMeta `json:"_meta,omitempty"`
}

// ToolCall names a call of a tool.
type ToolCall struct {
	ID       string `json:"tool_call_id"`
	Function string `json:"function_name,omitempty"`
}

// EventMeta is by what a later attempt knows how far an earlier one came.
type EventMeta struct {
	// Session of the agent that this event is of.
	Session string `json:"session,omitempty"`
	// Seq is the agent's own count of what it told, where it counts.
	Seq int `json:"seq,omitempty"`
	// Turn is the message that a turn began with, in the event that begins it.
	Turn *int `json:"turn,omitempty"`
	// Key is a digest of the key that whoever sent the event gave it.
	Key string `json:"key,omitempty"`
	// Withdrawn is the message of a turn that could not begin. It waits for another try.
	Withdrawn *int `json:"withdrawn,omitempty"`
}

// EventPage is a part of a session's events.
type EventPage struct {
	Events  []json.RawMessage `json:"events"`
	HasMore bool              `json:"has_more"`
}

// Source is who an event comes from.
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
)

// The kinds of observations that are not named as their actions are.
const (
	ObservedState    = "agent_state_changed"
	ObservedTool     = "mcp"
	ObservedTasks    = "task_tracking"
	ObservedError    = "error"
	ObservedRejected = "user_rejected"
	// ObservedUpdate holds what an agent told in a form that is not known here.
	ObservedUpdate = "agent_update"
	// ObservedNotice is a word of the session itself to its user.
	ObservedNotice = "notice"
)

// State of a conversation's agent, as clients know it.
type State string

// The states. The last three are what users ask for, beside Paused and Running.
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

// Timestamp of an event at this time.
func Timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000") }

// StateChange is the event that an agent's state changed, and why.
func StateChange(state State, reason string) Event {
	return Event{
		Source: FromEnvironment, Observation: ObservedState, Content: new(string),
		Extras: map[string]any{"agent_state": string(state), "reason": reason},
	}
}

// StateOf is the state that an event says; empty where it is of another kind.
func (e *Event) StateOf() State {
	if e.Observation != ObservedState {
		return ""
	}
	state, _ := e.Extras["agent_state"].(string)
	return State(state)
}

// UserMessage is what a user said.
func UserMessage(text string, images []string) Event {
	if images == nil {
		images = []string{}
	}
	return Event{
		Source: FromUser, Action: ActionMessage, Message: text,
		Args: map[string]any{"content": text, "image_urls": images, "wait_for_response": false},
	}
}

// IsUserMessage says whether an event is what a user said.
func (e *Event) IsUserMessage() bool { return e.Action == ActionMessage && e.Source == FromUser }

// Text of a message.
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
