package main

import (
	"context"
	"sync"
	"time"
)

// activity tracks the requests and turns that keep a session from being idle.
type activity struct {
	mu     sync.Mutex
	active int
	last   time.Time
	rest   *time.Timer
}

// newActivity returns an activity that calls rested() each time the session has been inactive for
// restDelay.
func newActivity(rested func()) *activity {
	a := &activity{last: time.Now(), rest: time.AfterFunc(time.Hour, rested)}
	a.rest.Stop() // the timer starts after the first activity
	return a
}

// begin marks the session as active until the returned function is called.
func (a *activity) begin() (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.active++
	a.rest.Stop()
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.active--
		a.last = time.Now()
		if a.active == 0 {
			a.rest.Reset(restDelay)
		}
	})
}

func (a *activity) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.active > 0
}

// idle returns the time since the last activity, or zero while the session is active.
func (a *activity) idle() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active > 0 {
		return 0
	}
	return time.Since(a.last)
}

// idleFor returns a channel that is closed as soon as the session has been idle for the timeout.
// With a timeout of zero, the channel is never closed.
func (a *activity) idleFor(ctx context.Context, timeout time.Duration) <-chan struct{} {
	reached := make(chan struct{})
	if timeout <= 0 {
		return reached
	}
	go func() {
		for idle := a.idle(); idle < timeout; idle = a.idle() {
			select {
			case <-time.After(timeout - idle):
			case <-ctx.Done():
				return
			}
		}
		close(reached)
	}()
	return reached
}
