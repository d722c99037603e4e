package llm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

// Kind is the machine-readable kind of an error.
type Kind string

// The kinds of errors.
const (
	Authentication Kind = "authentication"
	NotFound       Kind = "model_not_found"
	RateLimit      Kind = "rate_limit"
	Context        Kind = "context"
	Limit          Kind = "limit"
	Network        Kind = "network"
	Provider       Kind = "provider"
	Unusable       Kind = "unusable"
	// Stuck is an error of the agent: the model repeats itself.
	Stuck Kind = "stuck"
)

// These error types are in answers of the session's runtime to calls that no provider answered: an
// exceeded limit of the session, wrong settings of the model, or an unreachable provider.
const (
	limitType       = "parley_limit"
	settingsType    = "parley_settings"
	unreachableType = "parley_unreachable"
)

// maxQuote is the longest message of a provider, in bytes, that an error quotes. Longer messages
// are dropped, not truncated: the runtime masks secrets later, and cannot recognise a part of a
// secret.
const maxQuote = 4 << 10

// Error explains to the user why a model did not answer. It contains no key and no complete
// response.
type Error struct {
	Kind    Kind
	Message string
	// Broken is set if the error occurred after the answer had begun: a retry may succeed.
	Broken bool
	// Refused is the part of the history that the provider refused, if any.
	Refused Refusal
	// Window is the model's context window, if the kind is Context and the provider named it. TooLarge
	// is set if the bytes of the request, not its tokens, were too many.
	Window   int
	TooLarge bool
}

func (e *Error) Error() string { return e.Message }

// providerError is the body of a provider's error response.
type providerError struct {
	status              int
	kind, code, message string
	// param is the refused parameter, as OpenAI names it. body is the whole body.
	param, body string
}

func parseProviderError(status int, body string) providerError {
	var envelope struct {
		Error json.RawMessage `json:"error"`
	}
	raw := []byte(body)
	if json.Unmarshal(raw, &envelope) == nil && len(envelope.Error) > 0 {
		raw = envelope.Error
	}
	var e struct {
		Type    string `json:"type"`
		Code    any    `json:"code"`
		Message string `json:"message"`
		Param   any    `json:"param"`
	}
	_ = json.Unmarshal(raw, &e) // ignore the HTML page of a gateway
	code, _ := e.Code.(string)
	param, _ := e.Param.(string)
	return providerError{status: status, kind: e.Type, code: code, message: e.Message, param: param, body: body}
}

// explain converts an SDK's error into an error for the user.
func explain(ctx context.Context, err error, key string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[*anthropic.Error](err); ok {
		return parseProviderError(e.StatusCode, e.RawJSON()).explain(key)
	}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return parseProviderError(e.StatusCode, e.RawJSON()).explain(key)
	}
	if e, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return parseProviderError(http.StatusOK, string(e.Event.Data)).explain(key)
	}
	return &Error{Kind: Network, Message: "The model could not be reached, or the connection to it broke."}
}

func (r providerError) explain(key string) error {
	kind, message := r.kindAndMessage()
	switch quote := r.quote(key); {
	case quote == "" || kind == Authentication:
	case r.kind == limitType || r.kind == settingsType || r.kind == unreachableType:
		message = strings.TrimSuffix(message, ".") + ": " + quote // from the runtime, not a provider
	default:
		message += " The provider's message: " + quote
	}
	// An error within a stream that began with 200 may be transient.
	failure := &Error{Kind: kind, Message: message, Broken: r.status == http.StatusOK && kind == Provider}
	switch kind {
	case Context:
		failure.Window, failure.TooLarge = r.window(), r.status == http.StatusRequestEntityTooLarge
	case Provider, NotFound:
		failure.Refused = r.refusal()
	}
	return failure
}

func (r providerError) kindAndMessage() (Kind, string) {
	switch {
	case r.kind == limitType:
		return Limit, "A limit of the session was reached."
	case r.kind == settingsType:
		return Unusable, "The model cannot be used."
	case r.kind == unreachableType:
		return Network, "The model could not be reached; all retries failed."
	case r.status == http.StatusUnauthorized || r.status == http.StatusForbidden || r.kind == "authentication_error":
		return Authentication, "The model's provider refused the API key."
	case r.tooLong():
		return Context, "The conversation is longer than the model's context."
	case r.status == http.StatusNotFound || r.code == "model_not_found":
		return NotFound, "The provider has no such model, or the base URL is wrong."
	case r.status == http.StatusTooManyRequests || r.kind == "rate_limit_error":
		return RateLimit, "The model's provider limits the request rate; all retries failed."
	case r.status >= http.StatusInternalServerError || r.kind == "overloaded_error" || r.kind == "api_error":
		return Provider, "The model's provider failed with an internal error; all retries failed."
	}
	return Provider, "The model's provider refused the request."
}

// tooLong reports whether the request was too long for the model. It checks the provider's error
// code and message, since Anthropic and several servers of OpenAI's API have no code for this
// error.
func (r providerError) tooLong() bool {
	switch r.status {
	case http.StatusRequestEntityTooLarge:
		return true
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusInternalServerError, http.StatusOK:
		text := r.text()
		return slices.ContainsFunc(tooLongSigns, func(sign string) bool { return strings.Contains(text, sign) })
	}
	return r.code == "context_length_exceeded"
}

// quote returns the provider's message on one line, without the key; empty if it is too long.
func (r providerError) quote(key string) string {
	quote := strings.Join(strings.Fields(r.message), " ")
	if key != "" {
		quote = strings.ReplaceAll(quote, key, "***")
	}
	if len(quote) > maxQuote {
		return ""
	}
	return quote
}
