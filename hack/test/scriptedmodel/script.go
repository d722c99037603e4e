// Package scriptedmodel is a stub, not a model: it serves the wires of model providers and answers
// from a script. Tests and the demo use it in place of a provider. It is as strict as a provider:
// it refuses invalid requests in the provider's own form, and records them as violations for the
// test to read.
package scriptedmodel

import "encoding/json"

// Step is one answer of the script.
//
// A step is used once, or as often as Times says. A step without a condition (When, Contains)
// answers the next request that offers tools, in the order of the script. Agents also make other
// calls, for a title or a summary. These get the script's default text, unless a step with a
// condition matches them.
type Step struct {
	// Text comes first, then the calls, all in one message.
	Text     string
	Thinking string
	Calls    []Call
	// Usage is the reported usage; nil reports a small fixed usage.
	Usage *Usage
	// Cut makes the answer report that it was truncated at the limit of output tokens.
	Cut bool
	// Failure is sent instead of the answer.
	Failure *Failure
	// Break drops the connection in the middle of a streamed answer. Reset drops it before the
	// answer.
	Break, Reset bool
	// Pause interrupts a streamed answer after its first half, until the channel is closed or the
	// client disconnects.
	Pause <-chan struct{}
	// Times is the number of uses of the step; 0 means once.
	Times int
	// If Contains is set, the step answers a request whose text contains these words, whether or not
	// the request offers tools.
	Contains string

	// If When is set, the step answers a request for which When returns true, whether or not the
	// request offers tools.
	When func(*Request) bool
	// Check checks the request that uses the step. Its error is recorded as a violation, and the
	// request is refused.
	Check func(*Request) error
	// Hold delays the answer until the channel is closed or the client disconnects.
	Hold <-chan struct{}
}

// Call is a tool call.
type Call struct {
	Name  string
	Input json.RawMessage
	// ID defaults to call_<step>_<number>.
	ID string
	// Namespace is the tool's namespace, on the responses wire.
	Namespace string
}

// Usage is a number of tokens. Cached tokens are part of Input.
type Usage struct {
	Input  int
	Output int
	Cached int
}

// Failure is a provider's error, in the form of the wire.
type Failure struct {
	Kind FailureKind
	// RetryAfter is in seconds; negative leaves the header out.
	RetryAfter int
	// Message replaces the provider's usual message.
	Message string
	// InStream sends the error as an event of a stream that began with status 200.
	InStream bool
}

// FailureKind names an error of providers.
type FailureKind string

// The errors.
const (
	RateLimit      FailureKind = "rate_limit"
	BadKey         FailureKind = "authentication"
	NoSuchModel    FailureKind = "model_not_found"
	ContextTooLong FailureKind = "context"
	Internal       FailureKind = "internal"
	Overloaded     FailureKind = "overloaded"
	// SessionLimit is not a provider's error: a session's runtime returns it for a call beyond its
	// limits.
	SessionLimit FailureKind = "limit"
	// BadRequest is the answer to an invalid request.
	BadRequest FailureKind = "bad_request"
	// NoCredit is the error of an account without credit.
	NoCredit    FailureKind = "no_credit"
	Forbidden   FailureKind = "forbidden"
	Unavailable FailureKind = "unavailable"
	// GatewayPage is the HTML error page of a gateway that cannot reach the provider.
	GatewayPage FailureKind = "gateway_page"
)

// Script is the script of a server.
type Script struct {
	Steps []Step
	// Default is the text for requests that no step matches.
	Default string
	// Window is the model's context window in tokens; zero means no limit. If it is set, longer
	// requests are refused, and the reported usage of an answer is the size of its request.
	Window int
	// TextOnly makes the model refuse images.
	TextOnly bool
}

// Input encodes the input of a call.
func Input(v any) json.RawMessage {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in the test itself
	}
	return encoded
}
