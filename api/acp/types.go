package acp

import (
	"encoding/json"
	"slices"
	"time"
)

// Methods of the protocol that are used here.
const (
	MethodInitialize        = "initialize"
	MethodAuthenticate      = "authenticate"
	MethodNewSession        = "session/new"
	MethodLoadSession       = "session/load"
	MethodResumeSession     = "session/resume"
	MethodPrompt            = "session/prompt"
	MethodCancel            = "session/cancel"
	MethodUpdate            = "session/update"
	MethodRequestPermission = "session/request_permission"
	// MethodSteer is an extension of Parley: a notification with a message of the user for the
	// running turn. Its parameters are PromptParams, whose Meta contains MetaTurn and MetaMessage.
	MethodSteer = "_parley.dev/steer"
)

// Version is the version of the protocol that is used here.
const Version = 1

// Keys of _meta that Parley defines.
const (
	// MetaExactReplay is a capability: session/load replays all updates of the session unchanged.
	MetaExactReplay = "parley.dev/exactReplay"
	// MetaSeq numbers the updates of a session from 1 without gaps. A replayed update has the same
	// number.
	MetaSeq = "parley.dev/seq"
	// MetaPartial marks an update that contains a part of an unfinished message, or the output of a
	// running command so far. Such an update has no number and is not replayed, because an update
	// with the complete message or output follows. An empty part discards the earlier parts of the
	// message.
	MetaPartial = "parley.dev/partial"
	// MetaNotice marks a thought update whose text is a notice from the agent to its user, not the
	// model's reasoning.
	MetaNotice = "parley.dev/notice"
	// MetaTurn is the ID of a prompt's turn. If the agent knows the turn, it resumes the turn or
	// repeats the turn's result. It does not start the turn again.
	MetaTurn = "parley.dev/turn"
	// MetaSteers is a capability: during a turn, the agent accepts messages of the user with
	// MethodSteer. The model gets such a message before its next answer. The agent then sends a
	// numbered user_message_chunk with the same MetaMessage, and the client may send the next
	// message. If the turn ends before the agent has sent this chunk, the agent drops the message,
	// and the client sends it as a prompt.
	MetaSteers = "parley.dev/steers"
	// MetaMessage is the ID of a user's message. A turn has the ID of the message that started it.
	MetaMessage = "parley.dev/message"
	// MetaContext marks a block of a prompt that the client added to the user's message.
	MetaContext = "parley.dev/context"
	// MetaReplays is a capability: the agent can replay a recorded session.
	MetaReplays = "parley.dev/replays"
	// MetaTool is the name of the called tool.
	MetaTool = "parley.dev/tool"
	// MetaReason is a key in the answer to a permission request. Its value is the user's reason
	// for a rejection. In an agent's capabilities, the key says that the agent reads this reason.
	MetaReason = "parley.dev/reason"
	// MetaReplayed is a key in session/new. It tells the agent not to replay the recorded session,
	// because an earlier ACP session of the conversation has already replayed it.
	MetaReplayed = "parley.dev/replayed"
	// MetaAsks is a key in session/new and session/load. It makes the agent request permission for
	// each action, so that the client can record the action before it happens.
	MetaAsks = "parley.dev/asks"
	// MetaRetry is a key in a session_info_update. While the agent waits before it calls the model
	// again, the value is a Retry. When the model then responds, the value is null. These updates are
	// also marked with MetaPartial.
	MetaRetry = "parley.dev/retry"
)

// Meta holds extensions of a message.
type Meta map[string]any

func (m Meta) is(name string) bool {
	set, _ := m[name].(bool)
	return set
}

// InitializeParams are the parameters of initialize.
type InitializeParams struct {
	ProtocolVersion    int            `json:"protocolVersion"`
	ClientCapabilities map[string]any `json:"clientCapabilities"`
	ClientInfo         Info           `json:"clientInfo"`
}

// InitializeResult describes the agent. Parley ignores AuthMethods, because agents get no API keys
// with which they could authenticate.
type InitializeResult struct {
	ProtocolVersion   int               `json:"protocolVersion"`
	AgentCapabilities AgentCapabilities `json:"agentCapabilities"`
	AgentInfo         Info              `json:"agentInfo"`
	AuthMethods       []any             `json:"authMethods"`
}

// Info is the name and the version of a program.
type Info struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Version string `json:"version"`
}

// AgentCapabilities are the optional features of the protocol that an agent supports.
type AgentCapabilities struct {
	LoadSession         bool                `json:"loadSession"`
	PromptCapabilities  PromptCapabilities  `json:"promptCapabilities"`
	MCPCapabilities     MCPCapabilities     `json:"mcpCapabilities"`
	SessionCapabilities SessionCapabilities `json:"sessionCapabilities"`
	Meta                Meta                `json:"_meta,omitempty"`
}

// PromptCapabilities are the kinds of content besides text that an agent accepts in a prompt.
type PromptCapabilities struct {
	Image           bool `json:"image"`
	Audio           bool `json:"audio"`
	EmbeddedContext bool `json:"embeddedContext"`
}

// MCPCapabilities are the supported transports of tool servers.
type MCPCapabilities struct {
	HTTP bool `json:"http"`
	SSE  bool `json:"sse"`
}

// SessionCapabilities contains an object for each supported method. Some agents send true instead
// of an object.
type SessionCapabilities struct {
	Resume json.RawMessage `json:"resume,omitempty"`
}

// CanResume reports whether a session can be resumed without a replay.
func (c *AgentCapabilities) CanResume() bool {
	text := string(c.SessionCapabilities.Resume)
	return text != "" && text != "null" && text != "false"
}

// ExactReplay reports whether session/load replays all updates of the session unchanged.
func (c *AgentCapabilities) ExactReplay() bool {
	return c.Meta.is(MetaExactReplay) && c.LoadSession
}

// Replays reports whether the agent can replay recorded sessions.
func (c *AgentCapabilities) Replays() bool { return c.Meta.is(MetaReplays) }

// ReadsReasons reports whether the agent reads the user's reason for a rejection.
func (c *AgentCapabilities) ReadsReasons() bool { return c.Meta.is(MetaReason) }

// Steers reports whether the agent accepts messages during a turn.
func (c *AgentCapabilities) Steers() bool { return c.Meta.is(MetaSteers) }

// SessionParams are the parameters of session/new, session/load and session/resume.
type SessionParams struct {
	SessionID  string      `json:"sessionId,omitempty"`
	Cwd        string      `json:"cwd"`
	MCPServers []MCPServer `json:"mcpServers"`
	Meta       Meta        `json:"_meta,omitempty"`
}

// MCPServer is a tool server for the agent. In the protocol, a server without a type is a program
// that the agent starts. Parley sends only servers with a type.
type MCPServer struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	URL     string   `json:"url"`
	Headers []Header `json:"headers"`
}

// Header is an HTTP header.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// NewSessionResult contains the session's ID.
type NewSessionResult struct {
	SessionID string `json:"sessionId"`
}

// PromptParams is a user's message to the agent.
type PromptParams struct {
	SessionID string    `json:"sessionId"`
	Prompt    []Content `json:"prompt"`
	Meta      Meta      `json:"_meta,omitempty"`
}

// Content is a block of a message.
type Content struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	Data     string `json:"data,omitempty"`
	MimeType string `json:"mimeType,omitempty"`
	// URI and Name belong to a resource_link, Resource to a resource.
	URI      string    `json:"uri,omitempty"`
	Name     string    `json:"name,omitempty"`
	Resource *Resource `json:"resource,omitempty"`
	Meta     Meta      `json:"_meta,omitempty"`
}

// IsContext reports whether the client added the block to the user's message.
func (c *Content) IsContext() bool { return c.Meta.is(MetaContext) }

// Resource is a text that a client puts into a prompt.
type Resource struct {
	URI  string `json:"uri"`
	Text string `json:"text"`
}

// Text returns a block of text.
func Text(text string) *Content { return &Content{Type: "text", Text: text} }

// StopReason says why a turn ended.
type StopReason string

// Stop reasons that are used here.
const (
	EndTurn   StopReason = "end_turn"
	MaxTokens StopReason = "max_tokens"
	MaxTurns  StopReason = "max_turn_requests"
	Refusal   StopReason = "refusal"
	Cancelled StopReason = "cancelled"
)

// PromptResult is the response to a prompt. It ends the turn.
type PromptResult struct {
	StopReason StopReason `json:"stopReason"`
}

// CancelParams names the session whose turn is cancelled.
type CancelParams struct {
	SessionID string `json:"sessionId"`
}

// UpdateParams contains an encoded update.
type UpdateParams struct {
	SessionID string          `json:"sessionId"`
	Update    json.RawMessage `json:"update"`
}

// Kinds of updates.
const (
	UserChunk    = "user_message_chunk"
	MessageChunk = "agent_message_chunk"
	ThoughtChunk = "agent_thought_chunk"
	NewToolCall  = "tool_call"
	ToolUpdate   = "tool_call_update"
	Plan         = "plan"
	UsageUpdate  = "usage_update"
	SessionInfo  = "session_info_update"
)

// Retry says why the last call to the model failed, and when the agent calls the model again.
type Retry struct {
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Update is an update of any kind; each kind uses some of the fields.
type Update struct {
	Kind string `json:"sessionUpdate,omitempty"`
	// Content is a *Content for chunks, a []ToolContent for tool calls.
	Content any `json:"content,omitempty"`

	ToolCallID string          `json:"toolCallId,omitempty"`
	Title      string          `json:"title,omitempty"`
	ToolKind   string          `json:"kind,omitempty"`
	Status     string          `json:"status,omitempty"`
	Locations  []Location      `json:"locations,omitempty"`
	RawInput   json.RawMessage `json:"rawInput,omitempty"`
	RawOutput  any             `json:"rawOutput,omitempty"`

	Entries []PlanEntry `json:"entries,omitempty"`

	Used *int `json:"used,omitempty"`
	Size int  `json:"size,omitempty"`

	Meta Meta `json:"_meta,omitempty"`
}

// Statuses of a tool call.
const (
	Pending    = "pending"
	InProgress = "in_progress"
	Completed  = "completed"
	Failed     = "failed"
)

// ToolContent is a part of a tool call's result: a content block or a diff.
type ToolContent struct {
	Type    string   `json:"type"`
	Content *Content `json:"content,omitempty"`
	Path    string   `json:"path,omitempty"`
	OldText *string  `json:"oldText,omitempty"`
	NewText *string  `json:"newText,omitempty"`
}

// Location is a file that a tool call reads or changes.
type Location struct {
	Path string `json:"path"`
	Line int    `json:"line,omitempty"`
}

// PlanEntry is a task of the plan.
type PlanEntry struct {
	Content  string `json:"content"`
	Priority string `json:"priority"`
	Status   string `json:"status"`
}

// PermissionParams asks the user for permission for a tool call.
type PermissionParams struct {
	SessionID string             `json:"sessionId"`
	ToolCall  Update             `json:"toolCall"`
	Options   []PermissionOption `json:"options"`
}

// PermissionOption is an answer that the user can choose.
type PermissionOption struct {
	OptionID string `json:"optionId"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`
}

// Kinds of answers.
const (
	AllowOnce    = "allow_once"
	AllowAlways  = "allow_always"
	RejectOnce   = "reject_once"
	RejectAlways = "reject_always"
)

// PermissionResult is the user's answer.
type PermissionResult struct {
	Outcome PermissionOutcome `json:"outcome"`
	Meta    Meta              `json:"_meta,omitempty"`
}

// PermissionOutcome is "selected", with the ID of the selected option, or "cancelled".
type PermissionOutcome struct {
	Outcome  string `json:"outcome"`
	OptionID string `json:"optionId,omitempty"`
}

// Dismissed is the answer to a permission request of a turn that has ended.
func Dismissed() PermissionResult {
	return PermissionResult{Outcome: PermissionOutcome{Outcome: "cancelled"}}
}

// Offers reports whether one of the options has this kind.
func Offers(options []PermissionOption, kind string) bool {
	return slices.ContainsFunc(options, func(option PermissionOption) bool { return option.Kind == kind })
}

// Choose selects the first option whose kind is onceKind, or else the first option whose kind is
// alwaysKind. If no option has these kinds, it returns Dismissed().
func Choose(options []PermissionOption, onceKind, alwaysKind string) PermissionResult {
	for _, kind := range []string{onceKind, alwaysKind} {
		for _, option := range options {
			if option.Kind == kind {
				return PermissionResult{Outcome: PermissionOutcome{Outcome: "selected", OptionID: option.OptionID}}
			}
		}
	}
	return Dismissed()
}
