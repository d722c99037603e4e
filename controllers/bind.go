package controllers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

const (
	// maxCalls limits the concurrent calls to sessions.
	maxCalls = 256
	// bindTimeout limits a call that waits until the session is ready. The pod answers such a call
	// after about 20 seconds at the latest. shortTimeout limits a call that does not wait.
	bindTimeout, shortTimeout = 30 * time.Second, 10 * time.Second
	// minBindRetry is the delay after the first call. The delay doubles with each call, up to
	// maxBindPoll if the pod answers, and up to maxBindRetry if the call fails.
	minBindRetry, maxBindPoll, maxBindRetry = 100 * time.Millisecond, 2 * time.Second, 5 * time.Second
	maxBound                                = 64 << 10
)

var (
	// errRefused says that a warm pod refused the session for good.
	errRefused = errors.New("the warm pod refused the session")
	// errNoKey says that no valid Secret contains the key of the warm pod. If the session has not
	// run in the current attempt, this error counts as a refusal, and the pod is replaced.
	errNoKey = errors.New("the key of the warm pod is missing")
)

// binds remembers the outcome of this manager's last Bind call to each warm pod, until the status
// says that the session runs in this pod, or until the pod is gone.
type binds struct {
	results sync.Map
	client  *http.Client
}

type bindResult struct {
	// restarts is the number of restarts of the pod's process before the call.
	restarts int32
	ready    bool
	refused  bool
	// calls is the number of calls since the last restart of the pod's process.
	calls   int
	retryAt time.Time
}

func newBinds() *binds {
	return &binds{client: &http.Client{
		Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the session answered with a redirect, which is not followed")
		},
	}}
}

func (b *binds) get(pod types.UID) bindResult {
	result, known := b.results.Load(pod)
	if !known {
		return bindResult{}
	}
	return result.(bindResult)
}

// state describes a session in a warm pod. unbound means that the manager does not know whether the
// session is ready in the pod.
func (b *binds) state(s v1alpha1.ConversationStatus, pod *corev1.Pod) (unbound, refused bool) {
	result := b.get(pod.UID)
	ready := result.ready && result.restarts == lifecycle.PodRestarts(pod)
	return !ready && !lifecycle.RecordedAsBound(s, pod), result.refused
}

// settle forgets the outcome for a pod. It is called when the status contains the outcome, or when
// the pod is gone.
func (b *binds) settle(pod types.UID) { b.results.Delete(pod) }

// canBind reports whether the process of a warm pod can answer.
func canBind(pod *corev1.Pod) bool {
	c := lifecycle.SessionStatus(pod)
	return pod.DeletionTimestamp == nil && pod.Status.PodIP != "" && c != nil && c.State.Running != nil
}

// bindKey returns the key in the Secret of a warm pod. It returns nil if the manager did not create
// the Secret for this pod, or if the pod's class label or template label has changed.
type bindKey func(*corev1.Pod) []byte

// bind sends the session to its warm pod in the background. When the call ends, the Conversation is
// requeued. secret is the session's Secret. If it is nil, the call reads the Secret from the API
// server.
func (r *conversationReconciler) bind(c *v1alpha1.Conversation, pod *corev1.Pod, secret *corev1.Secret,
	key func() (bindKey, error)) {
	before, restarts := r.binds.get(pod.UID), lifecycle.PodRestarts(pod)
	ready := before.ready && before.restarts == restarts // a call may have ended since the observation
	if ready || before.refused || before.retryAt.After(r.clock.Now()) || !canBind(pod) {
		return
	}
	calls := 0
	if before.restarts == restarts {
		calls = before.calls
	}
	// Only the first call after a start of the pod's process waits until the session is ready, and
	// only while few calls are in flight. If every call waited, slow sessions could occupy all
	// maxCalls slots.
	wait, timeout := calls == 0 && !r.calls.Busy(), shortTimeout
	if wait {
		timeout = bindTimeout
	}
	conversation, uid := c.DeepCopy(), pod.UID
	r.calls.Go(r.lifetime, "bind "+string(uid), client.ObjectKeyFromObject(c), func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		bound, err := r.callBind(ctx, conversation, pod, wait, secret, key)
		refused := errors.Is(err, errRefused) || errors.Is(err, errNoKey) && !lifecycle.Ran(conversation.Status)
		result := bindResult{restarts: restarts, calls: calls + 1, refused: refused}
		longest := maxBindRetry
		if err == nil {
			result.ready, longest = bound.Ready, maxBindPoll
		}
		if !result.ready {
			result.retryAt = r.clock.Now().Add(min(minBindRetry<<min(calls, 10), longest))
		}
		r.binds.results.Store(uid, result)
		// Forget the result now if the pod was deleted during the call, because no later reconcile
		// would forget it.
		current := &corev1.Pod{}
		err = r.cache.Get(r.lifetime, client.ObjectKeyFromObject(pod), current)
		if client.IgnoreNotFound(err) == nil && current.UID != uid {
			r.binds.settle(uid)
		}
	})
}

// callBind sends the session's Secret to its pod, sealed with the key of the pod.
func (r *conversationReconciler) callBind(ctx context.Context, c *v1alpha1.Conversation, pod *corev1.Pod,
	wait bool, secret *corev1.Secret, readKey func() (bindKey, error)) (*session.Bound, error) {
	if secret == nil {
		keys, _, err := r.signingKeys(ctx)
		if err != nil {
			return nil, err
		}
		secret = &corev1.Secret{}
		if err := r.live.Get(ctx, sessionObject(c), secret); err != nil {
			return nil, fmt.Errorf("read the session's Secret: %w", err)
		}
		trusted, err := checkSecret(secret, c, keys)
		claimed := objects.Claim{Name: pod.Name, UID: pod.UID}
		if claim := currentClaim(c, secret); err != nil || !trusted || claim == nil || *claim != claimed {
			return nil, errors.Join(errors.New("the session's Secret does not claim the pod"), err)
		}
	}
	keyOf, err := readKey()
	if err != nil {
		return nil, err
	}
	key := keyOf(pod)
	if key == nil {
		return nil, errNoKey
	}
	address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(r.options.sessionPort()))
	return r.binds.post(ctx, address, wait, key, &session.Bind{
		UID: string(c.UID), Attempt: int(lifecycle.Attempt(c.Status)), RanAttempt: int(c.Status.RanAttempt),
		Data: secret.Data,
	})
}

func (r *conversationReconciler) warmKey(namespace string, pod objects.Claim) func() (bindKey, error) {
	return sync.OnceValues(func() (bindKey, error) {
		ctx, cancel := context.WithTimeout(r.lifetime, bindTimeout)
		defer cancel()
		keys, _, err := r.signingKeys(ctx)
		if err != nil {
			return nil, err
		}
		secret := &corev1.Secret{}
		err = r.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pod.Name}, secret)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read the Secret of the warm pod: %w", err)
		}
		return func(pod *corev1.Pod) []byte {
			return objects.BindKey(secret, pod, keys.snapshots, keys.previousSnapshots)
		}, nil
	})
}

// post sends a Bind to a pod. If wait is set, the pod answers when the session is ready, or after
// about 20 seconds. The body is encrypted, so plain HTTP suffices.
func (b *binds) post(ctx context.Context, address string, wait bool, key []byte,
	bind *session.Bind) (*session.Bound, error) {
	sealed, err := session.SealBind(key, bind)
	if err != nil {
		return nil, err
	}
	url := "http://" + address + session.BindPath
	if wait {
		url += "?wait"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(sealed))
	if err != nil {
		return nil, err
	}
	response, err := b.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBound))
	switch {
	case response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusConflict:
		return nil, errRefused
	case err != nil:
		return nil, err
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the warm pod answered with status %d", response.StatusCode)
	}
	bound, err := session.OpenBound(key, sealed, body)
	if err == nil && (bound.UID != bind.UID || bound.Attempt != bind.Attempt) {
		return nil, errRefused
	}
	return bound, err
}
