package controllers

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// requeue returns the delay until the next reconcile of the session, if no event causes an earlier
// one. times contains the delays that only the caller knows: until a postponed status write, and
// until the end of a TTL.
func (r *conversationReconciler) requeue(o gathered, start *prepared, v lifecycle.Verdict, blocker *lifecycle.Blocker,
	times ...time.Duration) reconcile.Result {
	if blocker != nil {
		times = append(times, r.untilRetry(o, start))
	}
	if created := start != nil && blocker == nil && v.Pod == lifecycle.NeedPod; created || o.PodExpected {
		times = append(times, podTimeout) // the cache may miss a short-lived pod
	}
	if o.Pod != nil && o.Warm.Unbound {
		times = append(times, r.binds.get(o.Pod.UID).retryAt.Sub(o.Now))
	}
	if o.Unready != nil {
		times = append(times, lifecycle.UntilStored(o.Conversation, o.Now))
	}
	if restart := o.Conversation.Spec.RestartAt; restart != nil {
		times = append(times, restart.Sub(o.Now))
	}
	times = append(times, lifecycle.UntilRetry(o.Observation))
	switch v.State {
	case v1alpha1.StateStarting:
		left, _ := lifecycle.UntilDeadline(o.Observation)
		times = append(times, left)
	case v1alpha1.StateRunning:
		if left, bounded := lifecycle.UntilMaxDuration(o.Observation); bounded {
			times = append(times, max(left, time.Millisecond))
		}
	}
	times = slices.DeleteFunc(times, func(t time.Duration) bool { return t <= 0 })
	if len(times) == 0 {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(slices.Min(times), time.Millisecond)}
}

// minRetryDelay and maxRetryDelay limit the delay before a blocked start is retried. Retries are
// necessary, because no event announces that a foreign object is removed or that a quota grows.
const (
	minRetryDelay = 5 * time.Second
	maxRetryDelay = 5 * time.Minute
)

// untilRetry returns the delay until a blocked start is retried. A session that holds a slot
// retries soon, because other sessions may wait for the slot. A session that was just refused also
// retries soon, because the cause of the refusal may be gone.
func (r *conversationReconciler) untilRetry(o gathered, start *prepared) time.Duration {
	began, c := o.Now, o.Conversation
	if c.Status.StartTime != nil {
		began = c.Status.StartTime.Time
	}
	if refusal := r.memory.get(c).currentRefusal(c); refusal != nil {
		switch {
		case start != nil && start.paused && o.Now.Sub(refusal.last) < minRetryDelay,
			r.queue.Has(client.ObjectKeyFromObject(c)):
			began = o.Now
		case refusal.first.Before(began):
			began = refusal.first // the wait in the queue does not reset the backoff
		}
	}
	return retryDelay(o.Now.Sub(began))
}

// retryDelay grows with the time for which a start is blocked. It has jitter, so that thousands of
// blocked sessions do not retry at the same time.
func retryDelay(blockedFor time.Duration) time.Duration {
	return wait.Jitter(min(max(blockedFor/2, minRetryDelay), maxRetryDelay), 0.5)
}
