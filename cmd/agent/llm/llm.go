// Package llm calls language models, with one interface for the APIs of Anthropic and OpenAI.
package llm

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
)

// Role is the role of a message.
type Role string

// These are the roles of messages.
const (
	User      Role = "user"
	Assistant Role = "assistant"
)

// Message is a message of the conversation. Tool results are parts of user messages.
type Message struct {
	Role  Role   `json:"role"`
	Parts []Part `json:"parts"`
	// Model is the name of the model that wrote the message. The fields in Returned are sent back
	// only to this model.
	Model    string   `json:"model,omitempty"`
	Returned Returned `json:"returned,omitempty"`
}

// Part is a part of a message. Exactly one field is set.
type Part struct {
	Text     string    `json:"text,omitempty"`
	Thinking *Thinking `json:"thinking,omitempty"`
	Image    *Image    `json:"image,omitempty"`
	Call     *Call     `json:"call,omitempty"`
	Result   *Result   `json:"result,omitempty"`
}

// Thinking is a piece of the model's reasoning. It is sent back unchanged to the provider that
// returned it.
type Thinking struct {
	Text      string `json:"text,omitempty"`
	Signature string `json:"signature,omitempty"`
	Redacted  string `json:"redacted,omitempty"`
}

// Image is an image; Data is base64.
type Image struct {
	Data      string `json:"data"`
	MediaType string `json:"mediaType"`
}

// Call is a tool call. Input is the text that the model wrote; it may be invalid JSON.
type Call struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Input string `json:"input"`
	// Returned holds fields of the call that must be sent back to the model that made the call.
	Returned Returned `json:"returned,omitempty"`
}

// Result is the result of a tool call.
type Result struct {
	CallID  string  `json:"callId"`
	Text    string  `json:"text"`
	IsError bool    `json:"isError,omitempty"`
	Images  []Image `json:"images,omitempty"`
}

// Tool is a tool that the model may call.
type Tool struct {
	Name, Description string
	// Schema is a JSON schema of type object.
	Schema map[string]any
}

// Request is a request to a model.
type Request struct {
	System   string
	Messages []Message
	Tools    []Tool
	// Window is the model's context window in tokens; 0 if it is unknown. The window must have room
	// for the request and for the longest allowed answer, else the API rejects the request. Answers
	// are therefore limited to a fifth of the window.
	Window int
}

// Stop is the reason why an answer ended.
type Stop string

// These are the reasons why an answer ended.
const (
	StopEnd     Stop = "end"
	StopTools   Stop = "tools"
	StopLength  Stop = "length"
	StopRefusal Stop = "refusal"
)

// Answer is an answer of a model.
type Answer struct {
	Message Message `json:"message"`
	Stop    Stop    `json:"stop"`
	// Used is the size of the conversation up to and including this answer, in tokens.
	Used int `json:"used"`
}

// Sink receives the pieces of an answer and of the model's reasoning while they are streamed.
type Sink func(text, thought string)

// Model answers requests.
type Model interface {
	Answer(ctx context.Context, r Request, sink Sink) (Answer, error)
}

// Settings are the settings of a model.
type Settings struct {
	// Name has the form provider/model.
	Name string
	// BaseURL is the base URL of the endpoint, without /v1. Empty means the provider's own URL.
	BaseURL string
	Key     string
	// MaxOutput limits an answer, in tokens; 0 means the API's default.
	MaxOutput int
	// Effort is the reasoning effort: none, minimal, low, medium, high or xhigh. If Effort is empty
	// or Temperature is nil, the model's default applies.
	Effort      string
	Temperature *float64
}

// New returns a model, or nil if the settings name no model. It uses Anthropic's API for models
// named anthropic/…, and OpenAI's API for all others, because gateways support OpenAI's API.
func New(s Settings) Model {
	provider, name, found := strings.Cut(s.Name, "/")
	if !found {
		name = s.Name
	}
	s.BaseURL = strings.TrimRight(s.BaseURL, "/")
	switch {
	case name == "":
		return nil
	case found && provider == "anthropic":
		return newAnthropic(s, name)
	}
	return newOpenAI(s, name)
}

// maxOutput returns the configured maximum number of tokens of an answer, but at most a fifth of
// the context window.
func (r Request) maxOutput(configured int) int64 {
	if r.Window > 0 {
		configured = min(configured, r.Window/5)
	}
	return int64(configured)
}

// Calls returns the tool calls of a message.
func (m Message) Calls() []*Call {
	var calls []*Call
	for _, part := range m.Parts {
		if part.Call != nil {
			calls = append(calls, part.Call)
		}
	}
	return calls
}

// Text returns the text of a message.
func (m Message) Text() string {
	var b strings.Builder
	for _, part := range m.Parts {
		b.WriteString(part.Text)
	}
	return b.String()
}

// arguments returns the input of a call as a JSON object, which the APIs require. Invalid input
// becomes an empty object.
func (c *Call) arguments() json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(c.Input), &object) != nil || object == nil {
		return json.RawMessage(`{}`)
	}
	return json.RawMessage(c.Input)
}

// mergeRoles joins adjacent messages of the same role. It puts tool results before texts, as
// Anthropic requires.
func mergeRoles(messages []Message) []Message {
	var out []Message
	for _, m := range messages {
		if n := len(out); n > 0 && out[n-1].Role == m.Role {
			parts := slices.Concat(out[n-1].Parts, m.Parts)
			isResult := map[bool]int{true: 0, false: 1}
			slices.SortStableFunc(parts, func(a, b Part) int { return isResult[a.Result != nil] - isResult[b.Result != nil] })
			out[n-1] = Message{Role: m.Role, Parts: parts, Model: m.Model, Returned: m.Returned}
			continue
		}
		out = append(out, m)
	}
	return out
}
