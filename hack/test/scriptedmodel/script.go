// Package scriptedmodel is a stub, not a model: it serves the wires of model providers and answers
// from a script. Tests and the demo use it in place of a provider. It is as strict as a provider:
// what the real wire would refuse is refused in the provider's own form, and recorded as a
// violation for the test to read.
package scriptedmodel

import "encoding/json"

// Step is one answer of the script.
//
// A step is used once. Without a condition (When, Contains) it is used by the next request that
// offers tools, in the order of the script: agents make other calls, for a title or a summary, and
// those must not eat the script. They get the script's default text, unless a step with a condition
// wants them.
type Step struct {
	// Text is said first, then the calls are made, all in one message.
	Text     string
	Thinking string
	Calls    []Call
	// Usage is what the answer reports; without it a little is made up.
	Usage *Usage
	// Cut says that the answer was cut at the limit of output tokens.
	Cut bool
	// Failure is answered instead.
	Failure *Failure
	// Break ends the connection in the middle of a streamed answer.
	Break bool
	// Times is how often the step is used; 0 means once.
	Times int
	// Contains makes this a step for requests whose text has these words, with tools or without.
	Contains string

	// When makes this a step for requests that it accepts, with tools or without.
	When func(*Request) bool
	// Check looks at the request that uses the step. Its error is recorded as a violation and
	// refused.
	Check func(*Request) error
	// Hold delays the answer until it is closed, or the caller is gone.
	Hold <-chan struct{}
}

// Call is a call of a tool.
type Call struct {
	Name  string
	Input json.RawMessage
	// ID is made up where it is empty: call_<step>_<number>.
	ID string
	// Namespace of the tool, on the responses wire.
	Namespace string
}

// Usage in tokens. Cached ones are part of Input.
type Usage struct {
	Input  int
	Output int
	Cached int
}

// Failure is an error of the provider, told in the form of the wire.
type Failure struct {
	Kind FailureKind
	// RetryAfter is in seconds; negative leaves the header out.
	RetryAfter int
	// Message replaces the provider's usual words.
	Message string
}

// FailureKind names an error that providers have.
type FailureKind string

// The errors.
const (
	RateLimit      FailureKind = "rate_limit"
	BadKey         FailureKind = "authentication"
	NoSuchModel    FailureKind = "model_not_found"
	ContextTooLong FailureKind = "context"
	Internal       FailureKind = "internal"
	Overloaded     FailureKind = "overloaded"
	// SessionLimit is no provider's: it is how a session's runtime refuses a call over its limits.
	SessionLimit FailureKind = "limit"
	// BadRequest is what a request that the wire refuses gets.
	BadRequest FailureKind = "bad_request"
)

// Script is what a server answers from.
type Script struct {
	Steps []Step
	// Default is the text for requests that no step is for.
	Default string
}

// Input encodes the input of a call.
func Input(v any) json.RawMessage {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in the test itself
	}
	return encoded
}
