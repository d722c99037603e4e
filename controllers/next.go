package controllers

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// next is when to look again without an event: a step worth writing, a deadline, a restart, the end
// of an ended session's time, or when what is missing is no longer being stored.
func (r *conversationReconciler) next(ctx context.Context, o observation, v verdict, stuck *problem,
	wait time.Duration) (reconcile.Result, error) {
	at := r.untilNews(o, stuck, wait)
	switch v.state {
	case v1alpha1.StateStarting:
		if left, bounded := untilDeadline(o); bounded && left > 0 {
			at = append(at, left)
		}
	case v1alpha1.StateRunning:
		if left, bounded := untilMaxDuration(o); bounded {
			at = append(at, left)
		}
	case v1alpha1.StateStopped:
		if left, expires := timeToLive(o, v); expires && left <= 0 {
			return reconcile.Result{}, r.expire(ctx, o.conversation)
		} else if expires {
			at = append(at, left)
		}
		if left, expires := workspaceTimeToLive(o); expires && left <= 0 {
			if err := r.removeWorkspace(ctx, o.conversation); err != nil {
				return reconcile.Result{}, err
			}
		} else if expires {
			at = append(at, left)
		}
	}
	if len(at) == 0 {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(slices.Min(at), time.Millisecond)}, nil
}

// untilNews are the times until something may be known that no event tells of.
func (r *conversationReconciler) untilNews(o observation, stuck *problem, wait time.Duration) (at []time.Duration) {
	if wait = r.untilLook(o.conversation, wait); wait > 0 {
		at = append(at, wait)
	}
	if stuck != nil {
		at = append(at, r.untilRetry(o))
	}
	if o.awaited {
		at = append(at, awaitPod) // a pod may have come and gone unseen
	}
	if o.unready != nil && o.storing {
		at = append(at, untilStored(o.conversation, o.now))
	}
	if restart := o.conversation.Spec.RestartAt; restart != nil && restart.After(o.now) {
		at = append(at, restart.Sub(o.now))
	}
	return at
}

// untilLook is how long until the next look at a start that is under way. It is noted that there is
// one: after a step that may become worth writing, or after a pod was made without anything new to
// say.
func (r *conversationReconciler) untilLook(c *v1alpha1.Conversation, wait time.Duration) time.Duration {
	name := client.ObjectKeyFromObject(c)
	if wait == 0 && r.starts.isDue(name) {
		wait = r.visible()
	}
	if wait > 0 {
		r.starts.looksSoon(name)
	}
	return wait
}

// The bounds of how often a session that cannot start is tried again: no event tells when a foreign
// object goes away or a quota grows.
const (
	retrySoonest = 5 * time.Second
	retryLatest  = 5 * time.Minute
)

// untilRetry is how long until a start that is stuck is tried again. One that has a place tries
// soon: others may wait for it. So does one that did not try now, for what it needs may have come.
func (r *conversationReconciler) untilRetry(o observation) time.Duration {
	began := o.now
	if s := o.conversation.Status; s.StartTime != nil {
		began = s.StartTime.Time
	}
	if last, refused := r.starts.refusal(o.conversation); refused {
		switch {
		case o.paused || r.ledger.has(client.ObjectKeyFromObject(o.conversation)):
			began = o.now
		case last.first.Before(began):
			began = last.first // it waited for a turn since, and goes on to ask no more often
		}
	}
	return retryStuck(o.now.Sub(began))
}

// retryStuck is longer the longer a start is stuck, and different for each: thousands of blocked
// sessions must not all ask at once.
func retryStuck(waited time.Duration) time.Duration {
	return wait.Jitter(min(max(waited/2, retrySoonest), retryLatest), 0.5)
}

// timeToLive is how long a Conversation whose session ended may stay. A suspended one has not
// ended.
func timeToLive(o observation, v verdict) (left time.Duration, expires bool) {
	ttl, since := o.bounds.ttl, o.conversation.Status.StopTime
	if ttl == nil || since == nil || v.reason == v1alpha1.ReasonSuspended || v.reason == v1alpha1.ReasonDeleted {
		return 0, false
	}
	return since.Add(*ttl).Sub(o.now), true
}

// workspaceTimeToLive is how long the volume that the class gave stays.
func workspaceTimeToLive(o observation) (left time.Duration, expires bool) {
	ttl, since := o.bounds.workspaceTTL, o.conversation.Status.StopTime
	if ttl == nil || since == nil || o.conversation.Status.Workspace != v1alpha1.WorkspaceClass {
		return 0, false
	}
	return since.Add(*ttl).Sub(o.now), true
}

// expire deletes a Conversation as it was seen: one that was changed since, perhaps resumed, stays.
func (r *conversationReconciler) expire(ctx context.Context, c *v1alpha1.Conversation) error {
	err := r.client.Delete(ctx, c, client.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
