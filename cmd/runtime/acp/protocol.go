package acp

import "encoding/json"

// Version of the protocol that is spoken here.
const Version = 1

// The methods.
const (
	MethodInitialize = "initialize"
	MethodNew        = "session/new"
	MethodLoad       = "session/load"
	MethodResume     = "session/resume"
	MethodPrompt     = "session/prompt"
	MethodCancel     = "session/cancel"
	MethodUpdate     = "session/update"
	MethodPermission = "session/request_permission"
)

// The meta data that Parley's own agent knows beyond the protocol.
const (
	// MetaTurn names the turn of a prompt. An agent that knows the turn goes on with it, and does not begin it again.
	MetaTurn = "parley.dev/turn"
	// MetaExactReplay is a capability: a session that is loaded tells again just what it told before.
	MetaExactReplay = "parley.dev/exactReplay"
	// MetaReplays is a capability: the agent does a recorded session again by itself.
	MetaReplays = "parley.dev/replays"
	// MetaSeq counts what is told in a session, from 1.
	MetaSeq = "parley.dev/seq"
	// MetaPartial marks a piece of something that is told as a whole later.
	MetaPartial = "parley.dev/partial"
	// MetaTool is the name of the tool that is called.
	MetaTool = "parley.dev/tool"
)

// InitializeRequest greets the agent.
type InitializeRequest struct {
	ProtocolVersion int            `json:"protocolVersion"`
	Capabilities    map[string]any `json:"clientCapabilities"`
	ClientInfo      Implementation `json:"clientInfo"`
}

// Implementation names a program.
type Implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// InitializeResponse is what the agent can do.
type InitializeResponse struct {
	ProtocolVersion int               `json:"protocolVersion"`
	Capabilities    AgentCapabilities `json:"agentCapabilities"`
}

// AgentCapabilities are what an agent can do.
type AgentCapabilities struct {
	LoadSession bool `json:"loadSession"`
	Prompt      struct {
		Image bool `json:"image"`
	} `json:"promptCapabilities"`
	MCP struct {
		HTTP bool `json:"http"`
		SSE  bool `json:"sse"`
	} `json:"mcpCapabilities"`
	Session struct {
		// Resume is an object, or true, where the agent can.
		Resume json.RawMessage `json:"resume"`
	} `json:"sessionCapabilities"`
	Meta map[string]any `json:"_meta"`
}

// CanResume says whether a session can be gone on with without being told again.
func (c *AgentCapabilities) CanResume() bool {
	text := string(c.Session.Resume)
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

// MCPServer is a tool server that the agent is to use.
type MCPServer struct {
	Type    string       `json:"type"`
	Name    string       `json:"name"`
	URL     string       `json:"url"`
	Headers []HTTPHeader `json:"headers"`
}

// HTTPHeader of a request to a tool server.
type HTTPHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// SessionRequest opens a session, new or, with its id, an old one.
type SessionRequest struct {
	SessionID  string      `json:"sessionId,omitempty"`
	Cwd        string      `json:"cwd"`
	MCPServers []MCPServer `json:"mcpServers"`
}

// SessionResponse names the session.
type SessionResponse struct {
	SessionID string `json:"sessionId"`
}

// PromptRequest begins a turn.
type PromptRequest struct {
	SessionID string         `json:"sessionId"`
	Prompt    []Block        `json:"prompt"`
	Meta      map[string]any `json:"_meta,omitempty"`
}

// Block is a piece of a message: text, or an image in base64.
type Block struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	Data     string `json:"data,omitempty"`
	MimeType string `json:"mimeType,omitempty"`
}

// Text is a block of text.
func Text(text string) Block { return Block{Type: "text", Text: text} }

// PromptResponse says how a turn ended.
type PromptResponse struct {
	StopReason string `json:"stopReason"`
}

// Why turns end.
const (
	StopEndTurn   = "end_turn"
	StopMaxTokens = "max_tokens"
	StopMaxTurns  = "max_turn_requests"
	StopRefusal   = "refusal"
	StopCancelled = "cancelled"
)

// CancelNotification ends a turn.
type CancelNotification struct {
	SessionID string `json:"sessionId"`
}

// PermissionRequest asks whether a tool may be called.
type PermissionRequest struct {
	SessionID string             `json:"sessionId"`
	ToolCall  json.RawMessage    `json:"toolCall"`
	Options   []PermissionOption `json:"options"`
}

// PermissionOption is an answer to choose.
type PermissionOption struct {
	OptionID string `json:"optionId"`
	Kind     string `json:"kind"`
}

// The kinds of answers.
const (
	AllowOnce    = "allow_once"
	AllowAlways  = "allow_always"
	RejectOnce   = "reject_once"
	RejectAlways = "reject_always"
)

// PermissionResponse is the answer.
type PermissionResponse struct {
	Outcome PermissionOutcome `json:"outcome"`
}

// PermissionOutcome is selected, with an option, or cancelled.
type PermissionOutcome struct {
	Outcome  string `json:"outcome"`
	OptionID string `json:"optionId,omitempty"`
}

// Cancelled is the answer where the turn is over.
func Cancelled() PermissionResponse {
	return PermissionResponse{Outcome: PermissionOutcome{Outcome: "cancelled"}}
}

// Choose the option of a kind: the one for this call only, or else for all.
func Choose(options []PermissionOption, once, always string) PermissionResponse {
	for _, kind := range []string{once, always} {
		for _, option := range options {
			if option.Kind == kind {
				return PermissionResponse{Outcome: PermissionOutcome{Outcome: "selected", OptionID: option.OptionID}}
			}
		}
	}
	return Cancelled()
}
