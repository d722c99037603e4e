package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
	"github.com/parley-dev/parley/hack/test/gitserver"
)

func TestAHostIsRetriedUntilItAnswers(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
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
	o.Token = gitserver.Token
	if got := prepare(t, o); got.Branch != "feature" {
		t.Errorf("got %+v", got)
	}
}

func TestRetriesEndAfterTheTimeout(t *testing.T) {
	closed := gitserver.New(t)
	closed.Close()
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(func() {
		hanging.CloseClientConnections()
		hanging.Close()
	})
	patience, refused := givenUp(t, options(t, &session.Repository{Name: closed.URL + "/a/b"}))
	if says := fmt.Sprintf("refused; the clone was retried for %s", patience); !strings.Contains(refused.Error(), says) {
		t.Errorf("got %v, want an error that says %q", refused, says)
	}
	o := options(t, &session.Repository{Name: hanging.URL + "/a/b"})
	o.Patience = 100 * time.Millisecond
	if _, err := workspace.Prepare(t.Context(), o); err == nil || !strings.Contains(err.Error(),
		"cloning did not finish within 100ms") {
		t.Errorf("got %v", err)
	}
}

// givenUp clones from a failing host, and returns the timeout and the host's error. On a slow
// machine, the timeout may pass before the first request has ended. Then givenUp clones again with
// twice the timeout.
func givenUp(t *testing.T, o workspace.Options) (time.Duration, error) {
	t.Helper()
	for o.Patience = 100 * time.Millisecond; ; o.Patience *= 2 {
		_, err := workspace.Prepare(t.Context(), o)
		if err == nil {
			t.Fatal("it was cloned")
		}
		if !strings.Contains(err.Error(), "cloning did not finish within") || o.Patience > time.Minute {
			return o.Patience, err
		}
	}
}

func TestACancelledCloneIsNotRetried(t *testing.T) {
	server := gitserver.New(t)
	o := options(t, &session.Repository{Name: server.URL + "/busy/site.git"})
	o.RetryDelay = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	server.FailOnce(http.MethodGet, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
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
		t.Error("it still retries")
	}
}
