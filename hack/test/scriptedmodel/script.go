// Package scriptedmodel is a stub that replaces model providers in tests and in the demo. It serves
// the APIs of several providers and answers from a script. It refuses invalid requests as a
// provider would, and records them as violations for tests.
package scriptedmodel

import "encoding/json"

// Step is one answer of the script.
//
// A step answers one request, or several if Times is set. A step that sets neither When nor
// Contains answers the next request that offers tools. A step that sets When or Contains answers
// the next request that matches it. If no step matches a request, such as an agent's request for a
// title, the answer is the script's default text.
type Step struct {
	// An answer contains the text and then the calls, in one message.
	Text     string
	Thinking string
	Calls    []Call
	// Usage is the reported usage. If it is nil, a small fixed usage is reported.
	Usage *Usage
	// If Cut is true, the answer reports that it was truncated at the limit of output tokens.
	Cut bool
	// Failure replaces the answer with an error.
	Failure *Failure
	// Break drops the connection in the middle of a streamed answer. Reset drops it before the
	// answer begins.
	Break, Reset bool
	// Pause interrupts a streamed answer after its first half, until the channel is closed or the
	// client disconnects.
	Pause <-chan struct{}
	// Times is the number of requests that the step answers. Zero means one.
	Times int
	// If Contains is set, the step answers only requests that contain these words, whether or not
	// they offer tools.
	Contains string

	// If When is set, the step answers only requests for which When returns true, whether or not
	// they offer tools.
	When func(*Request) bool
	// Check checks the request that the step would answer. If Check returns an error, the request
	// is refused, and the error is recorded as a violation.
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
	// Namespace is the tool's namespace. Only the responses API has namespaces.
	Namespace string
}

// Usage counts tokens. Input includes the cached tokens.
type Usage struct {
	Input  int
	Output int
	Cached int
}

// Failure is an error in the form that the provider uses.
type Failure struct {
	Kind FailureKind
	// RetryAfter is the value of the header Retry-After in seconds. If it is negative, the response
	// has no such header. If it is zero, only errors of the kinds RateLimit, Overloaded and
	// Internal have the header.
	RetryAfter int
	// Message, if set, replaces the provider's usual message.
	Message string
	// If InStream is true, the error is an event in a stream with status 200.
	InStream bool
}

// FailureKind is a kind of error.
type FailureKind string

// Kinds of errors.
const (
	RateLimit      FailureKind = "rate_limit"
	BadKey         FailureKind = "authentication"
	NoSuchModel    FailureKind = "model_not_found"
	ContextTooLong FailureKind = "context"
	Internal       FailureKind = "internal"
	Overloaded     FailureKind = "overloaded"
	// SessionLimit is the error of a session's runtime for a call that exceeds the session's
	// limits. No provider sends it.
	SessionLimit FailureKind = "limit"
	// BadRequest is the error for an invalid request.
	BadRequest FailureKind = "bad_request"
	// NoCredit is the error for an account without credit.
	NoCredit    FailureKind = "no_credit"
	Forbidden   FailureKind = "forbidden"
	Unavailable FailureKind = "unavailable"
	// GatewayPage is an HTML page from a gateway that cannot reach the provider.
	GatewayPage FailureKind = "gateway_page"
)

// Script determines a server's answers.
type Script struct {
	Steps []Step
	// Default is the answer to requests without a matching step.
	Default string
	// Window is the model's context window in tokens. Zero means no limit. If it is set, longer
	// requests are refused, and an answer reports the size of its request as usage.
	Window int
	// If TextOnly is true, the model refuses images.
	TextOnly bool
}

// Input encodes the input of a tool call as JSON.
func Input(v any) json.RawMessage {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in the test itself
	}
	return encoded
}
