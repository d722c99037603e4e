package conversations

import (
	"context"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
)

// maxClockSkew is the tolerated difference between the clocks of the facade and the manager.
const maxClockSkew = time.Minute

// Wake requests the start of a stopped conversation. It changes nothing if the conversation is not
// stopped, or if its start is already requested. The conversation may come from the cache. If the
// request fails, for example because the cached version is outdated, Wake reads the conversation from
// the API server and tries again. It returns the version of the last try.
func (s *Service) Wake(ctx context.Context, u *auth.User, c *v1alpha1.Conversation) (*v1alpha1.Conversation, error) {
	if s.wake(ctx, c, map[string]any{"uid": c.UID, "resourceVersion": c.ResourceVersion}) == nil {
		return c, nil
	}
	fresh, err := s.Read(ctx, u, c.Name)
	switch {
	case err != nil:
		return c, err
	case fresh.UID != c.UID:
		return c, notFound
	}
	return fresh, changeRefusal(ctx, s.wake(ctx, fresh, map[string]any{"uid": c.UID}))
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
