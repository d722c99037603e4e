package conversations

import (
	"context"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// abandonTime limits one request to delete a conversation.
	abandonTime = 5 * time.Second
	// unknownTime limits the retries of abandonUnknown. The API server may still create the
	// conversation in this time, because it processes a request for up to a minute.
	unknownTime = 70 * time.Second
	// maxUnknown limits the number of deletions by abandonUnknown that run at the same time.
	maxUnknown = 1000
)

// abandon deletes a conversation whose creation was reported to the client as failed. If the
// deletion fails, the short TTL deletes the conversation if it is still marked as incomplete.
func (s *Service) abandon(ctx context.Context, c *v1alpha1.Conversation) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTime)
	defer cancel()
	return s.Cluster.DeleteConversation(ctx, c)
}

// abandonUnknown deletes a conversation whose creation may have succeeded or may still succeed. It
// retries in the background. It cannot delete another conversation, because the name is random. It
// returns false if too many such deletions are running.
func (s *Service) abandonUnknown(ctx context.Context, c *v1alpha1.Conversation) bool {
	if s.deletions.Add(1) > maxUnknown {
		s.deletions.Add(-1)
		logf.FromContext(ctx).Info("Cannot delete a Conversation whose creation was not confirmed: too many such "+
			"deletions are running", "namespace", c.Namespace, "conversation", c.Name)
		return false
	}
	go func() {
		defer s.deletions.Add(-1)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unknownTime)
		defer cancel()
		backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Cap: abandonTime, Steps: math.MaxInt}
		_ = backoff.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
			return s.abandon(ctx, c) == nil, nil
		})
	}()
	return true
}
