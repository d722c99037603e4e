package main

import (
	"context"
	"time"

	crwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// lingering is a webhook server that outlives its manager for a moment. The manager gives its lease
// up at once, so that another leads, while the cluster may still send calls here: a call that finds
// nobody costs the caller its write.
type lingering struct {
	crwebhook.Server
	life  context.Context
	end   context.CancelFunc
	ended chan error // nil until it is started
}

func newLingering(server crwebhook.Server) *lingering {
	life, end := context.WithCancel(context.Background())
	return &lingering{Server: server, life: life, end: end}
}

// Start serves, and returns when the manager stops or the server fails.
func (l *lingering) Start(ctx context.Context) error {
	l.ended = make(chan error, 1)
	go func() { l.ended <- l.Server.Start(l.life) }()
	select {
	case err := <-l.ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// stop goes on serving for a while, until those who send calls here have heard, and then finishes
// what is under way.
func (l *lingering) stop(delay time.Duration) error {
	if l.ended == nil {
		return nil
	}
	time.Sleep(delay) // nobody tells when the last of them has
	l.end()
	return <-l.ended
}
