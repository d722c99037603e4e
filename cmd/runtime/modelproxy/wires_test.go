package modelproxy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

const (
	messagesJSON = `{"id":"msg_01","type":"message","role":"assistant","model":"claude","content":[{"type":"text",` +
		`"text":"{\"usage\":{\"input_tokens\":999}}"}],
		"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":100,"cache_creation_input_tokens":20,` +
		`"cache_read_input_tokens":1000,
		"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":0},"output_tokens":50,` +
		`"service_tier":"standard"}}`
	messagesEvents = `event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","model":"claude",` +
		`"content":[],"stop_reason":null,"usage":{"input_tokens":100,"cache_creation_input_tokens":20,` +
		`"cache_read_input_tokens":1000,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\"usage\":{\"output_tokens\":7777}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":50}}

event: message_stop
data: {"type":"message_stop"}

`
	messagesCounts = "1 calls, 100 in, 50 out, 1000 read, 20 written, $0.001425"

	chatJSON = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],
		"usage":{"prompt_tokens":1000,"completion_tokens":50,"total_tokens":1050,` +
		`"prompt_tokens_details":{"cached_tokens":400,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":10}}}`
	chatText = `data: {"id":"c","object":"chat.completion.chunk","model":"gpt","choices":[{"index":0,` +
		`"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","model":"gpt","choices":[{"index":0,"delta":{"content":"hi"},` +
		`"finish_reason":null}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","model":"gpt","choices":[{"index":0,"delta":{},` +
		`"finish_reason":"stop"}],"usage":null}

`
	chatUsage = `data: {"id":"c","object":"chat.completion.chunk","model":"gpt","choices":[],` +
		`"usage":{"prompt_tokens":1000,"completion_tokens":50,"total_tokens":1050,` +
		`"prompt_tokens_details":{"cached_tokens":400}}}

`
	chatDone   = "data: [DONE]\n\n"
	chatCounts = "1 calls, 600 in, 50 out, 400 read, 0 written, $0.00009"

	responsesJSON = `{"id":"resp_1","object":"response","status":"completed","model":"gpt","output":[{"type":"message",` +
		`"content":[{"type":"output_text","text":"hi"}]}],
		"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":400},"output_tokens":50,` +
		`"output_tokens_details":{"reasoning_tokens":10},"total_tokens":1050}}`
	responsesEvents = `event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response",` +
		`"status":"in_progress","output":[],"usage":null}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":1,"item_id":"m","output_index":0,"content_index":0,` +
		`"delta":"hi"}

event: response.completed
data: {"type":"response.completed","sequence_number":2,"response":{"id":"resp_1","object":"response",` +
		`"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],` +
		`"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":400},"output_tokens":50,` +
		`"output_tokens_details":{"reasoning_tokens":10},"total_tokens":1050}}}

`
)

func TestEveryModelAPIIsForwardedAndCounted(t *testing.T) {
	for name, c := range map[string]struct {
		path, body    string
		answer        http.HandlerFunc
		passed, count string
	}{
		"messages": {"/v1/messages?beta=true", `{"model":"claude","max_tokens":10,"messages":[]}`,
			answerJSON(messagesJSON), messagesJSON, messagesCounts},
		"messages, streamed": {"/v1/messages", `{"model":"claude","stream":true}`, answerEvents(messagesEvents),
			messagesEvents, messagesCounts},
		"chat": {"/v1/chat/completions", `{"model":"gpt"}`, answerJSON(chatJSON), chatJSON, chatCounts},
		"chat, streamed": {"/v1/chat/completions", `{"model":"gpt","stream":true,` +
			`"stream_options":{"include_usage":true}}`, answerEvents(chatText + chatUsage + chatDone),
			chatText + chatUsage + chatDone, chatCounts},
		"chat, usage not requested": {"/v1/chat/completions", `{"model":"gpt","stream":true}`,
			answerEvents(chatText + chatUsage + chatDone), chatText + chatDone, chatCounts},
		"chat, with CR": {"/chat/completions", `{"model":"gpt","stream":true}`,
			answerEvents(crlf(chatText + chatUsage + chatDone)), crlf(chatText + chatDone), chatCounts},
		"responses": {"/v1/responses", `{"model":"gpt"}`, answerJSON(responsesJSON), responsesJSON, chatCounts},
		"responses, streamed": {"/responses", `{"model":"gpt","stream":true}`, answerEvents(responsesEvents),
			responsesEvents, chatCounts},
		"a dated model": {"/v1/messages", `{"model":"claude-20260101"}`, answerJSON(messagesJSON), messagesJSON,
			messagesCounts},
		"a model of a gateway": {"/v1/chat/completions", `{"model":"openai/gpt-2026-01-01"}`, answerJSON(chatJSON), chatJSON,
			chatCounts},
		"an unknown model": {"/v1/messages", `{"model":"other"}`, answerJSON(messagesJSON), messagesJSON,
			"1 calls, 100 in, 50 out, 1000 read, 20 written, $0, 1 unpriced"},
		"no price": {"/v1/messages", `{"model":"window-only"}`, answerJSON(messagesJSON), messagesJSON,
			"1 calls, 100 in, 50 out, 1000 read, 20 written, $0, 1 unpriced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, c.answer)
			p := serve(t, u.URL)
			if got := p.must(t, c.path, c.body); got.body != c.passed {
				t.Errorf("the agent got\n%s\nwant\n%s", got.body, c.passed)
			}
			if got := counts(p.Usage().Session); got != c.count {
				t.Errorf("counted %s, want %s", got, c.count)
			}
			path, query, _ := strings.Cut(c.path, "?")
			if got := u.last(t); got.path != "/v1"+strings.TrimPrefix(path, "/v1") || got.query != query {
				t.Errorf("the endpoint got %s?%s", got.path, got.query)
			}
		})
	}
}

func crlf(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") }

func TestTheUsageOfAChatStreamIsRequested(t *testing.T) {
	u := newUpstream(t, answerEvents(chatText+chatUsage+chatDone))
	p := serve(t, u.URL)
	for body, want := range map[string]string{
		`{"model":"gpt","stream":true,"messages":[{"content":"<b>&"}]}`: `{"messages":[{"content":"<b>&"}],` +
			`"model":"gpt","stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"gpt","stream":true,"stream_options":{"include_usage":false}}`: `{"model":"gpt","stream":true,` +
			`"stream_options":{"include_usage":true}}`,
		`{"model":"gpt","stream":true,"stream_options":{"include_obfuscation":false}}`: `{"model":"gpt","stream":true,` +
			`"stream_options":{"include_obfuscation":false,"include_usage":true}}`,
		`{"model":"gpt","stream":true,"stream_options":null}`: `{"model":"gpt","stream":true,` +
			`"stream_options":{"include_usage":true}}`,
		`{"stream":true, "model":"gpt","stream_options":{"include_usage":true}}`: `{"stream":true, "model":"gpt",` +
			`"stream_options":{"include_usage":true}}`,
		`{"stream":false, "model":"gpt"}`: `{"stream":false, "model":"gpt"}`,
	} {
		p.must(t, "/v1/chat/completions", body)
		if got := strings.TrimSpace(u.last(t).body); got != want {
			t.Errorf("%s\nbecame\n%s", body, got)
		}
	}
	p.must(t, "/v1/responses", `{"stream": true}`)
	if got := u.last(t).body; got != `{"stream": true}` {
		t.Errorf("of another wire: %s", got)
	}
}

func TestUsageIsNotRequestedFromAnEndpointThatRefusesIt(t *testing.T) {
	var u *upstream
	u = newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(u.last(t).body, "stream_options") {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = w.Write([]byte(`{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"]}]}`))
			return
		}
		answerEvents(chatText+chatDone)(w, r)
	})
	p := serve(t, u.URL)
	for range 2 {
		if got := p.must(t, "/v1/chat/completions", `{"model":"gpt","stream":true}`); got.body != chatText+chatDone {
			t.Errorf("got %s", got.body)
		}
	}
	if u.count() != 3 {
		t.Errorf("the endpoint got %d calls", u.count())
	}
	if got := counts(p.Usage().Session); got != "2 calls, 0 in, 0 out, 0 read, 0 written, $0, 2 unpriced" {
		t.Errorf("counted %s", got)
	}
}

func TestAnAgentCannotStopTheProxyFromRequestingUsage(t *testing.T) {
	var u *upstream
	u = newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(u.last(t).body, "foo") {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":{"message":"Unknown parameter: 'stream_options.foo'"}}`))
			return
		}
		answerEvents(chatText+chatUsage+chatDone)(w, r)
	})
	p := serve(t, u.URL)
	for _, body := range []string{`{"model":"gpt","stream":true,"stream_options":{"foo":1}}`,
		`{"model":"gpt","stream":true,"messages":"foo"}`} {
		if got := p.post(t.Context(), "/v1/chat/completions", body); got.status != http.StatusBadRequest {
			t.Errorf("%s: got %+v", body, got)
		}
	}
	p.must(t, "/v1/chat/completions", `{"model":"gpt","stream":true}`)
	if got := u.last(t).body; !strings.Contains(got, "include_usage") {
		t.Errorf("the endpoint got %s", got)
	}
}

func TestCallsThatUseNoModelAreForwardedButNotCounted(t *testing.T) {
	u := newUpstream(t, answerJSON(`{"input_tokens":5,"usage":{"input_tokens":5}}`))
	p := serve(t, u.URL+"/v1/", func(o *modelproxy.Options) { o.MaxCalls = 1 })
	for range 3 {
		p.must(t, "/v1/messages/count_tokens", `{"model":"claude"}`)
	}
	if got := u.last(t); got.path != "/v1/messages/count_tokens" || got.header.Get("X-Api-Key") != key {
		t.Errorf("the endpoint got %+v", got)
	}
	for _, c := range []struct{ header, value, shown string }{{"Accept", "*/*", "Authorization"}, {"Anthropic-Version",
		"2023-06-01", "X-Api-Key"}} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/v1/models?limit=20", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(c.header, c.value)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got := u.last(t); got.method != http.MethodGet || got.path != "/v1/models" || got.query != "limit=20" ||
			!strings.HasSuffix(got.header.Get(c.shown), key) {
			t.Errorf("the endpoint got %+v", got)
		}
	}
	if got := counts(p.Usage().Session); got != "0 calls, 0 in, 0 out, 0 read, 0 written, $0" {
		t.Errorf("counted %s", got)
	}
}

func TestAReportedCostOverridesThePrices(t *testing.T) {
	for name, c := range map[string]struct{ header, usage, model, cost string }{
		"a cost in the usage":  {"", `{"prompt_tokens":1000,"completion_tokens":50,"cost":0.0123}`, "gpt", "0.0123"},
		"a small cost":         {"", `{"prompt_tokens":1000,"completion_tokens":50,"cost":1.5e-7}`, "gpt", "0.00000015"},
		"a cost in a header":   {"2.85e-05", `{"prompt_tokens":1000,"completion_tokens":50}`, "other", "0.0000285"},
		"a free model":         {"", `{"prompt_tokens":1000,"completion_tokens":50,"cost":0}`, "other", "0"},
		"zero despite a price": {"0.0", `{"prompt_tokens":1000,"completion_tokens":0,"cost":0}`, "gpt", "0.0001"},
		"a cost of None":       {"None", `{"prompt_tokens":1000,"completion_tokens":0}`, "gpt", "0.0001"},
		"a negative cost":      {"-1", `{"prompt_tokens":1000,"completion_tokens":0,"cost":-5}`, "gpt", "0.0001"},
		"a huge exponent": {"1e999999999", `{"prompt_tokens":1000,"completion_tokens":0,"cost":1e999999999}`, "gpt",
			"0.0001"},
		"hidden reasoning": {"", `{"prompt_tokens":1000,"completion_tokens":0,"total_tokens":1500}`, "gpt", "0.0003"},
		"a count that is a text": {"", `{"prompt_tokens":1000,"completion_tokens":"many","total_tokens":1500}`, "gpt",
			"0.0003"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Litellm-Response-Cost", c.header)
				answerJSON(`{"choices":[],"usage":`+c.usage+`}`)(w, r)
			})
			p := serve(t, u.URL)
			p.must(t, "/v1/chat/completions", `{"model":"`+c.model+`"}`)
			if got := p.Usage().Session; got.Cost.String() != c.cost || got.Unpriced != 0 {
				t.Errorf("counted %s, want %s", counts(got), c.cost)
			}
		})
	}
}

func TestTheUsageReportsTheSizeOfTheContext(t *testing.T) {
	u := newUpstream(t, answerJSON(messagesJSON))
	p := serve(t, u.URL)
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	if got := p.Usage(); got.Model != "claude" || got.Context != 1170 || got.ContextWindow != 200000 {
		t.Errorf("got %+v", got)
	}
}
