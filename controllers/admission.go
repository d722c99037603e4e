package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/queue"
)

// newAdmissions is a channel with a request for each session that got a slot it waited for, and the
// function that feeds it.
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

// fillQueue gives every session with a pod its slot, before the first decision.
func (r *conversationReconciler) fillQueue(ctx context.Context) error {
	r.fillMu.Lock()
	defer r.fillMu.Unlock()
	if r.filled {
		return nil
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
	r.filled = true
	return nil
}

func queueSession(c *v1alpha1.Conversation) queue.Session {
	return queue.Session{User: types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.UserSettingsName},
		Name: client.ObjectKeyFromObject(c)}
}

// admit gives a start a slot, or notes in the observation why it has to wait. A session that is not
// ready must neither hold a slot nor wait for one, so start is prepared before.
func (r *conversationReconciler) admit(o *gathered, start *prepared) {
	c, limit := o.Conversation, start.Class.Spec.MaxSessionsPerUser
	o.Unready, o.Storing = start.unready, lifecycle.UntilStored(c, o.Now) > 0
	refusal := r.memory.of(c).refusalOf(c)
	switch {
	case start.unready != nil || start.blocked != nil:
		r.queue.Leave(client.ObjectKeyFromObject(c))
	case refusal != nil && o.Now.Sub(refusal.last) < retrySoonest:
		// The refusal is written to the status, and each write requeues. Sessions that take a slot in
		// turn to retry would keep each other busy without end.
		start.paused, start.blocked = true, blockerOf(refusal.err)
	case !r.queue.Enter(queueSession(c), limit, lifecycle.WaitingSince(c.Status, o.Now)):
		o.QueueLimit = *limit
		if refusal != nil {
			o.Refusal = stableMessage(refusal.err)
		}
	}
}

// keepsSlot says whether a session keeps its slot, or its place in the queue. A session that is over
// or blocked must not hold one.
func (r *conversationReconciler) keepsSlot(ctx context.Context, o gathered, start *prepared, v lifecycle.Verdict,
	blocker *lifecycle.Blocker) (bool, error) {
	switch {
	case lifecycle.HoldsSlot(o.Pod) || lifecycle.HoldsSlot(o.OldPod):
		return true, nil
	case start != nil && start.paused:
		return true, nil // it neither tried nor asked for a slot
	case blocker == nil:
		return v.State != v1alpha1.StateStopped, nil
	case blocker.Reason == v1alpha1.ReasonForeignObject:
		return false, nil
	case blocker.Reason != v1alpha1.ReasonRejected:
		return true, nil // it has none, or it has one and waits until an object of it is gone
	}
	// The API server refuses a second pod before it checks whether the first exists, and the cache may
	// not show that one yet.
	if err := r.live.Get(ctx, sessionObject(o.Conversation), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		return true, err
	}
	limited := start != nil && start.Class.Spec.MaxSessionsPerUser != nil
	return limited && r.queue.RetryWithSlot(client.ObjectKeyFromObject(o.Conversation)), nil
}
