package controllers

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// expire deletes the Conversation, the volume and the pod of a stopped session after their TTLs. It
// returns the remaining TTL of each object that is not deleted yet.
func (r *conversationReconciler) expire(ctx context.Context, o gathered, v lifecycle.Verdict) ([]time.Duration, error) {
	c := o.Conversation
	if v.State != v1alpha1.StateStopped || c.Status.StopTime == nil {
		return nil, nil
	}
	var left []time.Duration
	for _, e := range []struct {
		ttl    *time.Duration
		exists bool
		remove func() error
		all    bool // deleting this object also deletes the others
	}{
		{o.Bounds.TTL, lifecycle.HasEnded(c.Status),
			func() error { return r.deleteConversation(ctx, c) }, true},
		{o.Bounds.WorkspaceTTL, c.Status.Workspace == v1alpha1.WorkspaceClass,
			func() error { return r.removeWorkspace(ctx, c) }, false},
		{o.Bounds.EndedPodTTL, v.Pod == lifecycle.KeepEndedPod && o.Pod != nil,
			func() error { return r.remove(ctx, "Pod", o.Pod) }, false},
	} {
		if e.ttl == nil || !e.exists {
			continue
		}
		if until := c.Status.StopTime.Add(*e.ttl).Sub(o.Now); until > 0 {
			left = append(left, until)
		} else if err := e.remove(); err != nil || e.all {
			return nil, err
		}
	}
	return left, nil
}

// deleteConversation deletes a Conversation unless it changed since it was read, because a user may
// have resumed it.
func (r *conversationReconciler) deleteConversation(ctx context.Context, c *v1alpha1.Conversation) error {
	err := r.client.Delete(ctx, c, client.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion})
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}
