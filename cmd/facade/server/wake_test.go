package server

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// sleeper is a cluster with one conversation, whose manager starts the session when the spec is
// patched.
type sleeper struct {
	stubCluster
	// next is the address of the session after its start. watched is called when a message begins to
	// wait.
	next    string
	watched func()

	mu           sync.Mutex
	conversation v1alpha1.Conversation
	patches      []string
	changed      chan struct{}
}

func newSleeper(first, next string) *sleeper {
	c := &sleeper{next: next, watched: func() {}, changed: make(chan struct{}, 1)}
	c.conversation = v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "talk", UID: "2"},
		Spec:   v1alpha1.ConversationSpec{UserSettingsName: "ada"},
		Status: v1alpha1.ConversationStatus{State: v1alpha1.StateRunning, Attempt: 1, PodIP: first, SettingsUID: "1"}}
	return c
}

func (c *sleeper) update(change func(*v1alpha1.ConversationStatus)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.conversation.Status)
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *sleeper) Conversation(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conversation.DeepCopy(), nil
}

func (c *sleeper) CachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	return c.Conversation(ctx, key)
}

func (c *sleeper) WatchConversation(types.NamespacedName) (changed <-chan struct{}, stop func()) {
	c.watched()
	return c.changed, func() {}
}

func (c *sleeper) PatchConversation(_ context.Context, _ *v1alpha1.Conversation, patch []byte) error {
	c.mu.Lock()
	c.patches = append(c.patches, string(patch))
	c.mu.Unlock()
	c.update(func(s *v1alpha1.ConversationStatus) {
		s.State, s.Reason, s.Attempt, s.PodIP = v1alpha1.StateRunning, "", s.Attempt+1, c.next
	})
	return nil
}

// sessionAt serves POST requests of a session.
func sessionAt(t *testing.T, address string, post http.HandlerFunc) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(session.Port)))
	if err != nil {
		t.Fatal(err)
	}
	served := &httptest.Server{Listener: listener, Config: &http.Server{Handler: post}}
	served.Start()
	t.Cleanup(served.Close)
}

// A session that ends refuses a message, or is gone before its end is recorded. The message reaches
// the next attempt with the same key.
func TestAMessageToAnEndingSessionReachesTheNextAttempt(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"it refuses": "127.31.5.1", "it is gone": "127.31.5.2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next := first + "1"
			var mu sync.Mutex
			var keys []string
			note := func(r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				keys = append(keys, r.Header.Get(session.IdempotencyHeader))
			}
			c := newSleeper(first, next)
			end := func(s *v1alpha1.ConversationStatus) { s.State, s.Reason = v1alpha1.StateStopped, v1alpha1.ReasonIdle }
			if name == "it refuses" {
				sessionAt(t, first, func(w http.ResponseWriter, r *http.Request) {
					note(r)
					w.WriteHeader(http.StatusConflict)
					_ = json.NewEncoder(w).Encode(map[string]string{"detail": session.Over})
					c.update(end)
				})
			} else {
				c.watched = func() { c.update(end) }
			}
			sessionAt(t, next, func(w http.ResponseWriter, r *http.Request) {
				note(r)
				_, _ = w.Write([]byte(`{"success":true}`))
			})
			options := DefaultOptions()
			options.SigningKeyDir = signingKey(t)
			served := httptest.NewServer(New(c, options, prometheus.NewRegistry()))
			t.Cleanup(served.Close)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				served.URL+"/api/conversations/talk/message", strings.NewReader(`{"message": "go on"}`))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set(rest.KeyHeader, stubKey)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			if response.StatusCode != http.StatusOK || len(keys) == 0 || keys[0] == "" || len(slices.Compact(keys)) != 1 {
				t.Errorf("answered %d after tries with the keys %q", response.StatusCode, keys)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.patches) != 1 || !strings.Contains(c.patches[0], "restartAt") {
				t.Errorf("the patches are %q", c.patches)
			}
		})
	}
}
