package llm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

// Kind is the machine-readable kind of an error.
type Kind string

// These are the kinds of errors.
const (
	Authentication Kind = "authentication"
	NotFound       Kind = "model_not_found"
	RateLimit      Kind = "rate_limit"
	Context        Kind = "context"
	Limit          Kind = "limit"
	Network        Kind = "network"
	Provider       Kind = "provider"
	Unusable       Kind = "unusable"
	// Stuck means that the model repeats itself. The agent, not the provider, reports this error.
	Stuck Kind = "stuck"
)

// These error types come from the session's runtime, which forwards the calls to the provider.
const (
	limitType       = "parley_limit"
	settingsType    = "parley_settings"
	unreachableType = "parley_unreachable"
)

// maxQuote is the length in bytes of the longest provider message that an error quotes. A longer
// message is dropped, not truncated: the runtime masks secrets in errors, but cannot recognise a
// part of a secret.
const maxQuote = 4 << 10

// Error explains to the user why a model did not answer. It contains no key and no complete
// response.
type Error struct {
	Kind    Kind
	Message string
	// Refused is the part of the history that the provider refused, if any.
	Refused Refusal
	// Window is the model's context window, if the kind is Context and the provider's error
	// contains it. TooLarge is set if the request has too many bytes, not too many tokens.
	Window   int
	TooLarge bool
	// Transient is set if a retry may succeed. The provider asks to wait for RetryAfter before the
	// retry.
	Transient  bool
	RetryAfter time.Duration
}

func (e *Error) Error() string { return e.Message }

type providerError struct {
	status              int
	kind, code, message string
	// param is the parameter that OpenAI's error names as refused. body is the whole response body.
	param, body string
	header      http.Header
	// delay is the retry delay in the body of Google's errors.
	delay time.Duration
}

func parseProviderError(status int, body string) providerError {
	var envelope struct {
		Error json.RawMessage `json:"error"`
	}
	raw := []byte(body)
	if list := []json.RawMessage{}; json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		raw = list[0] // Gemini's endpoint for OpenAI's API wraps the error in a list
	}
	if json.Unmarshal(raw, &envelope) == nil && len(envelope.Error) > 0 {
		raw = envelope.Error
	}
	var e struct {
		Type    string `json:"type"`
		Code    any    `json:"code"`
		Message string `json:"message"`
		Param   any    `json:"param"`
		Details []struct {
			RetryDelay string `json:"retryDelay"`
		} `json:"details"`
	}
	_ = json.Unmarshal(raw, &e) // ignore the HTML page of a gateway
	code, _ := e.Code.(string)
	if n, ok := e.Code.(float64); ok && status == http.StatusOK {
		status = int(n) // within a stream, gateways put the HTTP status into the code
	}
	parsed := providerError{status: status, kind: e.Type, code: code, message: e.Message, body: body}
	parsed.param, _ = e.Param.(string)
	for _, detail := range e.Details {
		if delay, err := time.ParseDuration(detail.RetryDelay); err == nil {
			parsed.delay = max(0, delay)
		}
	}
	return parsed
}

// explain converts an SDK's error into an error for the user.
func explain(ctx context.Context, err error, key string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[*anthropic.Error](err); ok {
		return parseProviderError(e.StatusCode, e.RawJSON()).with(e.Response).explain(key)
	}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return parseProviderError(e.StatusCode, e.RawJSON()).with(e.Response).explain(key)
	}
	if e, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return parseProviderError(http.StatusOK, string(e.Event.Data)).explain(key)
	}
	return &Error{Kind: Network, Message: "The model could not be reached, or the connection to it broke.",
		Transient: true}
}

func (r providerError) with(response *http.Response) providerError {
	if response != nil {
		r.header = response.Header
	}
	return r
}

func (r providerError) explain(key string) error {
	kind, message := r.kindAndMessage()
	switch quote := r.quote(key); {
	case quote == "" || kind == Authentication:
	case r.kind == limitType || r.kind == settingsType || r.kind == unreachableType:
		message = strings.TrimSuffix(message, ".") + ": " + quote // the quoted message is from the runtime
	default:
		message += " The provider's message: " + quote
	}
	failure := &Error{Kind: kind, Message: message, RetryAfter: r.retryAfter()}
	switch kind {
	case Context:
		failure.Window, failure.TooLarge = r.window(), r.status == http.StatusRequestEntityTooLarge
	case Provider, NotFound:
		failure.Refused = r.refusal()
	}
	failure.Transient = r.transient(kind) && failure.Refused == ""
	return failure
}

func (r providerError) kindAndMessage() (Kind, string) {
	switch {
	case r.kind == limitType:
		return Limit, "A limit of the session was reached."
	case r.kind == settingsType:
		return Unusable, "The model cannot be used."
	case r.kind == unreachableType:
		return Network, "The model could not be reached."
	case r.status == http.StatusUnauthorized || r.status == http.StatusForbidden || r.kind == "authentication_error":
		return Authentication, "The model's provider refused the API key."
	case r.tooLong():
		return Context, "The conversation is longer than the model's context."
	case r.status == http.StatusNotFound || r.code == "model_not_found":
		return NotFound, "The provider has no such model, or the base URL is wrong."
	case r.quotaExceeded():
		return RateLimit, "The account has no credit left at the model's provider."
	case r.status == http.StatusTooManyRequests || r.kind == "rate_limit_error" || r.code == "rate_limit_exceeded":
		return RateLimit, "The model's provider limits the request rate."
	case r.kind == "overloaded_error":
		return Provider, "The model's provider is overloaded."
	case r.status >= http.StatusInternalServerError || r.kind == "api_error" || r.kind == "server_error":
		return Provider, "The model's provider failed with an internal error."
	}
	if r.status == http.StatusOK {
		return Provider, "The model's provider interrupted its answer with an error."
	}
	return Provider, "The model's provider refused the request."
}

// tooLong reports whether the request was too long for the model. It also checks the message,
// because Anthropic and several OpenAI-compatible servers return no error code for this.
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

// quote returns the provider's message on one line and without the key. If the message is too long,
// the result is empty.
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
