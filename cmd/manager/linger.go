package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	crwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// longestAnswer bounds a call. The API server waits five seconds for it.
const longestAnswer = 10 * time.Second

// lingering is a webhook server that outlives its manager for a moment. The manager gives its lease
// up at once, so that another leads, while the cluster may still send calls here: a call that finds
// nobody costs the caller its write.
type lingering struct {
	crwebhook.Server
	life     context.Context
	end      context.CancelFunc
	ended    chan error // nil until it is started
	stopping atomic.Bool
}

func newLingering(server crwebhook.Server) *lingering {
	life, end := context.WithCancel(context.Background())
	return &lingering{Server: server, life: life, end: end}
}

// Register a handler whose calls are finished when the server ends: what it serves with ends the
// context of all of them then. Once the manager stops, callers are sent away with their answer: an
// API server that keeps its connection would come back here until the end.
func (l *lingering) Register(path string, hook http.Handler) {
	l.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), longestAnswer)
		defer cancel()
		defer context.AfterFunc(r.Context(), func() {
			if l.life.Err() == nil { // the caller left
				cancel()
			}
		})()
		if l.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		hook.ServeHTTP(w, r.WithContext(ctx))
	}))
}

// Start serves, and returns when the manager stops or the server fails.
func (l *lingering) Start(ctx context.Context) error {
	l.ended = make(chan error, 1)
	go func() { l.ended <- l.Server.Start(l.life) }()
	select {
	case err := <-l.ended:
		return err
	case <-ctx.Done():
		l.stopping.Store(true)
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
