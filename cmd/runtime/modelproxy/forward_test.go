package modelproxy_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

func TestBaseURLsAndPathsAreJoinedAsInTheSDKs(t *testing.T) {
	u := newUpstream(t, answerJSON(`{}`))
	for _, c := range []struct{ base, model, path, want string }{
		{"", "openai/gpt", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"},
		{"", "openai/gpt", "/v1/responses", "https://api.openai.com/v1/responses"},
		{"", "anthropic/claude", "/v1/messages", "https://api.anthropic.com/v1/messages"},
		{"", "anthropic/claude", "/v1/chat/completions", "https://api.anthropic.com/v1/chat/completions"},
		{"", "gemini/gemini-pro", "/v1/chat/completions",
			"https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"},
		{"", "openrouter/anthropic/claude", "/v1/messages", "https://openrouter.ai/api/v1/messages"},
		{"", "Groq/llama", "/chat/completions", "https://api.groq.com/openai/v1/chat/completions"},
		{"https://llm.example", "openai/gpt", "/v1/chat/completions", "https://llm.example/v1/chat/completions"},
		{"https://llm.example/", "openai/gpt", "/v1/messages", "https://llm.example/v1/messages"},
		{"https://llm.example/v1", "x/y", "/v1/chat/completions", "https://llm.example/v1/chat/completions"},
		{"https://llm.example/v1/", "x/y", "/v1/messages?beta=true", "https://llm.example/v1/messages?beta=true"},
		{"https://llm.example/a%2Fb", "x/y", "/v1/messages", "https://llm.example/a%2Fb/v1/messages"},
		{"https://llm.example/api/paas/v4", "x/y", "/v1/chat/completions",
			"https://llm.example/api/paas/v4/chat/completions"},
		{"https://llm.example/openai?api-version=1#x", "x/y", "/v1/responses?a=b",
			"https://llm.example/openai/responses?api-version=1&a=b"},
		{"http://127.0.0.1:4000", "x/y", "/v1/responses", "http://127.0.0.1:4000/v1/responses"},
	} {
		transport := &elsewhere{to: u.Listener.Addr().String()}
		p := serve(t, c.base, func(o *modelproxy.Options) { o.Model, o.Transport = c.model, transport })
		p.must(t, c.path, `{}`)
		if len(transport.seen) != 1 || transport.seen[0] != c.want {
			t.Errorf("%s and %s of %s is %s, want %s", c.base, c.path, c.model, transport.seen, c.want)
		}
	}
}

func TestAnInvalidEndpointIsRejected(t *testing.T) {
	for _, c := range []struct{ base, model, says string }{
		{"", "acme/large", "no endpoint is known for acme: set llm_base_url"},
		{"", "large", "llm_model: large names no provider: write provider/model, such as openai/gpt-5, or set llm_base_url"},
		{"", "", "llm_model: no model is set"},
		{"ftp://example.com", "acme/large", "llm_base_url: must be an http or https URL"},
		{"https://", "acme/large", "llm_base_url: must be"},
		{"https://user:hunter2@example.com", "acme/large", "llm_base_url: must not contain"},
		{"https://exa mple:hunter2", "acme/large", "llm_base_url: is not a valid URL"},
	} {
		_, err := modelproxy.New(modelproxy.Options{BaseURL: c.base, Model: c.model})
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", c.base, err)
		}
	}
}

func TestTheModelsAPIKeyReplacesTheKeyThatTheAgentSends(t *testing.T) {
	u := newUpstream(t, answerJSON(`{}`))
	p := serve(t, u.URL)
	agents := []string{
		"Authorization", "Bearer placeholder", "X-Api-Key", "placeholder", "Api-Key", "placeholder", "Cookie",
		"a=placeholder", "X-Session-Api-Key", "placeholder",
		"Anthropic-Beta", "prompt-caching", "User-Agent", "agent/1", "Connection", "X-Hop", "X-Hop", "placeholder",
		"Accept-Encoding", "br",
	}
	for path, want := range map[string][2]string{
		"/v1/messages": {"X-Api-Key", key}, "/v1/chat/completions": {"Authorization", "Bearer " + key},
		"/v1/responses": {"Authorization", "Bearer " + key},
	} {
		p.must(t, path, `{}`, agents...)
		got := u.last(t)
		if got.header.Get(want[0]) != want[1] || len(got.header["Authorization"])+len(got.header["X-Api-Key"]) != 1 {
			t.Errorf("%s: the endpoint got %v", path, got.header)
		}
		if strings.Contains(fmt.Sprint(got.header), "placeholder") || got.header.Get("Accept-Encoding") != "identity" ||
			"http://"+got.host != u.URL {
			t.Errorf("%s: the endpoint got %v for %s", path, got.header, got.host)
		}
		if got.header.Get("Anthropic-Beta") != "prompt-caching" || got.header.Get("User-Agent") != "agent/1" {
			t.Errorf("%s: the endpoint got %v", path, got.header)
		}
		if version := got.header.Get("Anthropic-Version"); (path == "/v1/messages") != (version == "2023-06-01") {
			t.Errorf("%s: the version is %q", path, version)
		}
	}
	p.must(t, "/v1/messages", `{}`, "Anthropic-Version", "2042-01-01")
	if got := u.last(t).header["Anthropic-Version"]; len(got) != 1 || got[0] != "2042-01-01" {
		t.Errorf("the version is %q", got)
	}
	open := serve(t, u.URL, func(o *modelproxy.Options) { o.Key = "" })
	open.must(t, "/v1/messages", `{}`, agents...)
	if got := u.last(t); got.header.Get("Authorization")+got.header.Get("X-Api-Key") != "" {
		t.Errorf("without a key the endpoint got %v", got.header)
	}
}

func TestTheKeyIsMaskedInAnswersOfTheEndpoint(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"an error": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Echo", r.Header.Get("Authorization"))
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error":{"message":"Incorrect API key provided: %s"}}`, key)
		},
		"base64": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, base64.StdEncoding.EncodeToString([]byte("Bearer "+key)))
		},
		"a stream of single bytes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, c := range []byte("data: {\"text\":\"" + key + "\"}\n\ndata: " + key) {
				_, _ = w.Write([]byte{c})
				_ = http.NewResponseController(w).Flush()
			}
		},
		"gzip": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			zip := gzip.NewWriter(w)
			_, _ = io.WriteString(zip, key)
			_ = zip.Close()
		},
		"an unsupported compression": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, key)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, newUpstream(t, answer).URL)
			got := p.post(t.Context(), "/v1/chat/completions", `{"model":"gpt","stream":true}`)
			if got.err != nil || got.body == "" {
				t.Fatalf("got %+v", got)
			}
			all := fmt.Sprint(got.header) + got.body
			if strings.Contains(all, key) || strings.Contains(all, base64.StdEncoding.EncodeToString([]byte(key))[3:20]) {
				t.Errorf("the agent got %s", all)
			}
		})
	}
}

func TestRequestsGoOnlyToTheEndpoint(t *testing.T) {
	other := newUpstream(t, answerJSON(`{}`))
	for _, status := range []int{301, 302, 307, 308} {
		u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/v1/messages",
				status)
		})
		got := serve(t, u.URL).post(t.Context(), "/v1/messages", `{}`)
		if got.status != http.StatusBadGateway || !strings.Contains(got.body, "set llm_base_url to the final URL") ||
			!strings.Contains(got.body, "parley_settings") || got.header.Get("Location") != "" {
			t.Errorf("a redirect: %+v", got)
		}
	}
	p := serve(t, other.URL)
	for _, path := range []string{"/", "/v1", "/v1/files", "/v1/messages/", "/v1/messages/batches", "/v1/../v1/messages/x",
		"//v1/messages", "/v1/organizations/api_keys", "/mcp"} {
		if got := p.post(t.Context(), path, `{}`); got.status != http.StatusNotFound ||
			got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	for _, header := range [][]string{{"Host", "evil.example"}, {"Host", "127.0.0.1.evil.example:80"},
		{"Origin", "https://evil.example"}, {"Origin", "null"}} {
		if got := p.post(t.Context(), "/v1/messages", `{}`, header...); got.status != http.StatusForbidden ||
			!strings.HasPrefix(got.body, `{"error":{"message":`) {
			t.Errorf("%s: %d %s", header, got.status, got.body)
		}
	}
	if other.count() != 0 {
		t.Errorf("another host got a request: %+v", other.last(t))
	}
	for _, host := range []string{"localhost:1", "127.0.0.2", "[::1]:80"} {
		p.must(t, "/v1/messages", `{}`, "Host", host)
	}
}

func TestErrorsOfTheProviderAreForwarded(t *testing.T) {
	for status, body := range map[int]string{
		429: `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`,
		529: `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`,
		400: `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}`,
		404: `{"type":"error","error":{"type":"not_found_error","message":"model: none"}}`,
	} {
		u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.Header().Set("Request-Id", "req_1")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
		p := serve(t, u.URL)
		for _, path := range []string{"/v1/messages", "/v1/chat/completions"} {
			got := p.post(t.Context(), path, `{"model":"claude","stream":true}`)
			if got.status != status || got.body != body || got.header.Get("Retry-After") != "7" ||
				got.header.Get("Request-Id") != "req_1" {
				t.Errorf("%d became %+v", status, got)
			}
		}
		calls := map[bool]string{true: "0", false: "2"}[status == 429 || status == 529] // the agent repeats these
		if got := counts(p.Usage().Session); got != calls+" calls, 0 in, 0 out, 0 read, 0 written, $0" {
			t.Errorf("counted %s", got)
		}
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	got := serve(t, closed.URL).post(t.Context(), "/v1/messages", `{}`)
	if got.status != http.StatusBadGateway || !strings.Contains(got.body, "cannot be reached") ||
		!strings.Contains(got.body, "parley_unreachable") || !strings.Contains(got.body, `"type":"error"`) {
		t.Errorf("a closed endpoint: %+v", got)
	}
	for _, body := range []string{"", "no JSON", `{"model":1}`, `[]`} {
		if got := serve(t, closed.URL).post(t.Context(), "/v1/responses", body); got.status != http.StatusBadRequest {
			t.Errorf("%q: %+v", body, got)
		}
	}
	large := `{"model":"` + strings.Repeat("x", 32<<20) + `"}`
	if got := serve(t, closed.URL).post(t.Context(), "/v1/responses", large); got.err == nil &&
		got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d %s", got.status, got.body)
	}
}

func TestEachEventOfAStreamIsForwardedImmediately(t *testing.T) {
	for path, terminator := range map[string]string{"/v1/messages": "\n", "/v1/chat/completions": "\n\n",
		"/v1/responses": "\n"} {
		next := make(chan string)
		u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			for text := range next {
				_, _ = io.WriteString(w, text+terminator)
				_ = http.NewResponseController(w).Flush()
			}
		})
		p := serve(t, u.URL)
		response, err := http.Post(p.url+path, "application/json", strings.NewReader(`{"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(response.Body)
		// Each event must arrive before the endpoint sends the next event.
		for i := range 3 {
			next <- fmt.Sprintf("data: {\"n\":%d}", i)
			for line := "\n"; line != fmt.Sprintf("data: {\"n\":%d}\n", i); {
				if line, err = lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
		}
		close(next)
		if _, err := io.ReadAll(lines); err != nil {
			t.Error(err)
		}
		_ = response.Body.Close()
	}
}

func TestAnInterruptedAnswerIsAnError(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, messagesEvents[:strings.Index(messagesEvents, "event: ping")])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	p := serve(t, u.URL)
	if got := p.post(t.Context(), "/v1/messages", `{"model":"claude"}`); got.err == nil {
		t.Errorf("the agent got %+v", got)
	}
	eventually(t, "the usage is counted", func() bool {
		return counts(p.Usage().Session) == "0 calls, 100 in, 1 out, 1000 read, 20 written, $0.00069"
	})
}

func TestACallEndsWhenItsAgentDisconnects(t *testing.T) {
	asked, cancelled := make(chan struct{}), make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		close(asked)
		<-r.Context().Done()
		close(cancelled)
	})
	busy := make(chan string, 2)
	p := serve(t, u.URL, func(o *modelproxy.Options) {
		o.Busy = func() func() { busy <- "begun"; return func() { busy <- "over" } }
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if got := p.post(ctx, "/v1/messages", `{"stream":true}`); got.err == nil {
		t.Errorf("got %+v", got)
	}
	<-cancelled
	if <-busy != "begun" || <-busy != "over" {
		t.Error("the session was not busy")
	}
}

// endless is an endpoint that sends an event of 200 MiB, or less if the client disconnects.
func endless(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, strings.TrimSuffix(chatText, "\n\n")+"\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"")
	part := bytes.Repeat([]byte("x"), 1<<20)
	for range 200 {
		if _, err := w.Write(part); err != nil || r.Context().Err() != nil {
			return
		}
	}
	_, _ = io.WriteString(w, "\"}}]}\n\n"+chatUsage+chatDone)
}

func TestAHugeStreamTakesLittleMemory(t *testing.T) {
	p := serve(t, newUpstream(t, endless).URL)
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	response, err := http.Post(p.url+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"stream":true,"model":"gpt"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	total, most := 0, uint64(0)
	buffer, last := make([]byte, 1<<20), ""
	for {
		n, err := response.Body.Read(buffer)
		if total%(8<<20) < n {
			runtime.GC() // only live memory counts
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
		}
		total += n
		last = (last + string(buffer[max(0, n-100):n]))[max(0, len(last)+min(n, 100)-100):]
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if grown := int64(most) - int64(before.HeapAlloc); grown > 48<<20 {
		t.Errorf("a stream of %d MiB takes %d MiB", total>>20, grown>>20)
	}
	if !strings.HasSuffix(last, "\"}}]}\n\n"+chatDone) {
		t.Errorf("it ends with %q", last)
	}
	if got := counts(p.Usage().Session); got != chatCounts {
		t.Errorf("counted %s", got)
	}
}

func TestAStreamThatStopsInTheMiddleTimesOut(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chatText)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	p := serve(t, u.URL, func(o *modelproxy.Options) { o.Silence = 50 * time.Millisecond })
	if got := p.post(t.Context(), "/v1/chat/completions", `{"model":"gpt","stream":true}`); got.err == nil ||
		got.body != chatText {
		t.Errorf("got %+v", got)
	}
}

func TestASilentEndpointTimesOut(t *testing.T) {
	u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	p := serve(t, u.URL, func(o *modelproxy.Options) { o.Silence = 50 * time.Millisecond })
	if got := p.post(t.Context(), "/v1/chat/completions", `{"model":"gpt"}`); got.status != http.StatusBadGateway ||
		!strings.Contains(got.body, "parley_unreachable") || !strings.Contains(got.body, "no answer for 50ms") {
		t.Errorf("got %+v", got)
	}
}

// The whole response takes longer than the timeout, but each pause is shorter.
func TestKeepAlivesResetTheTimeout(t *testing.T) {
	const silence = 2 * time.Second
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for begin := time.Now(); time.Since(begin) < 3*silence/2; <-time.After(silence / 100) {
			_, _ = io.WriteString(w, ": keep-alive\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, chatText+chatUsage+chatDone)
	})
	p := serve(t, u.URL, func(o *modelproxy.Options) { o.Silence = silence })
	if got := p.must(t, "/v1/chat/completions", `{"model":"gpt","stream":true}`); !strings.Contains(got.body, chatText) {
		t.Errorf("got %+v", got)
	}
}

func TestMalformedAnswersAreForwardedButNotCounted(t *testing.T) {
	for _, garbage := range []string{
		"", "\n", "\n\n\n", "data:", "data: {\"usage\":", "}}}}]]]]", `{"usage":{"input_tokens":-5,"output_tokens":9e99}}`,
		`{"usage":[1,2]}`, `{"usage":"much"}`,
		"data: }{\"usage\":{\"input_tokens\":5}}\n\n", strings.Repeat("[", 1<<20), strings.Repeat(`{"usage":`, 1<<16), `{"` +
			strings.Repeat("k", 1<<20) + `":1}`,
		"\x00\xff\xfe", `{"usage":{"input_tokens":99999999999999999999}}`, `{"message":[{"usage":{"input_tokens":1}}]}`,
		`{"usage":{"x":"` + strings.Repeat("y", 1<<20) + `","input_tokens":1}}`,
	} {
		for _, kind := range []string{"text/event-stream", "application/json", "nonsense;;", ""} {
			u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				_, _ = io.WriteString(w, garbage)
			})
			p := serve(t, u.URL)
			for _, path := range []string{"/v1/messages", "/v1/chat/completions", "/v1/responses"} {
				if got := p.must(t, path, `{"stream":true,"model":"claude"}`); got.body != garbage {
					t.Errorf("%.40q as %q became %.40q", garbage, kind, got.body)
				}
			}
			if got := counts(p.Usage().Session); !strings.HasPrefix(got, "3 calls, 0 in, 0 out, 0 read, 0 written, $0") {
				t.Errorf("%.40q as %q: counted %s", garbage, kind, got)
			}
		}
	}
}

func TestAChangedModelDoesNotAffectCallsInFlight(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	old := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-release
		w.Header().Set("X-Echo", r.Header.Get("X-Api-Key"))
		answerJSON(messagesJSON)(w, r)
	})
	p := serve(t, old.URL)
	done := make(chan reply)
	go func() { done <- p.post(t.Context(), "/v1/messages", `{"model":"claude"}`) }()
	<-asked
	const next = "sk-next-0123456789abcdef"
	now := newUpstream(t, answerJSON(`{"usage":{"prompt_tokens":10,"completion_tokens":5},"text":"`+key+" "+next+`"}`))
	if err := p.SetModel(now.URL, "openai/gpt", next); err != nil {
		t.Fatal(err)
	}
	got := p.must(t, "/v1/chat/completions", `{"model":"gpt"}`)
	if now.last(t).header.Get("Authorization") != "Bearer "+next || !strings.Contains(got.body, `"*** ***"`) {
		t.Errorf("the new endpoint got %v and the agent %s", now.last(t).header, got.body)
	}
	close(release)
	if late := <-done; late.status != http.StatusOK || late.header.Get("X-Echo") != "***" ||
		old.last(t).header.Get("X-Api-Key") != key || old.count() != 1 {
		t.Errorf("the call in flight got %+v", late)
	}
	// The first call began before the change of the model, so the call has the price of
	// anthropic/claude. With the new provider, the model of the call would be openai/claude, which
	// has no price.
	if usage := p.Usage().Session; usage.Calls != 2 || usage.Unpriced != 0 {
		t.Errorf("the usage is %s", counts(usage))
	}
	err := p.SetModel("", "acme/large", next)
	refused := p.post(t.Context(), "/v1/messages", `{"model":"large"}`)
	if err == nil || refused.status != http.StatusBadRequest || !strings.Contains(refused.body, "set llm_base_url") {
		t.Errorf("%v, %+v", err, refused)
	}
	if err := p.SetModel(now.URL, "acme/large", next); err != nil {
		t.Fatal(err)
	}
	p.must(t, "/v1/chat/completions", `{"model":"gpt"}`)
}
