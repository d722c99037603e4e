package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// listing is a cluster that counts concurrent lists. Each list blocks until the test releases it.
type listing struct {
	crowd
	end chan struct{}

	mu        sync.Mutex
	now, most int
}

func (c *listing) ConversationsOf(_ context.Context, _ *v1alpha1.UserSettings,
	look func([]v1alpha1.Conversation)) error {
	count := func(more int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now += more
		c.most = max(c.most, c.now)
	}
	count(1)
	defer count(-1)
	<-c.end
	look(nil)
	return nil
}

func list(h http.Handler, user string) int {
	r := httptest.NewRequest(http.MethodGet, "/api/conversations", http.NoBody)
	r.Header.Set(rest.KeyHeader, user)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

func TestOnlyOneListRequestOfAUserRunsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &listing{end: make(chan struct{})}
		h := New(c, DefaultOptions(), prometheus.NewRegistry())
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				if code := list(h, "ada"); code != http.StatusOK {
					t.Errorf("answered %d", code)
				}
			})
		}
		synctest.Wait()
		close(c.end)
		group.Wait()
		if c.most != 1 {
			t.Errorf("%d lists at once", c.most)
		}
	})
}

func TestAListRequestThatWaitsTooLongIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &listing{end: make(chan struct{})}
		h := New(c, DefaultOptions(), prometheus.NewRegistry())
		var group sync.WaitGroup
		for _, user := range []string{"ada", "bob", "eve"} {
			group.Go(func() {
				if code := list(h, user); code != http.StatusOK {
					t.Errorf("%s is answered %d", user, code)
				}
			})
		}
		synctest.Wait()
		if code := list(h, "ada"); code != http.StatusTooManyRequests || c.most != 3 {
			t.Errorf("the answer is %d after %d concurrent lists", code, c.most)
		}
		close(c.end)
		group.Wait()
		if code := list(h, "ada"); code != http.StatusOK {
			t.Errorf("the next answer to ada is %d", code)
		}
	})
}
