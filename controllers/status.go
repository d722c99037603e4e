package controllers

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// writeStatus writes the status, and then emits events and metrics of the change. It returns the
// Conversation with the new status, or nil if it wrote nothing. If only the step of a start
// changed, it delays the write until the step has lasted long enough. In this case, it returns the
// remaining delay.
func (r *conversationReconciler) writeStatus(ctx context.Context, o gathered, v lifecycle.Verdict) (
	*v1alpha1.Conversation, time.Duration, error) {
	before, after := o.Conversation.Status, lifecycle.NewStatus(o.Observation, v)
	if equality.Semantic.DeepEqual(before, after) {
		return nil, 0, nil
	}
	if wait := lifecycle.WriteDelay(before, after, v, o.Now, lifecycle.StepThreshold(r.backlog())); wait > 0 {
		return nil, wait, nil
	}
	written := o.Conversation.DeepCopy()
	written.Status = after
	if err := r.client.Status().Update(ctx, written); err != nil {
		// A conflict means that the cache is stale. The next event of the cache requeues the
		// Conversation.
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil, 0, nil
		}
		return nil, 0, fmt.Errorf("write the status of Conversation: %w", err)
	}
	if written.ResourceVersion != o.Conversation.ResourceVersion { // a write without a change causes no watch event
		r.memory.update(o.Conversation, func(m *memoryEntry) {
			m.staleVersions, m.created = append(m.staleVersions, o.Conversation.ResourceVersion), false
		})
	}
	r.emitEvents(written, before, after)
	r.emitTurnEvent(written, before, after)
	recordTransition(o.Conversation, before, after, o.Now)
	if lifecycle.EndsNow(before, v) && o.analytics {
		recordUsage(before.Result, after.Result)
	}
	return written, 0, nil
}
