package scriptedmodel

import (
	"encoding/json"
	"strings"
)

// Wire is a provider's protocol.
type Wire string

// The wires.
const (
	Messages        Wire = "messages"
	ChatCompletions Wire = "chat.completions"
	Responses       Wire = "responses"
	GenerateContent Wire = "generateContent"
)

// Request is what a client sent, read into one form for all wires.
type Request struct {
	Wire   Wire
	Model  string
	Stream bool
	System string
	Tools  []Tool
	// Turns are the messages without the system's.
	Turns []Turn
	// HasAuthorization and HasAPIKey say which header carried a key.
	HasAuthorization, HasAPIKey bool
	// Cached counts the marks for the provider's cache.
	Cached int
	// Step is the index of the step that answered, -1 for the default text, -2 for a refusal.
	Step int
	// Raw is the body as it was received.
	Raw json.RawMessage
}

const (
	answeredByDefault = -1
	refused           = -2
)

// Tool that the client offers.
type Tool struct {
	Name, Description string
	Schema            json.RawMessage
	// Namespace that the tool is in, on the responses wire.
	Namespace string
}

// Turn is a message of the conversation. On the responses wire it is one item.
type Turn struct {
	Role    string
	Text    string
	Images  int
	Calls   []Call
	Results []Result
}

// Result of a tool call.
type Result struct {
	ID, Text string
	IsError  bool
}

// Contains tells whether the system's text, a message or a result has these words.
func (r *Request) Contains(words string) bool {
	return strings.Contains(r.System, words) || strings.Contains(r.Said(), words)
}

// Said is everything that the messages say, results included.
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

// Result returns the result of the call with this id, nil if there is none.
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

// Offers tells whether the client offers this tool.
func (r *Request) Offers(name string) bool {
	for _, tool := range r.Tools {
		if tool.Name == name {
			return true
		}
	}
	return false
}
