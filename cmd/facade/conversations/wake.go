package conversations

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
)

// maxClockSkew is the tolerated difference between the clocks of the facade and the manager.
const maxClockSkew = time.Minute

// Wake requests the start of a stopped conversation. It changes nothing if the conversation is not
// stopped, or if its start is already requested. The conversation may come from the cache: if it is
// outdated, the API server refuses the change, and Wake reads the conversation from the API server.
func (s *Service) Wake(ctx context.Context, u *auth.User, c *v1alpha1.Conversation) error {
	err := s.wake(ctx, c, map[string]any{"uid": c.UID, "resourceVersion": c.ResourceVersion})
	if apierrors.IsConflict(err) {
		fresh, err := s.Read(ctx, u, c.Name)
		if err != nil {
			return err
		}
		return changeRefusal(ctx, s.wake(ctx, fresh, map[string]any{"uid": c.UID}))
	}
	return changeRefusal(ctx, err)
}

// wake requests the start if the conversation still has this metadata.
func (s *Service) wake(ctx context.Context, c *v1alpha1.Conversation, metadata map[string]any) error {
	if c.Status.State != v1alpha1.StateStopped || restartPending(c) {
		return nil
	}
	return s.patchSpec(ctx, c, metadata, startSpec(c))
}

// restartPending reports whether a restart is requested that the manager has not executed yet.
func restartPending(c *v1alpha1.Conversation) bool {
	at := c.Spec.RestartAt
	return !c.Spec.Suspend && c.Status.Reason != v1alpha1.ReasonSuspended && at != nil &&
		!at.Equal(c.Status.RestartedAt) && !at.After(time.Now().Add(maxClockSkew))
}
