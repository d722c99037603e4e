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
	// abandonTime is how long the deletion of a conversation is tried that nobody will ask for
	// again.
	abandonTime = 5 * time.Second
	// unknownTime is the same for one of which nobody knows whether it is there. The API server
	// does not work on a request for longer than a minute.
	unknownTime = 70 * time.Second
	// maxUnknown is how many of those are looked for at once.
	maxUnknown = 1000
)

// abandon removes a conversation that is there and that nobody will ask for again. If that fails, it
// goes when its time is over.
func (s *Service) abandon(ctx context.Context, c *v1alpha1.Conversation) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTime)
	defer cancel()
	return s.Cluster.DeleteConversation(ctx, c)
}

// abandonUnknown removes a conversation whose creation may have succeeded, or may yet: its random name is
// nobody else's. It is looked for again until it was found and removed, or can no longer come. It says
// whether it is, for so many are looked for at once.
func (s *Service) abandonUnknown(ctx context.Context, c *v1alpha1.Conversation) bool {
	if s.unknown.Add(1) > maxUnknown {
		s.unknown.Add(-1)
		logf.FromContext(ctx).Info("Too many creations were not heard of to look for this one", "namespace", c.Namespace,
			"conversation", c.Name)
		return false
	}
	go func() {
		defer s.unknown.Add(-1)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unknownTime)
		defer cancel()
		again := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Cap: abandonTime, Steps: math.MaxInt}
		_ = again.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
			return s.abandon(ctx, c) == nil, nil
		})
	}()
	return true
}
