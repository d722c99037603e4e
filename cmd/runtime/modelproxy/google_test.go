package modelproxy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

const (
	googleJSON = `{"candidates":[{"content":{"role":"model",` +
		`"parts":[{"text":"{\"usageMetadata\":{\"promptTokenCount\":9}}"}]},"finishReason":"STOP","index":0}],
		"usageMetadata":{"promptTokenCount":900,"toolUsePromptTokenCount":100,"candidatesTokenCount":40,` +
		`"thoughtsTokenCount":10,"cachedContentTokenCount":400,"totalTokenCount":1050},"modelVersion":"gpt"}`
	googleEvents = `data: {"candidates":[{"content":{"role":"model","parts":[{"text":"h"}]},"index":0}],` +
		`"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":400,"totalTokenCount":1000}}

data: {"candidates":[{"content":{"role":"model","parts":[{"text":"i"}]},"finishReason":"STOP","index":0}],` +
		`"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":400,"candidatesTokenCount":50,` +
		`"totalTokenCount":1050}}

`
)

func TestGeminiCallsAreForwardedAndCounted(t *testing.T) {
	for name, c := range map[string]struct{ path, asked, query, passed string }{
		"whole": {"/v1beta/models/gpt:generateContent?key=placeholder", "/v1beta/models/gpt:generateContent", "",
			googleJSON},
		"streamed": {"/v1beta/models/gpt:streamGenerateContent?alt=sse&key=placeholder",
			"/v1beta/models/gpt:streamGenerateContent", "alt=sse", googleEvents},
		"of another version": {"/v1/models/gpt:generateContent", "/v1/models/gpt:generateContent", "", googleJSON},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := answerJSON(c.passed)
			if c.query != "" {
				answer = answerEvents(c.passed)
			}
			u := newUpstream(t, answer)
			p := serve(t, u.URL)
			if got := p.must(t, c.path, `{"contents":[]}`, "X-Goog-Api-Key", "placeholder"); got.body != c.passed {
				t.Errorf("the agent got\n%s", got.body)
			}
			if got := counts(p.Usage().Session); got != chatCounts {
				t.Errorf("counted %s, want %s", got, chatCounts)
			}
			got := u.last(t)
			if got.path != c.asked || got.query != c.query || got.header.Get("X-Goog-Api-Key") != key ||
				got.header.Get("Authorization") != "" {
				t.Errorf("the endpoint got %s?%s with %v", got.path, got.query, got.header)
			}
		})
	}
}

func TestGeminiCallsReachTheirEndpoint(t *testing.T) {
	u := newUpstream(t, answerJSON(`{}`))
	for _, c := range []struct{ base, want string }{
		{"", "https://generativelanguage.googleapis.com/v1beta/models/pro:generateContent"},
		{"https://llm.example", "https://llm.example/v1beta/models/pro:generateContent"},
		{"https://llm.example/a/v1beta/", "https://llm.example/a/v1beta/models/pro:generateContent"},
		{"https://llm.example/v1?x=y", "https://llm.example/v1beta/models/pro:generateContent?x=y"},
	} {
		transport := &elsewhere{to: u.Listener.Addr().String()}
		p := serve(t, c.base, func(o *modelproxy.Options) { o.Model, o.Transport = "gemini/pro", transport })
		p.must(t, "/v1beta/models/pro:generateContent", `{}`)
		if len(transport.seen) != 1 || transport.seen[0] != c.want {
			t.Errorf("%q becomes %s, want %s", c.base, transport.seen, c.want)
		}
	}
}

// The proxy refuses calls whose usage it could not read, and calls to unknown paths.
func TestUnsupportedGeminiCallsAreRefused(t *testing.T) {
	u := newUpstream(t, answerJSON(`{}`))
	p := serve(t, u.URL, func(o *modelproxy.Options) { o.MaxCalls = 1 })
	for path, want := range map[string]int{
		"/v1beta/models/gpt:streamGenerateContent":       http.StatusBadRequest,
		"/v1beta/models/gpt:embedContent":                http.StatusNotFound,
		"/v1beta/models/a%2F..%2F..%2Fx:generateContent": http.StatusNotFound,
		"/v1beta/files": http.StatusNotFound,
	} {
		if got := p.post(t.Context(), path, `{}`); got.status != want {
			t.Errorf("%s is answered with %d %s", path, got.status, got.body)
		}
	}
	if u.count() != 0 {
		t.Errorf("the endpoint got %d calls", u.count())
	}
	p.must(t, "/v1beta/models/gpt:countTokens", `{}`)
	p.must(t, "/v1beta/models/gpt:generateContent", `{}`)
	got := p.post(t.Context(), "/v1beta/models/gpt:generateContent", `{}`)
	if got.status != http.StatusPaymentRequired || !strings.Contains(got.body, `"code":402`) || !strings.Contains(got.body,
		"PARLEY_LIMIT") {
		t.Errorf("a call over the limit is answered with %d %s", got.status, got.body)
	}
}
