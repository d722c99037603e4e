package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// lateBody is a request body that records the time at which its end was read.
type lateBody struct {
	io.Reader
	ended time.Time
}

func (b *lateBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.ended = time.Now()
	}
	return n, err
}

type slowCluster struct {
	stubCluster
	takes    time.Duration
	deadline time.Time
}

func (c *slowCluster) CreateConversation(ctx context.Context, _ *v1alpha1.Conversation) error {
	c.deadline, _ = ctx.Deadline()
	time.Sleep(c.takes) // in the fake time of a synctest bubble
	return nil
}

func handler(c cluster.API) *Handler { return New(c, DefaultOptions(), prometheus.NewRegistry()) }

func TestTheRequestTimeoutStartsAfterTheBodyWasRead(t *testing.T) {
	cluster := &slowCluster{}
	body := &lateBody{Reader: strings.NewReader("{}")}
	r := httptest.NewRequest("POST", "/api/conversations", body)
	r.Header.Set(rest.KeyHeader, stubKey)
	handler(cluster).ServeHTTP(httptest.NewRecorder(), r)
	if cluster.deadline.Before(body.ended.Add(requestTimeout)) {
		t.Errorf("the body ended at %s, the deadline is %s", body.ended, cluster.deadline)
	}
}

// pipes is a listener for in-memory connections. Their timeouts use the fake time of a synctest
// bubble.
type pipes struct {
	connections chan net.Conn
	closed      chan struct{}
	once        sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.connections:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// inBubble serves the cluster c through a facade in a synctest bubble. The facade has its usual
// timeouts, in fake time.
func inBubble(t *testing.T, c cluster.API, do func(client *http.Client)) {
	t.Helper()
	inBubbleWith(t, c, DefaultOptions(), do)
}

func inBubbleWith(t *testing.T, c cluster.API, options Options, do func(client *http.Client)) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		listener := &pipes{connections: make(chan net.Conn), closed: make(chan struct{})}
		served := &http.Server{Handler: New(c, options, prometheus.NewRegistry()), ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout: time.Minute, WriteTimeout: time.Minute}
		go func() { _ = served.Serve(listener) }()
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			listener.connections <- there
			return here, nil
		}}
		do(&http.Client{Transport: transport})
		transport.CloseIdleConnections()
		_ = served.Close()
		synctest.Wait()
	})
}

func post(client *http.Client, key string, body io.Reader) (int, error) {
	request, err := http.NewRequest("POST", "http://facade/api/conversations", body)
	if err != nil {
		return 0, err
	}
	request.Header.Set(rest.KeyHeader, key)
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

func TestARequestWithASlowBodyAndSlowWorkSucceeds(t *testing.T) {
	inBubble(t, &slowCluster{takes: 14 * time.Second}, func(client *http.Client) {
		body, writer := io.Pipe()
		go func() {
			_, _ = writer.Write([]byte(`{"initial_user_msg": `))
			time.Sleep(50 * time.Second) // fake time of the bubble
			_, _ = writer.Write([]byte(`"hello"}`))
			_ = writer.Close()
		}()
		if code, err := post(client, stubKey, body); code != http.StatusOK || err != nil {
			t.Errorf("answered %d, %v", code, err)
		}
	})
}

func TestWrongKeysAreRefusedWithoutADelay(t *testing.T) {
	inBubble(t, &stubCluster{}, func(client *http.Client) {
		start := time.Now()
		for range 100 {
			if code, err := post(client, "wrong", strings.NewReader("{}")); code != http.StatusUnauthorized || err != nil {
				t.Fatalf("answered %d, %v", code, err)
			}
		}
		if waited := time.Since(start); waited > 0 {
			t.Errorf("100 wrong keys waited %s in total", waited)
		}
	})
}

// The client writes its whole body before it reads the response, like Python's urllib.
func TestClientsCanReadAnEarlyRefusal(t *testing.T) {
	served := httptest.NewServer(handler(&stubCluster{}))
	defer served.Close()
	const length = 20 << 20
	for name, c := range map[string]struct {
		key  string
		want string
	}{
		"body too large": {stubKey, "HTTP/1.1 413 "},
		"wrong key":      {"wrong", "HTTP/1.1 401 "},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := net.Dial("tcp", served.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = connection.Close() }()
			head := "POST /api/settings HTTP/1.1\r\nHost: facade\r\nContent-Length: 20971520\r\n" + rest.KeyHeader + ": " +
				c.key + "\r\n\r\n"
			if _, err := io.WriteString(connection, head+strings.Repeat("x", length)); err != nil {
				t.Fatalf("the connection broke during the write: %v", err)
			}
			answer, err := io.ReadAll(connection)
			if err != nil || !strings.HasPrefix(string(answer), c.want) {
				t.Errorf("the client reads %q, %v", answer, err)
			}
		})
	}
}

// faultyCluster is a cluster whose readiness check returns err.
type faultyCluster struct {
	stubCluster
	err error
}

func (c *faultyCluster) Ready(context.Context) error { return c.err }

// While the API server does not answer, no other facade can serve the requests, because all facades
// depend on the same API server. It is therefore useless to remove a facade from the Service.
func TestAFacadeStaysReadyWithoutTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, registry := &faultyCluster{err: errors.New("not synced")}, prometheus.NewRegistry()
		handler := New(c, DefaultOptions(), registry)
		for _, step := range []struct {
			err      error
			code     int
			degraded float64
		}{{c.err, 503, 1}, {nil, 200, 0}, {errors.New("the API server does not answer"), 200, 1}} {
			c.err = step.err
			time.Sleep(5 * time.Second) // fake time, so that the cached result expires
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/ready", http.NoBody))
			if w.Code != step.code {
				t.Errorf("with the error %v, /ready answers %d, want %d", step.err, w.Code, step.code)
			}
			want := fmt.Sprintf("# HELP parley_facade_degraded 1 while the API server does not answer this facade, else 0.\n"+
				"# TYPE parley_facade_degraded gauge\nparley_facade_degraded %v\n", step.degraded)
			if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "parley_facade_degraded"); err != nil {
				t.Error(err)
			}
		}
	})
}
