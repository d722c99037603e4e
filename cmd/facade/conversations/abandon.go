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
	// abandonTime limits the deletion of a conversation that the client does not know.
	abandonTime = 5 * time.Second
	// unknownTime limits the deletion of a conversation that may not exist. The API server
	// processes a request for at most a minute.
	unknownTime = 70 * time.Second
	// maxUnknown limits the concurrent deletions of conversations that may not exist.
	maxUnknown = 1000
)

// abandon deletes an existing conversation that the client does not know. If the deletion fails,
// the TTL of the conversation deletes it.
func (s *Service) abandon(ctx context.Context, c *v1alpha1.Conversation) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTime)
	defer cancel()
	return s.Cluster.DeleteConversation(ctx, c)
}

// abandonUnknown deletes a conversation whose creation may have succeeded or may still succeed. Its
// random name belongs to no other user. It retries until the deletion succeeds or the creation can
// no longer succeed. It returns false if too many deletions are running.
func (s *Service) abandonUnknown(ctx context.Context, c *v1alpha1.Conversation) bool {
	if s.unknown.Add(1) > maxUnknown {
		s.unknown.Add(-1)
		logf.FromContext(ctx).Info("Too many deletions of unconfirmed Conversations are running; skipping one",
			"namespace", c.Namespace, "conversation", c.Name)
		return false
	}
	go func() {
		defer s.unknown.Add(-1)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unknownTime)
		defer cancel()
		backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Cap: abandonTime, Steps: math.MaxInt}
		_ = backoff.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
			return s.abandon(ctx, c) == nil, nil
		})
	}()
	return true
}
