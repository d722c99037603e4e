package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strconv"
	"testing"

	crwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// serveLingering serves a handler as the webhook of a manager that can be stopped.
func serveLingering(t *testing.T, hook http.HandlerFunc) (server *lingering, url string, stopManager func()) {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	host, port, _ := net.SplitHostPort(freeAddress(t))
	number, _ := strconv.Atoi(port)
	server = newLingering(crwebhook.NewServer(crwebhook.Options{Host: host, Port: number,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return &certified.TLS.Certificates[0],
					nil
			}
		}}}))
	server.Register("/ask", hook)
	manager, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := server.Start(manager); err != nil {
			t.Error(err)
		}
	}()
	await(t, func() error { return server.StartedChecker()(nil) })
	return server, fmt.Sprintf("https://%s:%s/ask", host, port), func() {
		cancel()
		<-stopped
	}
}

// newCaller returns a client that reuses its connection, like an API server.
func newCaller() *http.Client {
	return &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

// ask sends a request and returns the body of the response. again is true if the request reused the
// connection of an earlier request.
func ask(ctx context.Context, caller *http.Client, url string) (answer string, again bool, err error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		again = c.Reused
	}})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", false, err
	}
	response, err := caller.Do(request)
	if err != nil {
		return "", false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), again, err
}

func TestCallsInFlightFinishWhenTheWebhookEnds(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}), make(chan struct{})
	server, url, stopManager := serveLingering(t, func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-goOn
		fmt.Fprint(w, r.Context().Err())
	})
	answered := make(chan string, 1)
	go func() {
		answer, _, err := ask(t.Context(), newCaller(), url)
		answered <- fmt.Sprint(answer, err)
	}()
	<-entered
	stopManager()
	ended := make(chan error, 1)
	go func() { ended <- server.stop(0) }()
	<-server.serving.Done()
	close(goOn)
	if got := <-answered; got != "<nil><nil>" {
		t.Errorf("the answer is %s", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCallsOfADisconnectedCallerAreCanceled(t *testing.T) {
	t.Parallel()
	entered, left := make(chan struct{}), make(chan struct{})
	_, url, stopManager := serveLingering(t, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(left)
	})
	defer stopManager()
	ctx, leave := context.WithCancel(t.Context())
	go func() { _, _, _ = ask(ctx, newCaller(), url) }()
	<-entered
	leave()
	<-left
}

func TestAStoppingManagerRespondsAndClosesConnections(t *testing.T) {
	t.Parallel()
	_, url, stopManager := serveLingering(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "yes") })
	caller := newCaller()
	expect := func(when string, want bool) {
		t.Helper()
		answer, again, err := ask(t.Context(), caller, url)
		if err != nil || answer != "yes" || again != want {
			t.Errorf("%s: %q, over the same connection: %t, %v", when, answer, again, err)
		}
	}
	expect("at first", false)
	expect("then", true)
	stopManager()
	expect("once it stops", true)
	await(t, func() error { // the connection may end after the response
		answer, again, err := ask(t.Context(), caller, url)
		if err == nil && (again || answer != "yes") {
			err = fmt.Errorf("%q, over the same connection: %t", answer, again)
		}
		return err
	})
}
