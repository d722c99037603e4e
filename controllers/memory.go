package controllers

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// memory holds, for each Conversation, actions of this process that the cache does not show yet. If
// the memory is lost, the only effect is that the API server refuses some requests. A running
// session has no entry.
type memory struct {
	mu      sync.Mutex
	entries map[types.NamespacedName]memoryEntry
	turns   retryTurns
}

type memoryEntry struct {
	uid types.UID
	// staleVersions are the resourceVersions before this process's last status writes. While the
	// cache still shows one of these versions, any decision would be outdated and its write would
	// conflict. The next reconcile that finds another version in the cache clears the slice.
	staleVersions []string
	// podAttempt is the attempt of the pod that this process created at podCreated. It is 0 as soon
	// as the cache shows the pod.
	podAttempt int32
	podCreated time.Time
	refusal    refusal
	// failures is the number of starts in a row that failed with an error. The last one failed at
	// failedAt.
	failures int
	failedAt time.Time
	// missing is the name of the Secret or ConfigMap that was missing at the last attempt to start
	// the session.
	missing string
}

type refusal struct {
	err        error
	generation int64
	// first and last are the times of the first and the last refusal of this generation. A start
	// that succeeds clears the refusal.
	first, last time.Time
}

// podTimeout is how long the cache may take to show a created pod. After that, the manager no
// longer expects the pod, and tries to create a pod again.
const podTimeout = 10 * time.Second

func (m *memory) get(c *v1alpha1.Conversation) memoryEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entry(c)
}

// entry returns the entry of a Conversation. The caller holds the lock.
func (m *memory) entry(c *v1alpha1.Conversation) memoryEntry {
	if entry, known := m.entries[client.ObjectKeyFromObject(c)]; known && entry.uid == c.UID {
		return entry
	}
	return memoryEntry{uid: c.UID}
}

func (m *memory) update(c *v1alpha1.Conversation, change func(*memoryEntry)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry := m.entry(c)
	change(&entry)
	if len(entry.staleVersions) == 0 && entry.podAttempt == 0 && entry.refusal.err == nil && entry.failures == 0 &&
		entry.missing == "" {
		delete(m.entries, client.ObjectKeyFromObject(c))
		return
	}
	if m.entries == nil {
		m.entries = map[types.NamespacedName]memoryEntry{}
	}
	m.entries[client.ObjectKeyFromObject(c)] = entry
}

func (m *memory) forget(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, name)
}

// expectsPod reports whether this process created the pod of the current attempt a short time ago.
func (r memoryEntry) expectsPod(c *v1alpha1.Conversation, now time.Time) bool {
	return r.podAttempt == lifecycle.Attempt(c.Status) && now.Sub(r.podCreated) < podTimeout
}

// currentRefusal returns the last refusal of this generation of a Conversation; nil without a
// refusal.
func (r memoryEntry) currentRefusal(c *v1alpha1.Conversation) *refusal {
	if r.refusal.err == nil || r.refusal.generation != c.Generation {
		return nil
	}
	return &r.refusal
}

func (r *memoryEntry) recordRefusal(c *v1alpha1.Conversation, err error, now time.Time) {
	first := now
	if last := r.currentRefusal(c); last != nil {
		first = last.first
	}
	r.refusal = refusal{err, c.Generation, first, now}
}

// firstBackoff is the delay after a failed start. Each further failure doubles the delay, up to
// lastBackoff.
const (
	firstBackoff = 5 * time.Millisecond
	lastBackoff  = 30 * time.Second
)

// recordFailure counts a failed start. The work queue counts failures, too, but it forgets them
// when a session waits for other starts of its user.
func (r *memoryEntry) recordFailure(now time.Time) {
	r.failures, r.failedAt = r.failures+1, now
}

// backoff returns the remaining delay before the next start.
func (r memoryEntry) backoff(now time.Time) time.Duration {
	if r.failures == 0 {
		return 0
	}
	delay := min(firstBackoff<<min(r.failures-1, 20), lastBackoff)
	return r.failedAt.Add(delay).Sub(now)
}

// retryTurns limits the retries of refused sessions. A user may have many refused sessions, and
// each retry reads all Secrets of the user. After a retry that is refused again, the user's other
// refused sessions wait for minRetryDelay.
type retryTurns struct {
	mu    sync.Mutex
	taken map[types.NamespacedName]time.Time // keyed by user
}

// take reports whether a refused session of the user may retry now. If so, the user's next
// retry must wait.
func (t *retryTurns) take(user types.NamespacedName, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.taken, func(_ types.NamespacedName, at time.Time) bool { return now.Sub(at) >= minRetryDelay })
	if _, found := t.taken[user]; found {
		return false
	}
	if t.taken == nil {
		t.taken = map[types.NamespacedName]time.Time{}
	}
	t.taken[user] = now
	return true
}

// giveBack lets another refused session of the user retry immediately. It is called if the API
// server did not refuse a start, or if the start was not attempted.
func (t *retryTurns) giveBack(user types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.taken, user)
}

// oversizeError says that a session's Secret would be larger than the API server allows.
type oversizeError struct{ size int }

func (e *oversizeError) Error() string {
	return fmt.Sprintf("the settings, secrets and tool servers of the session need %d KiB, but its Secret can hold at "+
		"most %d KiB: remove or shorten secrets", (e.size+1023)>>10, corev1.MaxSecretSize>>10)
}

// isRefusal reports whether the API server refused an object, or would refuse it because of its
// size. An immediate retry would have the same result.
func isRefusal(err error) bool {
	_, oversize := errors.AsType[*oversizeError](err)
	return oversize || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}
