package workspace_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

func TestAHostThatFailsForLongerIsAskedUntilItAnswers(t *testing.T) {
	server := newGitServer(t)
	server.create(t, "private/site.git")
	var failures atomic.Int32
	normal := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failures.Add(1) <= 8 {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		normal.ServeHTTP(w, r)
	})
	o := options(t, private(server, "feature"))
	o.Token = token
	if got := prepare(t, o); got.Branch != "feature" {
		t.Errorf("got %+v", got)
	}
}

func TestAHostThatDoesNotComeBackIsGivenUp(t *testing.T) {
	closed := newGitServer(t)
	closed.Close()
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(func() {
		hanging.CloseClientConnections()
		hanging.Close()
	})
	for url, says := range map[string]string{
		closed.URL:  "connection refused; it was tried for 100ms",
		hanging.URL: "it could not be cloned within 100ms",
	} {
		o := options(t, &session.Repository{Name: url + "/a/b"})
		o.Patience = 100 * time.Millisecond
		if _, err := workspace.Prepare(t.Context(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
}

func TestWhatIsToStopDoesNotTryAgain(t *testing.T) {
	server := newGitServer(t)
	o := options(t, &session.Repository{Name: server.URL + "/busy/site.git"})
	o.RetryDelay = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	server.failOnce(http.MethodGet, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(w, r)
		cancel()
	})
	ended := make(chan error, 1)
	go func() {
		_, err := workspace.Prepare(ctx, o)
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it still tries")
	}
}
