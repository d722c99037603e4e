package acp

import (
	"encoding/json"
	"slices"
)

// Methods of the protocol, as far as they are used here.
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
)

// Version of the protocol that is spoken here.
const Version = 1

// Keys of _meta that are Parley's own.
const (
	// MetaExactReplay, in the capabilities: what session/load tells is what was told before, update
	// for update.
	MetaExactReplay = "parley.dev/exactReplay"
	// MetaSeq numbers the updates of a session from 1, without gaps, live and told again alike.
	MetaSeq = "parley.dev/seq"
	// MetaPartial marks a piece of a message that is still being written. It has no number and is
	// not told again.
	MetaPartial = "parley.dev/partial"
	// MetaTurn, in a prompt, names the turn. A turn that the session knows is gone on with, or its
	// end is told again; it is not begun anew.
	MetaTurn = "parley.dev/turn"
	// MetaReplays, in the capabilities: a recorded session is done again.
	MetaReplays = "parley.dev/replays"
	// MetaTool is the name of the tool that is called.
	MetaTool = "parley.dev/tool"
)

// Meta is what either side adds to a message.
type Meta map[string]any

// InitializeParams greets the agent.
type InitializeParams struct {
	ProtocolVersion    int            `json:"protocolVersion"`
	ClientCapabilities map[string]any `json:"clientCapabilities"`
	ClientInfo         Info           `json:"clientInfo"`
}

// InitializeResult says what the agent is and can do. How it wants to be authenticated is not read:
// agents have no keys here.
type InitializeResult struct {
	ProtocolVersion   int               `json:"protocolVersion"`
	AgentCapabilities AgentCapabilities `json:"agentCapabilities"`
	AgentInfo         Info              `json:"agentInfo"`
	AuthMethods       []any             `json:"authMethods"`
}

// Info names a program.
type Info struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Version string `json:"version"`
}

// AgentCapabilities as the protocol spells them.
type AgentCapabilities struct {
	LoadSession         bool                `json:"loadSession"`
	PromptCapabilities  PromptCapabilities  `json:"promptCapabilities"`
	MCPCapabilities     MCPCapabilities     `json:"mcpCapabilities"`
	SessionCapabilities SessionCapabilities `json:"sessionCapabilities"`
	Meta                Meta                `json:"_meta,omitempty"`
}

// PromptCapabilities says what a prompt may hold besides text.
type PromptCapabilities struct {
	Image           bool `json:"image"`
	Audio           bool `json:"audio"`
	EmbeddedContext bool `json:"embeddedContext"`
}

// MCPCapabilities says which tool servers can be reached.
type MCPCapabilities struct {
	HTTP bool `json:"http"`
	SSE  bool `json:"sse"`
}

// SessionCapabilities are objects where they are present; of some agents also true.
type SessionCapabilities struct {
	Resume json.RawMessage `json:"resume,omitempty"`
}

// CanResume says whether a session can be gone on with without being told again.
func (c *AgentCapabilities) CanResume() bool {
	text := string(c.SessionCapabilities.Resume)
	return text != "" && text != "null" && text != "false"
}

// ExactReplay says whether what is told again can be taken for what was told before.
func (c *AgentCapabilities) ExactReplay() bool {
	exact, _ := c.Meta[MetaExactReplay].(bool)
	return exact && c.LoadSession
}

// Replays says whether the agent does recorded sessions again.
func (c *AgentCapabilities) Replays() bool {
	replays, _ := c.Meta[MetaReplays].(bool)
	return replays
}

// SessionParams are those of session/new, session/load and session/resume.
type SessionParams struct {
	SessionID  string      `json:"sessionId,omitempty"`
	Cwd        string      `json:"cwd"`
	MCPServers []MCPServer `json:"mcpServers"`
}

// MCPServer is a tool server to connect to. Without a type it is one to be started, which is not
// used here.
type MCPServer struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	URL     string   `json:"url"`
	Headers []Header `json:"headers"`
}

// Header of HTTP.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// NewSessionResult names the session.
type NewSessionResult struct {
	SessionID string `json:"sessionId"`
}

// PromptParams is a message of the user.
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
	// URI and Name are those of a resource_link, Resource that of a resource.
	URI      string    `json:"uri,omitempty"`
	Name     string    `json:"name,omitempty"`
	Resource *Resource `json:"resource,omitempty"`
}

// Resource is a text that a client puts into a prompt.
type Resource struct {
	URI  string `json:"uri"`
	Text string `json:"text"`
}

// Text makes a block of text.
func Text(text string) *Content { return &Content{Type: "text", Text: text} }

// StopReason says why a turn ended.
type StopReason string

// The reasons that are used here.
const (
	EndTurn   StopReason = "end_turn"
	MaxTokens StopReason = "max_tokens"
	MaxTurns  StopReason = "max_turn_requests"
	Refusal   StopReason = "refusal"
	Cancelled StopReason = "cancelled"
)

// PromptResult ends a turn.
type PromptResult struct {
	StopReason StopReason `json:"stopReason"`
}

// CancelParams names the session whose turn is to stop.
type CancelParams struct {
	SessionID string `json:"sessionId"`
}

// UpdateParams carries an update, already encoded.
type UpdateParams struct {
	SessionID string          `json:"sessionId"`
	Update    json.RawMessage `json:"update"`
}

// Kinds of updates.
const (
	MessageChunk = "agent_message_chunk"
	ThoughtChunk = "agent_thought_chunk"
	NewToolCall  = "tool_call"
	ToolUpdate   = "tool_call_update"
	Plan         = "plan"
	UsageUpdate  = "usage_update"
)

// Update is any of them; each uses some of the fields.
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

// Status of a tool call.
const (
	Pending    = "pending"
	InProgress = "in_progress"
	Completed  = "completed"
	Failed     = "failed"
)

// ToolContent is part of what a tool call brought: a content or a diff.
type ToolContent struct {
	Type    string   `json:"type"`
	Content *Content `json:"content,omitempty"`
	Path    string   `json:"path,omitempty"`
	OldText *string  `json:"oldText,omitempty"`
	NewText *string  `json:"newText,omitempty"`
}

// Location is a file that a tool call is about.
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

// PermissionParams asks the user whether a tool call may be done.
type PermissionParams struct {
	SessionID string             `json:"sessionId"`
	ToolCall  Update             `json:"toolCall"`
	Options   []PermissionOption `json:"options"`
}

// PermissionOption is an answer that the user can give.
type PermissionOption struct {
	OptionID string `json:"optionId"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`
}

// Kinds of such answers.
const (
	AllowOnce    = "allow_once"
	AllowAlways  = "allow_always"
	RejectOnce   = "reject_once"
	RejectAlways = "reject_always"
)

// PermissionResult is the user's answer.
type PermissionResult struct {
	Outcome PermissionOutcome `json:"outcome"`
}

// PermissionOutcome is selected, with an option, or cancelled.
type PermissionOutcome struct {
	Outcome  string `json:"outcome"`
	OptionID string `json:"optionId,omitempty"`
}

// Dismissed is the answer where the turn is over.
func Dismissed() PermissionResult {
	return PermissionResult{Outcome: PermissionOutcome{Outcome: "cancelled"}}
}

// Offers says whether there is an option of a kind.
func Offers(options []PermissionOption, kind string) bool {
	return slices.ContainsFunc(options, func(option PermissionOption) bool { return option.Kind == kind })
}

// Choose the option of a kind: the one for this call only, or else for all.
func Choose(options []PermissionOption, once, always string) PermissionResult {
	for _, kind := range []string{once, always} {
		for _, option := range options {
			if option.Kind == kind {
				return PermissionResult{Outcome: PermissionOutcome{Outcome: "selected", OptionID: option.OptionID}}
			}
		}
	}
	return Dismissed()
}
