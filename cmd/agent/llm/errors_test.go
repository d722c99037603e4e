package llm

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The response bodies are examples from the providers' documentation.
func TestErrorsSayWhetherAndWhenToRetry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status    int
		body      string
		header    http.Header
		transient bool
		after     time.Duration
	}{
		"Anthropic, overload": {status: 529, body: `{"type":"error","error":{"type":"overloaded_error",` +
			`"message":"Overloaded"}}`, transient: true},
		"Anthropic, rate limit": {status: 429, body: `{"type":"error","error":{"type":"rate_limit_error","message":"x"}}`,
			header: http.Header{"Retry-After": {"12"}}, transient: true, after: 12 * time.Second},
		"OpenAI, milliseconds": {status: 429, body: `{"error":{"code":"rate_limit_exceeded"}}`,
			header: http.Header{"Retry-After-Ms": {"250"}}, transient: true, after: 250 * time.Millisecond},
		"OpenAI, no credit": {status: 429, body: `{"error":{"type":"insufficient_quota","code":"insufficient_quota"}}`},
		"Google, quota": {status: 429, body: `[{"error":{"code":429,"message":"You exceeded your current quota",` +
			`"status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure"},` +
			`{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34s"}]}}]`, transient: true,
			after: 34 * time.Second},
		"OpenRouter, in a stream": {status: 200, body: `{"error":{"code":502,"message":"Provider returned error"}}`,
			transient: true},
		"OpenRouter, no credit": {status: 402, body: `{"error":{"code":402,"message":"Insufficient credits"}}`},
		"a page of a gateway":   {status: 504, body: `<html></html>`, transient: true},
		"the runtime, wrong host": {status: 502, body: `{"error":{"type":"parley_unreachable","message":"no such host"}}`,
			header: http.Header{"X-Should-Retry": {"false"}}},
		"the runtime, a redirect": {status: 502, body: `{"error":{"type":"parley_settings","message":"redirect"}}`},
		"the runtime, unreachable": {status: 502, body: `{"error":{"type":"parley_unreachable","message":"refused"}}`,
			transient: true},
		"an invalid request": {status: 400, body: `{"error":{"type":"invalid_request_error","message":"bad"}}`},
	} {
		parsed := parseProviderError(c.status, c.body)
		parsed.header = c.header
		got, _ := errors.AsType[*Error](parsed.explain(""))
		if got.Transient != c.transient || got.RetryAfter != c.after {
			t.Errorf("%s: transient: %v, after %s: %q", name, got.Transient, got.RetryAfter, got.Message)
		}
	}
}

// The runtime masks secrets in error messages, but cannot recognise a part of a secret in a
// truncated message.
func TestErrorsQuoteTheProvidersMessageCompletelyOrNotAtAll(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{
		"a key":           strings.Repeat("sk-0123456789", 20),
		"with separators": strings.Repeat("user:0123,4567;", 20),
		"with spaces":     strings.Repeat("correct horse ", 20) + "battery",
		"not ASCII":       strings.Repeat("pässwörter", 20),
	} {
		for _, before := range []string{strings.Repeat("no ", 90), strings.Repeat("no,", 90), strings.Repeat("不行", 140),
			strings.Repeat("no, ", 2000)} {
			body, err := json.Marshal(map[string]any{"error": map[string]any{"message": before + secret + "!"}})
			if err != nil {
				t.Fatal(err)
			}
			got := parseProviderError(http.StatusBadRequest, string(body)).explain("").Error()
			whole := strings.HasSuffix(got, " The provider's message: "+before+secret+"!")
			if none := got == "The model's provider refused the request."; !whole && !none || whole == (len(before) > maxQuote) {
				t.Errorf("%s after %.10q: got %q", name, before, got)
			}
		}
	}
}
