package scriptedmodel

import (
	"encoding/json"
	"slices"
	"strings"
)

// Wire is the name of a provider's API.
type Wire string

// Names of the supported APIs.
const (
	Messages        Wire = "messages"
	ChatCompletions Wire = "chat.completions"
	Responses       Wire = "responses"
	GenerateContent Wire = "generateContent"
)

// Request is a client's request. It has the same form for all APIs.
type Request struct {
	Wire   Wire
	Model  string
	Stream bool
	System string
	Tools  []Tool
	// Turns contains all messages except system messages.
	Turns []Turn
	// HasAuthorization and HasAPIKey report which headers contained a key.
	HasAuthorization, HasAPIKey bool
	// Tokens is the estimated size of the request. MaxTokens is the limit that the request sets for
	// the answer.
	Tokens, MaxTokens int
	// Cached is the number of cache_control marks in the request.
	Cached int
	// Step is the index of the step that answered. It is -1 for the default text and -2 for a
	// refusal.
	Step int
	// Raw is the received body.
	Raw json.RawMessage
}

const (
	answeredByDefault = -1
	refused           = -2
)

// Tool is a tool that the client offers.
type Tool struct {
	Name, Description string
	Schema            json.RawMessage
	// Namespace is the tool's namespace. Only the responses API has namespaces.
	Namespace string
}

// Turn is a message of the conversation, or an item of the responses API.
type Turn struct {
	Role    string
	Text    string
	Images  int
	Calls   []Call
	Results []Result
}

// Result is the result of a tool call.
type Result struct {
	ID, Text string
	IsError  bool
}

// Contains reports whether a message, a system message or a result contains these words.
func (r *Request) Contains(words string) bool {
	return strings.Contains(r.System, words) || strings.Contains(r.Said(), words)
}

// Said returns the text of all messages and results, without system messages.
func (r *Request) Said() string {
	var b strings.Builder
	for _, turn := range r.Turns {
		b.WriteString(turn.Text)
		b.WriteByte('\n')
		for _, result := range turn.Results {
			b.WriteString(result.Text)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// Result returns the result of the call with this id, or nil.
func (r *Request) Result(id string) *Result {
	for _, turn := range r.Turns {
		for i := range turn.Results {
			if turn.Results[i].ID == id {
				return &turn.Results[i]
			}
		}
	}
	return nil
}

// Offers reports whether the client offers this tool.
func (r *Request) Offers(name string) bool {
	return slices.ContainsFunc(r.Tools, func(t Tool) bool { return t.Name == name })
}
