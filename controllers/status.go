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

// writeStatus writes the status if it changed, and then reports the change. If only the step of a
// start changed, writeStatus delays the write until the step has lasted long enough. In this case,
// it returns the remaining delay.
func (r *conversationReconciler) writeStatus(ctx context.Context, o gathered, v lifecycle.Verdict) (time.Duration,
	error) {
	before, after := o.Conversation.Status, lifecycle.NewStatus(o.Observation, v)
	if equality.Semantic.DeepEqual(before, after) {
		return 0, nil
	}
	if wait := lifecycle.WriteDelay(before, after, v, o.Now, lifecycle.StepThreshold(r.backlog())); wait > 0 {
		return wait, nil
	}
	written, err := r.updateStatus(ctx, o.Conversation, after)
	if written != nil {
		r.reportWrite(o, v, written)
	}
	return 0, err
}

// updateStatus writes a status. It returns the Conversation with the new status, or nil if the
// cached Conversation is stale. The next event of the cache then requeues the Conversation.
func (r *conversationReconciler) updateStatus(ctx context.Context, c *v1alpha1.Conversation,
	status v1alpha1.ConversationStatus) (*v1alpha1.Conversation, error) {
	written := c.DeepCopy()
	written.Status = *status.DeepCopy() // a copy, because Update overwrites it with the response
	err := r.client.Status().Update(ctx, written)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("write the status of Conversation: %w", err)
	}
	return written, nil
}

// reportWrite emits the events and metrics of a status write, and notes that the cache does not
// show the new status yet.
func (r *conversationReconciler) reportWrite(o gathered, v lifecycle.Verdict, written *v1alpha1.Conversation) {
	if written.ResourceVersion != o.Conversation.ResourceVersion { // a write without a change causes no watch event
		r.memory.update(o.Conversation, func(m *memoryEntry) {
			m.staleVersions = append(m.staleVersions, o.Conversation.ResourceVersion)
		})
	}
	before, after := o.Conversation.Status, written.Status
	r.emitEvents(written, before, after)
	r.emitTurnEvent(written, before, after)
	recordTransition(o.Conversation, before, after, o.Now)
	if lifecycle.EndsNow(before, v) && o.analytics {
		recordUsage(before.Result, after.Result)
	}
}
