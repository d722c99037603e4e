package modelproxy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

// Each answer is 17 MiB long: one long text, or many short log probabilities.
func TestALargeAnswerCountsTowardsTheBudget(t *testing.T) {
	const size = 17 << 20
	text := strings.Repeat("x", size)
	const logprob = `{"token":"\"usage\":{","logprob":-0.1,"usage":{"prompt_tokens":7}},`
	logprobs := `{"choices":[{"logprobs":{"content":[` + strings.Repeat(logprob, size/len(logprob)) + `{}]}}],`
	responseText := `"response":{"status":"completed","output":[{"content":[{"text":"` + text + `"}]}],`
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
	}{
		"chat": {"/v1/chat/completions", answerJSON(strings.Replace(chatJSON, `"hi"`, `"`+text+`"`, 1))},
		"chat with log probabilities": {"/v1/chat/completions",
			answerJSON(strings.Replace(chatUsage[len("data: "):], `{`, logprobs, 1))},
		"chat, streamed": {"/v1/chat/completions",
			answerEvents("data: " + strings.Replace(chatUsage[len("data: "):], `{`, logprobs, 1) + chatDone)},
		"responses, streamed": {"/v1/responses",
			answerEvents(strings.Replace(responsesEvents, `"response":{"id":"resp_1","object":"response",`+
				`"status":"completed",`, responseText, 1))},
	} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, newUpstream(t, c.answer).URL, func(o *modelproxy.Options) { o.MaxBudget = "0.00009" })
			begin(t, p, "1")
			if got := p.must(t, c.path, `{"model":"gpt","stream":true}`); len(got.body) < size {
				t.Errorf("the agent got %d bytes", len(got.body))
			}
			if got := counts(p.Usage().Turn); got != chatCounts {
				t.Errorf("counted %s", got)
			}
			if got := p.post(t.Context(), c.path, `{"model":"gpt"}`); got.status != http.StatusPaymentRequired {
				t.Errorf("a call beyond the budget: %d", got.status)
			}
		})
	}
}

func TestUsageInAnUnterminatedEventIsCounted(t *testing.T) {
	for name, breaksOff := range map[string]bool{"at the end": false, "before a connection reset": true} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
				answerEvents(chatText+strings.TrimSpace(chatUsage))(w, r)
				_ = http.NewResponseController(w).Flush()
				if breaksOff {
					panic(http.ErrAbortHandler)
				}
			})
			p := serve(t, u.URL)
			got := p.post(t.Context(), "/v1/chat/completions", `{"model":"gpt","stream":true}`)
			if (got.err != nil) != breaksOff {
				t.Errorf("the agent got %+v", got)
			}
			want := chatCounts
			if breaksOff { // the call failed, but its tokens count
				want = strings.Replace(want, "1 calls", "0 calls", 1)
			}
			eventually(t, "the usage is counted", func() bool { return counts(p.Usage().Session) == want })
		})
	}
}

func TestUsageSentByteByByteIsCounted(t *testing.T) {
	for name, c := range map[string]struct{ path, kind, answer, count string }{
		"messages": {"/v1/messages", "application/json", messagesJSON, messagesCounts},
		"messages, streamed": {"/v1/messages", "text/event-stream", ": \"a comment\n\n" + messagesEvents,
			messagesCounts},
		"chat, streamed, with CR": {"/v1/chat/completions", "text/event-stream", crlf(chatText + chatUsage + chatDone),
			chatCounts},
		"responses in lines": {"/v1/responses", "text/event-stream",
			strings.ReplaceAll(responsesEvents, `,"`, ",\ndata:\""), chatCounts},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				for _, b := range []byte(c.answer) {
					_, _ = w.Write([]byte{b})
					_ = http.NewResponseController(w).Flush()
				}
			})
			p := serve(t, u.URL)
			model := map[bool]string{true: "claude", false: "gpt"}[c.path == "/v1/messages"]
			got := p.must(t, c.path, `{"model":"`+model+`","stream":true,"stream_options":{"include_usage":true}}`)
			if got.body != c.answer {
				t.Errorf("the agent got %s", got.body)
			}
			if got := counts(p.Usage().Session); got != c.count {
				t.Errorf("counted %s, want %s", got, c.count)
			}
		})
	}
}
