package controllers

import (
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// memory holds what this process did for each Conversation and the cache does not show yet. Losing it
// costs refused requests, and nothing else. A session that runs has no entry.
type memory struct {
	entries sync.Map // remembered by types.NamespacedName
}

// remembered is the memory of one Conversation.
type remembered struct {
	uid types.UID
	// created: the Conversation was created while this process watched, and nothing is recorded of it.
	created bool
	// overwritten is the resourceVersion that this process wrote a status over. While the cache still
	// shows it, a decision would be outdated and its write refused as a conflict.
	overwritten string
	// podAttempt is the attempt whose pod was created at podCreated, until the cache shows it.
	podAttempt int32
	podCreated time.Time
	refusal    refusal
}

// refusal of an object of a session by the API server.
type refusal struct {
	err error
	// generation of the Conversation that was refused.
	generation int64
	// first and last are when it was refused, without a start in between.
	first, last time.Time
}

// podTimeout is how long the cache may take to show a pod that was created. After that the pod is
// looked for.
const podTimeout = 10 * time.Second

// of is what is remembered of a Conversation.
func (m *memory) of(c *v1alpha1.Conversation) remembered {
	if entry, known := m.entries.Load(client.ObjectKeyFromObject(c)); known && entry.(remembered).uid == c.UID {
		return entry.(remembered)
	}
	return remembered{uid: c.UID}
}

// change changes what is remembered of a Conversation.
func (m *memory) change(c *v1alpha1.Conversation, change func(*remembered)) {
	entry := m.of(c)
	change(&entry)
	if !entry.created && entry.overwritten == "" && entry.podAttempt == 0 && entry.refusal.err == nil {
		m.forget(client.ObjectKeyFromObject(c))
		return
	}
	m.entries.Store(client.ObjectKeyFromObject(c), entry)
}

func (m *memory) forget(name types.NamespacedName) { m.entries.Delete(name) }

// expectsPod says whether the pod of the present attempt was created a moment ago.
func (r remembered) expectsPod(c *v1alpha1.Conversation, now time.Time) bool {
	return r.podAttempt == lifecycle.Attempt(c.Status) && now.Sub(r.podCreated) < podTimeout
}

// refusalOf is why a Conversation as it is now could not start when it last tried; nil if nothing is
// known.
func (r remembered) refusalOf(c *v1alpha1.Conversation) *refusal {
	if r.refusal.err == nil || r.refusal.generation != c.Generation {
		return nil
	}
	return &r.refusal
}

// refuse notes that the API server refused an object of the Conversation.
func (r *remembered) refuse(c *v1alpha1.Conversation, err error, now time.Time) {
	first := now
	if last := r.refusalOf(c); last != nil {
		first = last.first
	}
	r.refusal = refusal{err, c.Generation, first, now}
}

// isRefusal says whether the API server refuses an object, and would do so again at once.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err)
}
