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
	// maxCalls limits the calls to sessions at the same time.
	maxCalls = 256
	// bindTimeout limits a call. A session answers when it is ready, or after about 20 seconds.
	bindTimeout = 30 * time.Second
	// minBindRetry and maxBindRetry limit the delay after a failed call.
	minBindRetry, maxBindRetry = 100 * time.Millisecond, 5 * time.Second
	maxBound                   = 64 << 10
)

// errRefused says that a warm pod refused the session for good.
var errRefused = errors.New("the warm pod refused the session")

// binds remembers the outcomes of this process's calls to warm pods, by the UID of the pod, until the
// status says that the session runs.
type binds struct {
	results sync.Map
	client  *http.Client
}

// bindResult is the outcome of the last call to a pod.
type bindResult struct {
	// restarts is the number of restarts of the pod's process before the call.
	restarts int32
	ready    bool
	refused  bool
	failures int
	retryAt  time.Time
}

func newBinds() *binds {
	return &binds{client: &http.Client{
		Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("a session must not redirect")
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

// state says whether a session is not known to be ready in a warm pod, and whether the pod refused the
// session.
func (b *binds) state(s v1alpha1.ConversationStatus, pod *corev1.Pod) (unbound, refused bool) {
	result := b.get(pod.UID)
	ready := result.ready && result.restarts == lifecycle.PodRestarts(pod)
	return !ready && !lifecycle.RecordedAsBound(s, pod), result.refused
}

// settle forgets the outcome for a pod, because the status has the same fact.
func (b *binds) settle(pod types.UID) { b.results.Delete(pod) }

// canBind reports whether the process of a warm pod can answer.
func canBind(pod *corev1.Pod) bool {
	c := lifecycle.SessionStatus(pod)
	return pod.DeletionTimestamp == nil && pod.Status.PodIP != "" && c != nil && c.State.Running != nil
}

// bind sends the session to its warm pod in the background. The end of the call requeues the
// Conversation. secret is the session's Secret; nil means that the call reads it.
func (r *conversationReconciler) bind(c *v1alpha1.Conversation, pod *corev1.Pod, secret *corev1.Secret,
	key func() ([]byte, error)) {
	before, restarts := r.binds.get(pod.UID), lifecycle.PodRestarts(pod)
	ready := before.ready && before.restarts == restarts // a call may have ended since the observation
	if ready || before.refused || before.retryAt.After(r.clock.Now()) || !canBind(pod) {
		return
	}
	conversation, uid, name, address := c.DeepCopy(), pod.UID, pod.Name, pod.Status.PodIP
	r.calls.Go(r.lifetime, "bind "+string(uid), client.ObjectKeyFromObject(c), func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, bindTimeout)
		defer cancel()
		bound, err := r.callBind(ctx, conversation, objects.Claim{Name: name, UID: uid}, address, secret, key)
		result := bindResult{restarts: restarts, refused: errors.Is(err, errRefused)}
		if result.ready = err == nil && bound.Ready; err != nil {
			result.failures = before.failures + 1
		}
		if !result.ready {
			result.retryAt = r.clock.Now().Add(min(minBindRetry<<min(result.failures, 10), maxBindRetry))
		}
		r.binds.results.Store(uid, result)
	})
}

// callBind sends the session's Secret to its pod, sealed with the key of the pod.
func (r *conversationReconciler) callBind(ctx context.Context, c *v1alpha1.Conversation, pod objects.Claim,
	address string, secret *corev1.Secret, readKey func() ([]byte, error)) (*session.Bound, error) {
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
		if claim := currentClaim(c, secret); err != nil || !trusted || claim == nil || *claim != pod {
			return nil, errors.Join(errors.New("the session's Secret does not claim the pod"), err)
		}
	}
	key, err := readKey()
	if err != nil {
		return nil, err
	}
	return r.binds.post(ctx, net.JoinHostPort(address, strconv.Itoa(r.options.sessionPort())), key, &session.Bind{
		UID: string(c.UID), Attempt: int(lifecycle.Attempt(c.Status)), RanAttempt: int(c.Status.RanAttempt),
		Data: secret.Data,
	})
}

// warmKey returns a function that reads the key of a warm pod once.
func (r *conversationReconciler) warmKey(namespace string, pod objects.Claim) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) {
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
		key := objects.BindKey(secret, pod.UID, keys.snapshots, keys.previousSnapshots)
		if key == nil {
			return nil, errRefused // nobody can bind a session to this pod
		}
		return key, nil
	})
}

// post sends a Bind to a pod and waits until the session is ready, or for about 20 seconds. The text is
// sealed, so plain HTTP suffices.
func (b *binds) post(ctx context.Context, address string, key []byte, bind *session.Bind) (*session.Bound, error) {
	sealed, err := session.SealBind(key, bind)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+session.BindPath+"?wait",
		bytes.NewReader(sealed))
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
		return nil, fmt.Errorf("the warm pod answers %d", response.StatusCode)
	}
	bound, err := session.OpenBound(key, sealed, body)
	if err == nil && (bound.UID != bind.UID || bound.Attempt != bind.Attempt) {
		return nil, errRefused
	}
	return bound, err
}
