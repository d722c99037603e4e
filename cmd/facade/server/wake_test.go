package server

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// sleeper is a cluster with one conversation. A patch of the conversation starts its session.
type sleeper struct {
	stubCluster
	// next is the address of the session after its start. watched is called when a message begins
	// to wait.
	next    string
	watched func()

	mu sync.Mutex
	// reads is the number of reads of the conversation since a message began to wait. live is the
	// number of reads from the API server.
	reads, live int
	waits       bool
	// onRead is called at each read of the conversation. cached is an older version of the
	// conversation in the cache, or nil.
	onRead       func()
	cached       *v1alpha1.Conversation
	conversation v1alpha1.Conversation
	patches      []string
	changed      chan struct{}
	// onPatch replaces the effect of a patch, which is that the session runs. It may be nil.
	onPatch func()
	// denies is true if a policy denies all patches.
	denies bool
}

func newSleeper(first, next string) *sleeper {
	c := &sleeper{next: next, watched: func() {}, onRead: func() {}, changed: make(chan struct{}, 1)}
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
	c.reads++
	c.live++
	c.onRead()
	return c.conversation.DeepCopy(), nil
}

func (c *sleeper) CachedConversation(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	c.onRead()
	if c.cached != nil {
		return c.cached.DeepCopy(), nil
	}
	return c.conversation.DeepCopy(), nil
}

func (c *sleeper) WatchConversation(types.NamespacedName) (changed <-chan struct{}, stop func()) {
	c.mu.Lock()
	c.reads = 0
	c.waits = true
	c.mu.Unlock()
	c.watched()
	return c.changed, func() {}
}

func (c *sleeper) PatchConversation(_ context.Context, patched *v1alpha1.Conversation, patch []byte) error {
	var expected struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(patch, &expected); err != nil {
		return err
	}
	if c.denies {
		return apierrors.NewForbidden(schema.GroupResource{}, "talk", nil)
	}
	c.mu.Lock()
	version := c.conversation.ResourceVersion
	if expected.Metadata.ResourceVersion == "" || expected.Metadata.ResourceVersion == version {
		c.patches = append(c.patches, string(patch))
		version = ""
	}
	c.mu.Unlock()
	if version != "" {
		return apierrors.NewConflict(schema.GroupResource{}, "talk", nil)
	}
	c.update(func(s *v1alpha1.ConversationStatus) {
		c.conversation.Spec.Suspend = false
		c.conversation.Generation++
		c.conversation.ResourceVersion += "+"
		patched.Generation, patched.ResourceVersion = c.conversation.Generation, c.conversation.ResourceVersion
		patched.Spec.Suspend = false
		if c.onPatch != nil {
			c.onPatch()
			return
		}
		s.State, s.Reason, s.Attempt, s.PodIP = v1alpha1.StateRunning, "", s.Attempt+1, c.next
	})
	return nil
}

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

const aMessage = `{"message": "go on"}`

func (c *sleeper) message(t *testing.T, request string) (code int, body string) {
	t.Helper()
	options := DefaultOptions()
	options.SigningKeyDir = signingKey(t)
	served := httptest.NewServer(New(c, options, prometheus.NewRegistry()))
	t.Cleanup(served.Close)
	sent, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		served.URL+"/api/conversations/talk/message", strings.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	sent.Header.Set(rest.KeyHeader, stubKey)
	response, err := http.DefaultClient.Do(sent)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// stop records that the user stopped the conversation.
func (c *sleeper) stop() {
	c.update(func(s *v1alpha1.ConversationStatus) {
		c.conversation.Spec.Suspend = true
		c.conversation.Generation++
		s.State, s.Reason = v1alpha1.StateStopped, v1alpha1.ReasonSuspended
	})
}

// A message does not undo a stop that the user requested after the message.
func TestAWaitingMessageIsRefusedWhenTheUserStopsTheSession(t *testing.T) {
	t.Parallel()
	c := newSleeper("127.31.5.3", "127.31.5.31")
	sessionAt(t, "127.31.5.31", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })
	c.conversation.Status.State = v1alpha1.StateStarting
	c.onRead = func() {
		if c.waits && c.reads == 3 { // the wait has begun
			go c.stop()
		}
	}
	if code, body := c.message(t, aMessage); code != http.StatusConflict || !strings.Contains(body, "was stopped") {
		t.Errorf("answered %d %s", code, body)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.patches) > 0 {
		t.Errorf("the conversation was started: %q", c.patches)
	}
}

// The user stops the session after the message requested its start, and the cached conversation
// does not contain this stop yet. A second request, which a slow manager causes, does not undo the
// stop.
func TestARepeatedWakeDoesNotUndoALaterStop(t *testing.T) {
	t.Parallel()
	for name, isCached := range map[string]bool{"the cache lacks the stop": false, "the cache has the stop": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newSleeper("127.31.5.9", "127.31.5.9")
			c.stop()
			c.conversation.ResourceVersion = "1"
			c.onPatch = func() {
				c.cached = c.conversation.DeepCopy()
				c.conversation.Spec.Suspend, c.conversation.ResourceVersion = true, "3"
				c.conversation.Generation++
				if isCached {
					c.cached = nil
				}
			}
			if code, body := c.message(t, aMessage); code != http.StatusConflict || !strings.Contains(body, "was stopped") {
				t.Errorf("answered %d %s", code, body)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.patches) != 1 {
				t.Errorf("the patches are %q", c.patches)
			}
		})
	}
}

// An unrelated change of the conversation that the cache lacks does not delay the refusal of a wake
// that a policy denies.
func TestADeniedWakeIsRefusedAtOnceWithAnOutdatedCache(t *testing.T) {
	t.Parallel()
	c := newSleeper("127.31.5.10", "127.31.5.10")
	c.stop()
	c.conversation.ResourceVersion = "1"
	c.cached = c.conversation.DeepCopy()
	c.conversation.ResourceVersion = "2"
	c.denies = true
	if code, body := c.message(t, aMessage); code != http.StatusForbidden {
		t.Errorf("answered %d %s", code, body)
	}
	if c.live != 1 {
		t.Errorf("%d reads from the API server", c.live)
	}
}

// The cached conversation does not contain the stop yet. The facade must nevertheless see that the
// user stopped the session before the message, and not refuse the message.
func TestASessionStartsForAMessageSentRightAfterAStop(t *testing.T) {
	t.Parallel()
	for state, address := range map[v1alpha1.ConversationState]string{
		v1alpha1.StateStarting: "127.31.5.41", v1alpha1.StateStopped: "127.31.5.42"} {
		t.Run("cached as "+string(state), func(t *testing.T) {
			t.Parallel()
			c := newSleeper("127.31.5.4", address)
			sessionAt(t, address, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })
			c.conversation.Status.State, c.conversation.ResourceVersion = state, "1"
			c.cached = c.conversation.DeepCopy()
			c.stop()
			c.conversation.ResourceVersion = "2"
			stopped := c.conversation.DeepCopy()
			c.onRead = func() {
				if c.waits && c.reads == 3 {
					c.cached = stopped
				} else if c.waits && c.reads == 5 {
					c.cached = nil
				}
			}
			if code, body := c.message(t, aMessage); code != http.StatusOK {
				t.Errorf("answered %d %s", code, body)
			}
		})
	}
}

func TestAMessageOfTheLargestSizeWakesTheSession(t *testing.T) {
	t.Parallel()
	c := newSleeper("127.31.5.5", "127.31.5.51")
	sessionAt(t, "127.31.5.51", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })
	c.conversation.Status.State = v1alpha1.StateStopped
	const before, after = `{"message":"","image_urls":["data:image/png;base64,`, `"]}`
	image := strings.Repeat("A", (int(DefaultOptions().Limits.MaxBody)-len(before+after))/4*4)
	if code, body := c.message(t, before+image+after); code != http.StatusOK {
		t.Errorf("answered %d %s", code, body)
	}
}

func TestAWakeReadsTheAPIServerOnlyIfTheCacheIsOutdated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address, cached string
		reads           int
	}{
		"current":  {address: "127.31.5.6", cached: "7"},
		"outdated": {address: "127.31.5.7", cached: "6", reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSleeper("127.31.5.8", c.address)
			sessionAt(t, c.address, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })
			s.conversation.Status.State, s.conversation.ResourceVersion = v1alpha1.StateStopped, "7"
			s.cached = s.conversation.DeepCopy()
			s.cached.ResourceVersion = c.cached
			s.onRead = func() {
				if len(s.patches) > 0 {
					s.cached = nil
				}
			}
			if code, body := s.message(t, aMessage); code != http.StatusOK {
				t.Errorf("answered %d %s", code, body)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.live != c.reads || len(s.patches) != 1 {
				t.Errorf("%d reads from the API server, want %d; patches: %q", s.live, c.reads, s.patches)
			}
		})
	}
}

// A session that is ending refuses a message, or is already gone. In both cases the next attempt
// receives the message, with the same idempotency key.
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
			code, _ := c.message(t, aMessage)
			mu.Lock()
			defer mu.Unlock()
			if code != http.StatusOK || len(keys) == 0 || keys[0] == "" || len(slices.Compact(keys)) != 1 {
				t.Errorf("answered %d after tries with the keys %q", code, keys)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.patches) != 1 || !strings.Contains(c.patches[0], "restartAt") {
				t.Errorf("the patches are %q", c.patches)
			}
		})
	}
}
