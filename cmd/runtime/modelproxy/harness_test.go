package modelproxy_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

const (
	key      = "sk-live-0123456789abcdef"
	patience = 20 * time.Second
)

var prices = session.Models{
	"anthropic/claude": {Input: "3", Output: "15", CacheRead: "0.30", CacheWrite: "3.75", ContextWindow: 200000},
	"gpt":              {Input: "0.1", Output: "0.4", CacheRead: "0.025", ContextWindow: 400000},
	"window-only":      {ContextWindow: 8192},
}

type received struct {
	method, host, path, query, body string
	header                          http.Header
}

type upstream struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
}

func newUpstream(t *testing.T, answer http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		u.mu.Lock()
		u.requests = append(u.requests, received{r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, string(body),
			r.Header.Clone()})
		u.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) last(t *testing.T) received {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.requests) == 0 {
		t.Fatal("the endpoint got no request")
	}
	return u.requests[len(u.requests)-1]
}

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.requests)
}

func idle() func() { return func() {} }

type served struct {
	*modelproxy.Proxy
	url string
}

func serve(t *testing.T, base string, adjust ...func(*modelproxy.Options)) *served {
	t.Helper()
	options := modelproxy.Options{BaseURL: base, Model: "anthropic/claude", Key: key, Models: prices,
		Busy: idle, Log: slog.New(slog.DiscardHandler)}
	for _, a := range adjust {
		a(&options)
	}
	proxy, err := modelproxy.New(options)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return &served{proxy, server.URL}
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// post sends a request as an SDK does, with a placeholder in place of the API key.
func (s *served) post(ctx context.Context, path, body string, headers ...string) reply {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(text), err}
}

func (s *served) must(t *testing.T, path, body string, headers ...string) reply {
	t.Helper()
	got := s.post(t.Context(), path, body, headers...)
	if got.err != nil || got.status != http.StatusOK {
		t.Fatalf("%s: %d %s %v", path, got.status, got.body, got.err)
	}
	return got
}

func answerJSON(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
}

func answerEvents(events string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, events)
	}
}

func eventually(t *testing.T, condition string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !met(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", condition)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func counts(c modelproxy.Counts) string {
	text := fmt.Sprintf("%d calls, %d in, %d out, %d read, %d written, $%s", c.Calls, c.Input, c.Output, c.CacheRead,
		c.CacheWrite, c.Cost)
	if c.Unpriced > 0 {
		text += fmt.Sprintf(", %d unpriced", c.Unpriced)
	}
	return text
}

// elsewhere is a transport that records the URLs of requests, and sends all requests to one server.
type elsewhere struct {
	to   string
	mu   sync.Mutex
	seen []string
}

func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	e.seen = append(e.seen, r.URL.String())
	e.mu.Unlock()
	dialer := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", e.to)
	}}
	defer dialer.CloseIdleConnections()
	r = r.Clone(r.Context())
	r.URL.Scheme = "http"
	return dialer.RoundTrip(r)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
