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

// Kind of an error, for programs.
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
)

// How the session's runtime marks a call that no provider answered: its limits refuse it, the
// settings of the model are wrong, or the provider could not be reached.
const (
	limitType       = "parley_limit"
	settingsType    = "parley_settings"
	unreachableType = "parley_unreachable"
)

// maxWords is how many bytes of a provider's own words an error repeats, or none of them: they are
// cut where secrets are known, after they are taken out. A part of one would not be known as such.
const maxWords = 4 << 10

// Error is why a model did not answer, in words for the user. It holds no key and no whole
// response.
type Error struct {
	Kind    Kind
	Message string
	// Broken says that the answer had begun: the same request may well succeed.
	Broken bool
}

func (e *Error) Error() string { return e.Message }

// refusal is what a provider says in the body of an error.
type refusal struct {
	status              int
	kind, code, message string
}

func readRefusal(status int, body string) refusal {
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
	}
	_ = json.Unmarshal(raw, &e) // a gateway's page of HTML says nothing that could be used
	code, _ := e.Code.(string)
	return refusal{status: status, kind: e.Type, code: code, message: e.Message}
}

// explain turns an SDK's error into one for the user.
func explain(ctx context.Context, err error, key string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[*anthropic.Error](err); ok {
		return readRefusal(e.StatusCode, e.RawJSON()).explain(key)
	}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return readRefusal(e.StatusCode, e.RawJSON()).explain(key)
	}
	if e, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return readRefusal(http.StatusOK, string(e.Event.Data)).explain(key)
	}
	return &Error{Kind: Network, Message: "The model could not be reached, or the connection to it broke."}
}

func (r refusal) explain(key string) error {
	kind, words := r.kindAndWords()
	switch said := r.said(key); {
	case said == "" || kind == Authentication:
	case r.kind == limitType || r.kind == settingsType || r.kind == unreachableType:
		words = strings.TrimSuffix(words, ".") + ": " + said // no provider said it
	default:
		words += " It said: " + said
	}
	// A stream that began with 200 and then told an error may do better when asked again.
	return &Error{Kind: kind, Message: words, Broken: r.status == http.StatusOK && kind == Provider}
}

func (r refusal) kindAndWords() (Kind, string) {
	switch {
	case r.kind == limitType:
		return Limit, "A limit of the session was reached."
	case r.kind == settingsType:
		return Unusable, "The model cannot be used."
	case r.kind == unreachableType:
		return Network, "The model could not be reached; retries did not help."
	case r.status == http.StatusUnauthorized || r.status == http.StatusForbidden || r.kind == "authentication_error":
		return Authentication, "The model's provider refused the API key."
	case r.tooLong():
		return Context, "The conversation is longer than the model's context."
	case r.status == http.StatusNotFound || r.code == "model_not_found":
		return NotFound, "The provider has no such model, or not at this address."
	case r.status == http.StatusTooManyRequests || r.kind == "rate_limit_error":
		return RateLimit, "The model's provider limits the rate of calls; retries did not help."
	case r.status >= http.StatusInternalServerError || r.kind == "overloaded_error" || r.kind == "api_error":
		return Provider, "The model's provider has an error of its own; retries did not help."
	}
	return Provider, "The model's provider refused the request."
}

// tooLong goes by the provider's code where it has one. Anthropic and several servers of OpenAI's
// wire have only words.
func (r refusal) tooLong() bool {
	if r.code == "context_length_exceeded" || r.status == http.StatusRequestEntityTooLarge {
		return true
	}
	if r.status != http.StatusBadRequest {
		return false
	}
	return slices.ContainsFunc([]string{"prompt is too long", "exceed context limit", "maximum context length",
		"context window", "context length"}, func(sign string) bool {
		return strings.Contains(strings.ToLower(r.message), sign)
	})
}

// said is what the provider said, on one line, without the key; nothing if that is long.
func (r refusal) said(key string) string {
	said := strings.Join(strings.Fields(r.message), " ")
	if key != "" {
		said = strings.ReplaceAll(said, key, "***")
	}
	if len(said) > maxWords {
		return ""
	}
	return said
}
