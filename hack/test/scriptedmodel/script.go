// Package scriptedmodel is a stub, not a model: it serves the wires of model providers and answers
// from a script. Tests and the demo use it in place of a provider. It is as strict as a provider:
// what the real wire would refuse is refused in the provider's own form, and recorded as a
// violation for the test to read.
package scriptedmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Step is one answer of the script.
//
// A step is used once. Without a condition (When, Contains) it is used by the next request that
// offers tools, in the order of the script: agents make other calls, for a title or a summary, and
// those must not eat the script. They get the script's default text, unless a step with a condition
// wants them.
type Step struct {
	// Text is said first, then the calls are made, all in one message.
	Text     string `json:"text,omitempty"`
	Thinking string `json:"thinking,omitempty"`
	Calls    []Call `json:"calls,omitempty"`
	// Usage is what the answer reports; without it a little is made up.
	Usage *Usage `json:"usage,omitempty"`
	// Cut says that the answer was cut at the limit of output tokens.
	Cut bool `json:"cut,omitempty"`
	// Failure is answered instead.
	Failure *Failure `json:"failure,omitempty"`
	// Break ends the connection in the middle of a streamed answer.
	Break bool `json:"break,omitempty"`
	// Times is how often the step is used; 0 means once.
	Times int `json:"times,omitempty"`
	// Contains makes this a step for requests whose text has these words, with tools or without.
	Contains string `json:"contains,omitempty"`

	// When makes this a step for requests that it accepts, with tools or without.
	When func(*Request) bool `json:"-"`
	// Check looks at the request that uses the step. Its error is recorded as a violation and
	// refused.
	Check func(*Request) error `json:"-"`
	// Hold delays the answer until it is closed, or the caller is gone.
	Hold <-chan struct{} `json:"-"`
}

// Call is a call of a tool.
type Call struct {
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
	// ID is made up where it is empty: call_<step>_<number>.
	ID string `json:"id,omitempty"`
	// Namespace of the tool, on the responses wire.
	Namespace string `json:"namespace,omitempty"`
}

// Usage in tokens. Cached ones are part of Input.
type Usage struct {
	Input  int `json:"input"`
	Output int `json:"output"`
	Cached int `json:"cached,omitempty"`
}

// Failure is an error of the provider, told in the form of the wire.
type Failure struct {
	Kind FailureKind `json:"kind"`
	// RetryAfter is in seconds; negative leaves the header out.
	RetryAfter int `json:"retryAfter,omitempty"`
	// Message replaces the provider's usual words.
	Message string `json:"message,omitempty"`
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
	Steps []Step `json:"steps"`
	// Default is the text for requests that no step is for.
	Default string `json:"default,omitempty"`
}

// Load reads a script from JSON.
func Load(r io.Reader) (Script, error) {
	decoder := json.NewDecoder(r)
	decoder.DisallowUnknownFields()
	var s Script
	if err := decoder.Decode(&s); err != nil {
		return Script{}, fmt.Errorf("script: %w", err)
	}
	for i, step := range s.Steps {
		if err := step.validate(); err != nil {
			return Script{}, fmt.Errorf("script: step %d: %w", i, err)
		}
	}
	return s, nil
}

func (s Step) validate() error {
	if s.Failure != nil {
		if _, known := failures[s.Failure.Kind]; !known {
			return fmt.Errorf("unknown failure %q", s.Failure.Kind)
		}
		return nil
	}
	for _, call := range s.Calls {
		if call.Name == "" {
			return errors.New("a call without a name")
		}
	}
	return nil
}

// Input encodes the input of a call; it is for scripts written in Go.
func Input(v any) json.RawMessage {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in the test itself
	}
	return encoded
}
