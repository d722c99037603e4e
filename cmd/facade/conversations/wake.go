package conversations

import (
	"context"
	"net/http"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// maxClockSkew is the tolerated difference between the clocks of the facade and the manager.
const maxClockSkew = time.Minute

// Wake requests the start of a stopped conversation, which the caller has just read from the API
// server. It changes nothing if the conversation is not stopped, or if its start is already
// requested. It refuses to change a field that a GitOps tool would change back.
func (s *Service) Wake(ctx context.Context, c *v1alpha1.Conversation) error {
	if c.Status.State != v1alpha1.StateStopped || restartPending(c) {
		return nil
	}
	spec := startSpec(c)
	for field := range spec {
		if manager := c.GitOpsManager(field); manager != "" && (field != suspendField || c.Spec.Suspend) {
			return answer.Refuse(http.StatusConflict, manager+" manages the field spec."+field+
				" of this conversation: change the field at its source to start the conversation")
		}
	}
	return changeRefusal(ctx, s.patchSpec(ctx, c, spec))
}

// restartPending reports whether a restart is requested that the manager has not executed yet.
func restartPending(c *v1alpha1.Conversation) bool {
	at := c.Spec.RestartAt
	return !c.Spec.Suspend && c.Status.Reason != v1alpha1.ReasonSuspended && at != nil &&
		!at.Equal(c.Status.RestartedAt) && !at.After(time.Now().Add(maxClockSkew))
}
