package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/conversations"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

const (
	// wakeTimeout is the default of Options.WakeTimeout. The wait and the delivery together take
	// less than one minute, which is the usual timeout of a proxy.
	wakeTimeout = 30 * time.Second
	// reachTimeout limits the time for which a message waits for a running session that cannot be
	// reached. Such a session may have ended a moment ago.
	reachTimeout = 5 * time.Second
	// minWakePause and maxWakePause limit the delay between two tries to send a message. A change
	// of the conversation ends the delay.
	minWakePause, maxWakePause = 100 * time.Millisecond, 2 * time.Second
	// wakeRetryAfter is the Retry-After time that a client gets if the session does not run in
	// time.
	wakeRetryAfter = 5 * time.Second
)

var (
	oneShotOver = answer.Refuse(http.StatusConflict, "A one-shot conversation works on its first message only: start "+
		"another conversation")
	stoppedMeanwhile = answer.Refuse(http.StatusConflict, "The message was not accepted: the conversation was stopped "+
		"while the message waited")
	beingDeleted = answer.Refuse(http.StatusConflict, "The conversation is being deleted")
)

type message struct {
	user *auth.User
	body []byte
	// key is the idempotency key.
	key string
	// held counts the bytes of the session's response.
	held *limits.Hold
	// When free() is called, the body no longer counts towards the limits on bodies.
	free func()
}

// sendMessage sends a message and returns the session's response. A stopped session is started
// first. If the context ends before the message is sent, nothing is sent, but the start continues.
// All tries use the same idempotency key, so that the session accepts the message only one time.
func (s *server) sendMessage(ctx context.Context, c *v1alpha1.Conversation, m message) (json.RawMessage, error) {
	m.key = cmp.Or(m.key, rand.Text())
	w := &waking{server: s, message: m, attempt: -1}
	if !isStopping(c) {
		if reply, err := w.offer(ctx, c); !mayWake(err) {
			return reply, err
		}
	}
	waits := s.budget.Hold(m.user.ID(), limits.Wakes)
	// The event m.body may be larger than the request from which the facade made it, and larger than
	// MaxBody. The user's limit may be as low as MaxBody, so count no more than that.
	size := min(max(int64(len(m.body)), limits.MinWake), s.options.Limits.MaxBody)
	if err := waits.Take(size); err != nil {
		return nil, err
	}
	defer waits.Release()
	m.free()
	ctx, cancel := context.WithTimeout(ctx, s.options.WakeTimeout)
	defer cancel()
	defer context.AfterFunc(s.serving, cancel)()
	return w.wake(ctx, c)
}

// mayWake reports whether a session did not accept a message because the session does not run or
// cannot be reached.
func mayWake(err error) bool {
	for _, refusal := range []error{live.NotRunning, live.Starting, live.Over, live.Unreachable} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// isStopping reports whether a stop was requested and is not recorded yet. A message must not reach
// a session that stops, because the session would not work on it.
func isStopping(c *v1alpha1.Conversation) bool {
	return c.Spec.Suspend && c.Status.State != v1alpha1.StateStopped
}

// waking is a message that waits until its session runs.
type waking struct {
	*server
	message
	// unsuspended is true if spec.suspend was false at the last check. If spec.suspend is true at
	// the next check, somebody has stopped the conversation meanwhile, and the wait ends.
	unsuspended bool
	// confirmed is true if the API server has shown the conversation since the message began to wait.
	// Until then, the cache may lack a stop that the user requested before the message.
	confirmed bool
	// attempt is the session's attempt when this message last requested a start. It is -1 before the
	// first request, and after the session has run. If a later attempt is stopped, the requested start
	// has failed, and the wait ends.
	attempt int32
	// requested is the time at which the message last requested a start.
	requested time.Time
	// refused is true if the API server refused the last request to start the conversation. The next
	// check then reads the conversation from the API server, because the cached version may be
	// outdated.
	refused bool
	// unreached is the time at which the session became unreachable; zero if the session can be
	// reached.
	unreached time.Time
}

func (w *waking) offer(ctx context.Context, c *v1alpha1.Conversation) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	return w.sendEvent(ctx, c, w.held, w.body, w.key)
}

// wake starts the session, waits until it runs and sends the message.
func (w *waking) wake(ctx context.Context, c *v1alpha1.Conversation) (json.RawMessage, error) {
	changed, stop := w.cluster.WatchConversation(nameOf(c))
	defer stop()
	if c.Status.State != v1alpha1.StateStopped { // the cache may lack a stop
		c = w.confirm(ctx, c)
	}
	for pause := minWakePause; ; pause = min(2*pause, maxWakePause) {
		wasRefused := w.refused
		now, err := w.find(ctx, c.Name)
		switch {
		case ctx.Err() != nil:
			return nil, notAwake(c)
		case err != nil:
			return nil, err
		case now.UID != c.UID:
			return nil, answer.NotFound
		}
		if now.Generation >= c.Generation { // else the cache is older than the first read
			c = now
		}
		if c.Spec.Suspend && w.unsuspended {
			return nil, stoppedMeanwhile
		}
		w.unsuspended = !c.Spec.Suspend
		if c.Status.State == v1alpha1.StateRunning && !isStopping(c) && c.DeletionTimestamp == nil {
			reply, err := w.offer(ctx, c)
			if !mayWake(err) || w.unreachable(err) {
				return reply, err
			}
			w.attempt = -1 // the session ran; if it has ended now, it may be started again
		} else if err := w.start(ctx, c, wasRefused); err != nil {
			return nil, err
		}
		if w.refused && !wasRefused {
			continue
		}
		select {
		case <-changed:
			pause = minWakePause
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, notAwake(c)
		}
	}
}

// confirm reads the conversation from the API server. If that fails, it returns the given version.
func (w *waking) confirm(ctx context.Context, c *v1alpha1.Conversation) *v1alpha1.Conversation {
	fresh, err := w.conversations.Read(ctx, w.user, c.Name)
	if err != nil || fresh.UID != c.UID {
		return c
	}
	w.confirmed = true
	return fresh
}

// find returns the cached conversation. After a refused request, it returns the conversation from
// the API server.
func (w *waking) find(ctx context.Context, name string) (*v1alpha1.Conversation, error) {
	if w.refused {
		c, err := w.conversations.Read(ctx, w.user, name)
		w.refused, w.confirmed = false, w.confirmed || err == nil
		return c, err
	}
	return w.conversations.Find(ctx, w.user, name)
}

// unreachable reports whether the session has been unreachable for longer than reachTimeout.
func (w *waking) unreachable(err error) bool {
	if !errors.Is(err, live.Unreachable) {
		w.unreached = time.Time{}
		return false
	}
	if w.unreached.IsZero() {
		w.unreached = time.Now()
	}
	return time.Since(w.unreached) > reachTimeout
}

// start requests the start of a stopped session. It returns an error if the session will not run
// soon. isCurrent is true if c was just read from the API server.
func (w *waking) start(ctx context.Context, c *v1alpha1.Conversation, isCurrent bool) error {
	attempt := max(1, c.Status.Attempt)
	switch {
	case c.DeletionTimestamp != nil:
		return beingDeleted
	case c.Spec.OneShot && !isStopping(c) && c.Status.State == v1alpha1.StateStopped:
		return oneShotOver
	case isStopping(c):
		return nil
	case c.Status.State == v1alpha1.StateStopped:
		if c.Status.Reason == v1alpha1.ReasonSettingsMissing || w.attempt >= 0 && attempt > w.attempt {
			return cannotStart(c)
		}
		if time.Since(w.requested) < maxWakePause {
			return nil // the cache may not show the requested start yet
		}
		before := c.ResourceVersion
		err := w.conversations.Wake(ctx, c)
		switch {
		case err == nil:
			w.attempt, w.requested = attempt, time.Now()
			w.unsuspended, w.confirmed = !c.Spec.Suspend, w.confirmed || c.ResourceVersion != before
		case isCurrent && !apierrors.IsConflict(err):
			return conversations.ChangeRefusal(ctx, err)
		default:
			w.refused, w.unsuspended = true, w.unsuspended && w.confirmed
		}
		return nil
	}
	switch c.Status.Reason {
	case v1alpha1.ReasonNotAllowed, v1alpha1.ReasonForeignObject:
		return cannotStart(c)
	case v1alpha1.ReasonSettingsNotReady:
		if c.Annotations[v1alpha1.AnnotationIncomplete] == "" { // else the facade is storing the missing object
			return cannotStart(c)
		}
	}
	return nil
}

func cannotStart(c *v1alpha1.Conversation) error {
	return answer.Refuse(http.StatusConflict, fmt.Sprintf("The session cannot start. %s: %s", c.Status.Reason,
		c.Status.Message))
}

// notAwake refuses a message whose session does not run in time.
func notAwake(c *v1alpha1.Conversation) error {
	state := "is starting"
	switch {
	case c.Status.Reason == v1alpha1.ReasonQueued:
		state = "is queued. " + c.Status.Message
	case c.Status.State == v1alpha1.StateStarting && c.Status.Message != "":
		state = "is starting. " + c.Status.Reason + ": " + c.Status.Message
	case isStopping(c):
		state = "is stopping"
	case c.Status.State == v1alpha1.StateRunning:
		state = "has just started, or is ending"
	}
	return answer.Later(http.StatusServiceUnavailable, "The message was not accepted, retry later: the session "+state,
		wakeRetryAfter)
}

func nameOf(c *v1alpha1.Conversation) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
}

// isMessage reports whether an event of a user is a message with content.
func isMessage(body []byte) bool {
	var event struct {
		Action string `json:"action"`
		Args   struct {
			Content   string   `json:"content"`
			ImageURLs []string `json:"image_urls"`
		} `json:"args"`
	}
	return json.Unmarshal(body, &event) == nil && event.Action == session.ActionMessage &&
		(event.Args.Content != "" || len(event.Args.ImageURLs) > 0)
}
