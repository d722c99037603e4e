package modelproxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

const slots = 8

type busyness struct{ atomic.Int32 }

func (b *busyness) watch(o *modelproxy.Options) {
	o.Busy = func() func() { b.Add(1); return func() { b.Add(-1) } }
}

// send sends a request and leaves the response unread.
func send(t *testing.T, p *served, length int, body string) net.Conn {
	t.Helper()
	address := strings.TrimPrefix(p.url, "http://")
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	if _, err := fmt.Fprintf(connection, "POST /v1/messages HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", address,
		length, body); err != nil {
		t.Fatal(err)
	}
	return connection
}

func TestAWaitingCallEndsWhenItsAgentDisconnects(t *testing.T) {
	const waiting = 12
	release := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		answerJSON(messagesJSON)(w, r)
	})
	var busy busyness
	p := serve(t, u.URL, busy.watch, func(o *modelproxy.Options) { o.MaxBudget = "1000" })
	begin(t, p, "1")
	var all sync.WaitGroup
	defer all.Wait()
	done := sync.OnceFunc(func() { close(release) })
	defer done()
	for range slots {
		all.Go(func() {
			if got := p.post(t.Context(), "/v1/messages", `{"model":"claude"}`); got.status != http.StatusOK {
				t.Errorf("got %+v", got)
			}
		})
	}
	eventually(t, "all slots are used", func() bool { return u.count() == slots })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for range waiting {
		all.Go(func() { p.post(ctx, "/v1/messages", `{"model":"claude"}`) })
	}
	eventually(t, "the others wait", func() bool { return busy.Load() == slots+waiting })
	stop()
	eventually(t, "the waiting calls are over", func() bool { return busy.Load() == slots })
	begin(t, p, "2")
	done()
	all.Wait()
	eventually(t, "all calls are over", func() bool { return busy.Load() == 0 })
	if got := p.Usage(); got.Session.Calls != slots || got.Turn.Calls != 0 || u.count() != slots {
		t.Errorf("the endpoint got %d calls, and the usage is %+v", u.count(), got)
	}
}

func TestUnfinishedRequestsDoNotBlockOthers(t *testing.T) {
	var busy busyness
	p := serve(t, newUpstream(t, answerJSON(messagesJSON)).URL, busy.watch)
	for range slots {
		send(t, p, 100, `{"model":`)
	}
	eventually(t, "the requests have arrived", func() bool { return busy.Load() == slots })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got := p.post(ctx, "/v1/messages", `{"model":"claude"}`); got.status != http.StatusOK {
		t.Errorf("got %+v", got)
	}
}

func TestAnUnfinishedRequestTimesOut(t *testing.T) {
	var busy busyness
	p := serve(t, newUpstream(t, answerJSON(messagesJSON)).URL, busy.watch,
		func(o *modelproxy.Options) { o.Patience = 100 * time.Millisecond })
	connection := send(t, p, 100, `{"model":`)
	_ = connection.SetReadDeadline(time.Now().Add(patience))
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(text), "not received in time") {
		t.Errorf("got %d %s", response.StatusCode, text)
	}
	eventually(t, "it is over", func() bool { return busy.Load() == 0 })
	if got := p.Usage().Session.Calls; got != 0 {
		t.Errorf("%d calls were counted", got)
	}
}

func TestUnreadAnswersTimeOut(t *testing.T) {
	// The cost of an unread response is unknown, so the next call is refused if there is a budget.
	for budget, want := range map[string]int{"": http.StatusOK, "1000": http.StatusPaymentRequired} {
		t.Run("with the budget "+budget, func(t *testing.T) {
			u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Short") != "" {
					answerJSON(messagesJSON)(w, r)
					return
				}
				part := []byte(strings.Repeat("x", 1<<20))
				for r.Context().Err() == nil {
					if _, err := w.Write(part); err != nil {
						return
					}
				}
			})
			p := serve(t, u.URL, func(o *modelproxy.Options) {
				o.MaxBudget, o.Patience, o.Linger = budget, 100*time.Millisecond, time.Millisecond
			})
			const body = `{"model":"claude"}`
			for range slots {
				send(t, p, len(body), body)
			}
			eventually(t, "all are in flight", func() bool { return u.count() == slots })
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if got := p.post(ctx, "/v1/messages", body, "Short", "yes"); got.status != want {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestTheTimeoutForSlowAgentsIgnoresPausesOfTheEndpoint(t *testing.T) {
	const pause = 200 * time.Millisecond
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, text := range []string{chatText, chatUsage, chatDone} {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
			<-time.After(2 * pause)
		}
	})
	p := serve(t, u.URL, func(o *modelproxy.Options) { o.Patience = pause })
	got := p.must(t, "/v1/chat/completions", `{"model":"gpt","stream":true,"stream_options":{"include_usage":true}}`)
	if got.body != chatText+chatUsage+chatDone {
		t.Errorf("got %s", got.body)
	}
}

func TestRequestsInMemoryAreBounded(t *testing.T) {
	release := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		answerJSON(messagesJSON)(w, r)
	})
	p := serve(t, u.URL, func(o *modelproxy.Options) { o.MaxHeld = 1000 })
	large := `{"model":"claude","system":"` + strings.Repeat("x", 600) + `"}`
	var all sync.WaitGroup
	defer all.Wait()
	done := sync.OnceFunc(func() { close(release) })
	defer done()
	for i, body := range []string{large, `{"model":"claude"}`} {
		all.Go(func() {
			if got := p.post(t.Context(), "/v1/messages", body); got.status != http.StatusOK {
				t.Errorf("got %+v", got)
			}
		})
		eventually(t, "it is in flight", func() bool { return u.count() == i+1 })
	}
	if got := p.post(t.Context(), "/v1/messages", large); got.status != http.StatusTooManyRequests ||
		!strings.Contains(got.body, `"rate_limit_error"`) {
		t.Errorf("a request beyond the limit: %+v", got)
	}
	done()
	all.Wait()
	eventually(t, "there is room again", func() bool {
		return p.post(t.Context(), "/v1/messages",
			large).status == http.StatusOK
	})
}
