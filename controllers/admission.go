package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
	"github.com/parley-dev/parley/controllers/queue"
)

// newAdmissions returns a channel of reconcile requests for waiting sessions that get a slot, and
// the function that feeds the channel.
func newAdmissions() (<-chan event.GenericEvent, func(types.NamespacedName)) {
	admissions := make(chan event.GenericEvent, 1024)
	return admissions, func(name types.NamespacedName) {
		object := &v1alpha1.Conversation{}
		object.Namespace, object.Name = name.Namespace, name.Name
		select {
		case admissions <- event.GenericEvent{Object: object}:
		default: // the queue must not block
			go func() { admissions <- event.GenericEvent{Object: object} }()
		}
	}
}

// fillQueue assigns a slot to every session with a pod, and restores the waiting sessions. It also
// waits until the warm pods are known. It runs before the first decision.
func (r *conversationReconciler) fillQueue(ctx context.Context) error {
	r.fillMu.Lock()
	defer r.fillMu.Unlock()
	if r.filled {
		return nil
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), r.warm.synced) {
		return fmt.Errorf("wait for the warm pods: %w", context.Cause(ctx))
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.UnsafeDisableDeepCopy,
		client.HasLabels{v1alpha1.LabelConversation}); err != nil {
		return fmt.Errorf("list the sessions' pods: %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; lifecycle.HoldsSlot(pod) {
			r.queue.Hold(queue.Session{
				User: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelUserSettings]},
				Name: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelConversation]},
			})
		}
	}
	var conversations v1alpha1.ConversationList
	if err := r.client.List(ctx, &conversations, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the waiting sessions: %w", err)
	}
	var queued []*v1alpha1.Conversation
	for i := range conversations.Items {
		if c := &conversations.Items[i]; c.Status.Reason == v1alpha1.ReasonQueued {
			queued = append(queued, c)
		}
	}
	// Parley 0.1.0 recorded no queue numbers. Its queued sessions get numbers in the order in which
	// they began to wait.
	slices.SortFunc(queued, func(a, b *v1alpha1.Conversation) int {
		return ptr.Deref(a.Status.StartTime, metav1.Time{}).Compare(ptr.Deref(b.Status.StartTime, metav1.Time{}).Time)
	})
	for _, c := range queued {
		o, err := r.gather(ctx, c, memoryEntry{}, r.clock.Now())
		if err != nil {
			return err
		}
		if limit := o.class.Spec.MaxSessionsPerUser; limit != nil {
			r.queue.Restore(queueSession(c), *limit, c.Status.QueueNumber)
		}
	}
	r.filled = true
	return nil
}

func queueSession(c *v1alpha1.Conversation) queue.Session {
	return queue.Session{User: types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.UserSettingsName},
		Name: client.ObjectKeyFromObject(c)}
}

// maxStarts is how many sessions of a user the manager starts at the same time. A start reads all
// Secrets of the user. Without this limit, a user who starts many sessions with large Secrets could
// occupy all workers of the manager, and delay the starts of other users.
const maxStarts = 4

// admit assigns a slot to a session that starts, and then prepares the start. Because of this
// order, the manager reads nothing from the API server for a session that waits for a slot. The
// order is reversed for a session that may lack an input, because such a session must neither hold
// a slot nor wait for one while the input is missing.
func (r *conversationReconciler) admit(ctx context.Context, o *gathered) (*prepared, error) {
	c := o.Conversation
	o.Storing = lifecycle.UntilStored(c, o.Now) > 0
	refusal := r.memory.get(c).currentRefusal(c)
	if refusal != nil && o.Now.Sub(refusal.last) < minRetryDelay {
		// A refusal is written to the status, and each status write requeues the session. Without this
		// pause, the session would retry immediately, take the free slot and be refused again. The slot
		// would then go to the next refused session, in an endless loop.
		return &prepared{paused: true, blocked: blockerOf(refusal.err)}, nil
	}
	inputsFirst := o.Storing || !o.SettingsExist || lifecycle.LacksInputs(c.Status)
	if !inputsFirst && !r.enterQueue(o, o.class) {
		return nil, nil
	}
	if wait := r.memory.get(c).backoff(o.Now); wait > 0 {
		return &prepared{retryIn: wait}, nil
	}
	if r.starts.Enter(queueSession(c), ptr.To[int32](maxStarts), 0) != 0 {
		return &prepared{waits: true}, nil
	}
	user := queueSession(c).User
	// retryTurns limits the retries of refused sessions, but not of sessions that may lack an input:
	// these sessions read little while the input is missing.
	if refusal != nil && !inputsFirst && !r.memory.turns.take(user, o.Now) {
		if o.class.Spec.MaxSessionsPerUser == nil {
			r.queue.Leave(client.ObjectKeyFromObject(c)) // without a pod, it must not count as running
		}
		return &prepared{paused: true, blocked: blockerOf(refusal.err)}, nil
	}
	start, err := r.prepareStart(ctx, o)
	if err != nil {
		return nil, err
	}
	if start.missing != o.missing {
		r.memory.update(c, func(m *memoryEntry) { m.missing = start.missing })
	}
	o.Unready = start.unready
	if start.unready != nil || start.blocked != nil {
		r.queue.Leave(client.ObjectKeyFromObject(c))
		return start, nil
	}
	noteModel(o, start)
	if start.Class.Name != o.class.Name {
		r.queue.Leave(client.ObjectKeyFromObject(c)) // the cached settings named another class, with another limit
	}
	r.enterQueue(o, start.Class)
	return start, nil
}

// prepareStart prepares a start. It records an error. If the start was not attempted, the next refused
// session of the user may retry.
func (r *conversationReconciler) prepareStart(ctx context.Context, o *gathered) (*prepared, error) {
	start, err := r.prepare(ctx, *o)
	if err != nil {
		r.memory.update(o.Conversation, func(m *memoryEntry) { m.recordFailure(o.Now) })
	}
	if err != nil || start.unready != nil || start.blocked != nil {
		r.memory.turns.giveBack(queueSession(o.Conversation).User)
	}
	return start, err
}

// enterQueue requests a slot, and reports whether the session has one. If no slot is free, the
// manager asks idle sessions to make room.
func (r *conversationReconciler) enterQueue(o *gathered, class objects.Class) bool {
	c, limit := o.Conversation, class.Spec.MaxSessionsPerUser
	o.QueueNumber = r.queue.Enter(queueSession(c), limit, c.Status.QueueNumber)
	if o.QueueNumber == 0 {
		return true
	}
	o.QueueLimit = *limit
	r.leaver.note(queueSession(c).User, c.Status.Reason != v1alpha1.ReasonQueued)
	if refusal := r.memory.get(c).currentRefusal(c); refusal != nil {
		o.Refusal = stableMessage(refusal.err)
	}
	return false
}

// keepsSlot reports whether a session keeps its slot or its position in the queue. A finished or
// blocked session must not hold a slot.
func (r *conversationReconciler) keepsSlot(ctx context.Context, o gathered, start *prepared, v lifecycle.Verdict,
	blocker *lifecycle.Blocker) (bool, error) {
	switch {
	case lifecycle.HoldsSlot(o.Pod) || lifecycle.HoldsSlot(o.OldPod):
		return true, nil
	case v.Reason == v1alpha1.ReasonBackingOff:
		return false, nil
	case start != nil && start.paused:
		return true, nil // this reconcile did not retry the start
	case blocker == nil:
		return v.State != v1alpha1.StateStopped, nil
	case blocker.Reason == v1alpha1.ReasonForeignObject:
		return false, nil
	case blocker.Reason != v1alpha1.ReasonRejected:
		return true, nil // the session has no slot, or waits for a deletion
	}
	// A refusal does not prove that there is no pod: the API server checks the quota before it
	// checks whether the pod exists, and the cache may not show an existing pod yet.
	if err := r.live.Get(ctx, podObject(o.Conversation), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		return true, err
	}
	limited := start != nil && start.Class.Spec.MaxSessionsPerUser != nil
	return limited && r.queue.RetryWithSlot(client.ObjectKeyFromObject(o.Conversation)), nil
}
