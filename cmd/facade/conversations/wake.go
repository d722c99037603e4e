package conversations

import (
	"context"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// maxClockSkew is the tolerated difference between the clocks of the facade and the manager.
const maxClockSkew = time.Minute

// Wake requests the start of a stopped conversation, which may come from the cache. It changes
// nothing if the conversation is not stopped, or if its start is already requested. The API server
// refuses the request if the conversation has changed since this version.
func (s *Service) Wake(ctx context.Context, c *v1alpha1.Conversation) error {
	if c.Status.State != v1alpha1.StateStopped || restartPending(c) {
		return nil
	}
	return s.patchSpec(ctx, c, map[string]any{"uid": c.UID, "resourceVersion": c.ResourceVersion}, startSpec(c))
}

// restartPending reports whether a restart is requested that the manager has not executed yet.
func restartPending(c *v1alpha1.Conversation) bool {
	at := c.Spec.RestartAt
	return !c.Spec.Suspend && c.Status.Reason != v1alpha1.ReasonSuspended && at != nil &&
		!at.Equal(c.Status.RestartedAt) && !at.After(time.Now().Add(maxClockSkew))
}
