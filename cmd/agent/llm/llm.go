// Package llm speaks with language models, in one form for the wires of Anthropic and OpenAI.
package llm

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
)

// Role of a message.
type Role string

// The roles.
const (
	User      Role = "user"
	Assistant Role = "assistant"
)

// Message of the conversation. Results of tools are parts of a user's message.
type Message struct {
	Role  Role   `json:"role"`
	Parts []Part `json:"parts"`
}

// Part of a message: one of its fields is set.
type Part struct {
	Text     string    `json:"text,omitempty"`
	Thinking *Thinking `json:"thinking,omitempty"`
	Image    *Image    `json:"image,omitempty"`
	Call     *Call     `json:"call,omitempty"`
	Result   *Result   `json:"result,omitempty"`
}

// Thinking is told back to the provider that made it, as it was.
type Thinking struct {
	Text      string `json:"text,omitempty"`
	Signature string `json:"signature,omitempty"`
	Redacted  string `json:"redacted,omitempty"`
}

// Image as base64.
type Image struct {
	Data      string `json:"data"`
	MediaType string `json:"mediaType"`
}

// Call of a tool. Input is what the model wrote, which may not be JSON.
type Call struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Input string `json:"input"`
}

// Result of a tool call.
type Result struct {
	CallID  string  `json:"callId"`
	Text    string  `json:"text"`
	IsError bool    `json:"isError,omitempty"`
	Images  []Image `json:"images,omitempty"`
}

// Tool that is offered.
type Tool struct {
	Name, Description string
	// Schema is a JSON schema of type object.
	Schema map[string]any
}

// Request to a model.
type Request struct {
	System   string
	Messages []Message
	Tools    []Tool
}

// Stop says why an answer ended.
type Stop string

// The reasons.
const (
	StopEnd     Stop = "end"
	StopTools   Stop = "tools"
	StopLength  Stop = "length"
	StopRefusal Stop = "refusal"
)

// Answer of a model.
type Answer struct {
	Message Message `json:"message"`
	Stop    Stop    `json:"stop"`
	// Used is how much of the context this answer and all before it take, in tokens.
	Used int `json:"used"`
}

// Sink takes an answer while it is being written.
type Sink interface {
	Text(piece string)
	Thought(piece string)
}

// Model answers requests.
type Model interface {
	Answer(ctx context.Context, r Request, sink Sink) (Answer, error)
}

// Settings of a model.
type Settings struct {
	// Name is provider/model.
	Name string
	// BaseURL is the root of the endpoint, without /v1. Empty is the provider's own.
	BaseURL string
	Key     string
	// MaxOutput is the limit of an answer in tokens; 0 leaves it to the wire.
	MaxOutput int
}

// New makes a model; nil where none is named. Anthropic's wire is for anthropic/…, OpenAI's for all
// others, because gateways speak that.
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

// Text returns what a message says.
func (m Message) Text() string {
	var b strings.Builder
	for _, part := range m.Parts {
		b.WriteString(part.Text)
	}
	return b.String()
}

// arguments returns the input of a call as an object, which wires want also where the model wrote
// none.
func (c *Call) arguments() json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(c.Input), &object) != nil || object == nil {
		return json.RawMessage(`{}`)
	}
	return json.RawMessage(c.Input)
}

// merged joins neighbours of the same role. Results stay before texts, as Anthropic wants them.
func merged(messages []Message) []Message {
	var out []Message
	for _, m := range messages {
		if n := len(out); n > 0 && out[n-1].Role == m.Role {
			parts := slices.Concat(out[n-1].Parts, m.Parts)
			isResult := map[bool]int{true: 0, false: 1}
			slices.SortStableFunc(parts, func(a, b Part) int { return isResult[a.Result != nil] - isResult[b.Result != nil] })
			out[n-1] = Message{Role: m.Role, Parts: parts}
			continue
		}
		out = append(out, m)
	}
	return out
}

// maxSilence is how long a stream may say nothing before it is given up.
const maxSilence = 5 * time.Minute

var errSilence = errors.New("the model's stream fell silent")

// watched returns a context that ends when heard has not been called for too long.
func watched(ctx context.Context) (watched context.Context, heard, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(maxSilence, func() { cancel(errSilence) })
	return watched, func() { timer.Reset(maxSilence) }, func() { timer.Stop(); cancel(nil) }
}
