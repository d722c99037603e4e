package modelproxy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

// breakOff returns an endpoint that sends these events and then drops the connection.
func breakOff(events string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answerEvents(events)(w, r)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestCallsThatFailAtTheEndpointAreNotCounted(t *testing.T) {
	const none = "0 calls, 0 in, 0 out, 0 read, 0 written, $0"
	const started = `data: {"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":1}}}` + "\n\n"
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		want   string
	}{
		"a rate limit":      {"/v1/messages", status(http.StatusTooManyRequests), none},
		"an overload":       {"/v1/messages", status(529), none},
		"an internal error": {"/v1/chat/completions", status(500), none},
		"a reset": {"/v1/chat/completions", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			none},
		"an error in a stream": {"/v1/messages", answerEvents(`event: error` + "\n" +
			`data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}` + "\n\n"),
			none},
		"a broken stream with usage": {"/v1/messages", breakOff(started),
			"0 calls, 100 in, 1 out, 0 read, 0 written, $0.000315"},
		"a broken stream without usage": {"/v1/chat/completions", breakOff(chatText),
			none + ", 1 unpriced"},
		"a refused request": {"/v1/messages", status(http.StatusBadRequest), "1 calls, 0 in, 0 out, 0 read, 0 written, $0"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, c.answer)
			p := serve(t, u.URL, func(o *modelproxy.Options) { o.MaxCalls = 1 })
			begin(t, p, "1")
			model := map[string]string{"/v1/messages": "claude", "/v1/chat/completions": "gpt"}[c.path]
			p.post(t.Context(), c.path, `{"stream":true,"model":"`+model+`"}`)
			eventually(t, "the call is settled", func() bool { return counts(p.Usage().Turn) == c.want })
			if counts(p.Usage().Session) != c.want {
				t.Errorf("the session counted %s", counts(p.Usage().Session))
			}
		})
	}
}

func TestAnEstimateIsCountedForABrokenStreamWithoutUsage(t *testing.T) {
	broken := true
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if broken {
			broken = false
			breakOff(chatText)(w, r)
		}
		answerEvents(chatText+chatUsage+chatDone)(w, r)
	})
	var h heard
	p := serve(t, u.URL, h.listen, func(o *modelproxy.Options) { o.MaxBudget, o.Model = "1", "openai/gpt" })
	begin(t, p, "1")
	body := `{"model":"gpt","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("long ", 6000) + `"}]}`
	if got := p.post(t.Context(), "/v1/chat/completions", body); got.err == nil {
		t.Fatalf("got %+v", got)
	}
	eventually(t, "an estimate is counted", func() bool {
		return p.Usage().Turn.Input > 6000 && p.Usage().Turn.Calls == 0
	})
	p.must(t, "/v1/chat/completions", body)
	if h.all() != "" || p.Usage().Turn.Unpriced != 0 {
		t.Errorf("the usage is %+v, and the callbacks are %s", p.Usage(), h.all())
	}
}

func TestAgentsAreToldNotToRetryAWrongEndpoint(t *testing.T) {
	for _, base := range []string{"http://no-such-host.invalid", "http://" + freeAddress(t)} {
		got := serve(t, base).post(t.Context(), "/v1/messages", `{"model":"claude"}`)
		if got.status != http.StatusBadGateway || got.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: got %+v", base, got)
		}
	}
	u := newUpstream(t, answerJSON(messagesJSON))
	p := serve(t, u.URL)
	p.must(t, "/v1/messages", `{"model":"claude"}`)
	u.Close()
	if got := p.post(t.Context(), "/v1/messages", `{"model":"claude"}`); got.status != http.StatusBadGateway ||
		got.header.Get("X-Should-Retry") != "" {
		t.Errorf("after an answer: got %+v", got)
	}
}
