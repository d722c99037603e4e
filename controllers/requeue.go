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

// requeue is when to reconcile again without an event. times are those that are known already: when a
// status is due, and when something expires.
func (r *conversationReconciler) requeue(o gathered, start *prepared, v lifecycle.Verdict, blocker *lifecycle.Blocker,
	times ...time.Duration) reconcile.Result {
	if blocker != nil {
		times = append(times, r.untilRetry(o, start))
	}
	if created := start != nil && blocker == nil && v.Pod == lifecycle.NeedPod; created || o.PodExpected {
		times = append(times, podTimeout) // the pod may come and go unseen
	}
	if o.Unready != nil {
		times = append(times, lifecycle.UntilStored(o.Conversation, o.Now))
	}
	if restart := o.Conversation.Spec.RestartAt; restart != nil {
		times = append(times, restart.Sub(o.Now))
	}
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

// The bounds of how often a blocked start is retried: no event tells when a foreign object goes away
// or a quota grows.
const (
	retrySoonest = 5 * time.Second
	retryLatest  = 5 * time.Minute
)

// untilRetry is how long until a blocked start is retried. One that has a slot retries soon, since
// others may wait for the slot. So does one that is paused, for what it needs may have come.
func (r *conversationReconciler) untilRetry(o gathered, start *prepared) time.Duration {
	began, c := o.Now, o.Conversation
	if c.Status.StartTime != nil {
		began = c.Status.StartTime.Time
	}
	if refusal := r.memory.of(c).refusalOf(c); refusal != nil {
		switch {
		case start != nil && start.paused || r.queue.Has(client.ObjectKeyFromObject(c)):
			began = o.Now
		case refusal.first.Before(began):
			began = refusal.first // it was queued since, and does not retry more often for that
		}
	}
	return retryDelay(o.Now.Sub(began))
}

// retryDelay grows with the time that a start is blocked, and has jitter: thousands of blocked
// sessions must not retry at once.
func retryDelay(blockedFor time.Duration) time.Duration {
	return wait.Jitter(min(max(blockedFor/2, retrySoonest), retryLatest), 0.5)
}
