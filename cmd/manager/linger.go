package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	crwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// callTimeout limits a call to the webhook server. No caller waits longer for a response: the API
// server waits at most five seconds, and the facade waits ten seconds for an onboarding.
const callTimeout = 10 * time.Second

// lingering is a webhook server that keeps serving for a moment after its manager has stopped. The
// manager releases its lease immediately, so that another manager becomes the leader. Meanwhile the
// API server may still call this webhook, and a call without a response would make a user's write
// fail.
type lingering struct {
	crwebhook.Server
	serving  context.Context
	end      context.CancelFunc
	ended    chan error // nil before the start
	stopping atomic.Bool
}

func newLingering(server crwebhook.Server) *lingering {
	serving, end := context.WithCancel(context.Background())
	return &lingering{Server: server, serving: serving, end: end}
}

// Register registers a handler. The end of the server does not cancel the handler's context, so
// that running calls finish. The server still answers for some time after the manager's controllers
// have stopped. In this time, each response closes its connection. Otherwise an API server with an
// open connection would keep calling this replica.
func (l *lingering) Register(path string, hook http.Handler) {
	l.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callTimeout)
		defer cancel()
		defer context.AfterFunc(r.Context(), func() {
			if l.serving.Err() == nil { // the caller disconnected
				cancel()
			}
		})()
		if l.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		hook.ServeHTTP(w, r.WithContext(ctx))
	}))
}

// Start starts the server, and returns when the manager stops or the server fails. After the
// manager has stopped, the server keeps serving until stop() ends it.
func (l *lingering) Start(ctx context.Context) error {
	l.ended = make(chan error, 1)
	go func() { l.ended <- l.Server.Start(l.serving) }()
	select {
	case err := <-l.ended:
		return err
	case <-ctx.Done():
		l.stopping.Store(true)
		return nil
	}
}

// stop stops the server after a delay, in which callers learn that the manager stops. It waits for
// the calls in flight.
func (l *lingering) stop(delay time.Duration) error {
	if l.ended == nil {
		return nil
	}
	time.Sleep(delay)
	l.end()
	return <-l.ended
}
