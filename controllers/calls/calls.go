// Package calls runs requests to sessions in goroutines, so that a slow session does not block a
// worker of the work queue.
package calls

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Pool runs a limited number of calls at the same time, and at most one call per key.
type Pool struct {
	slots chan struct{}
	done  chan event.GenericEvent

	mu      sync.Mutex
	running map[string]time.Time // when the calls began, by key
}

// New returns a pool. The parameter limit is the maximum number of concurrent calls.
func New(limit int) *Pool {
	return &Pool{slots: make(chan struct{}, limit), done: make(chan event.GenericEvent, 1024),
		running: map[string]time.Time{}}
}

// Done returns a channel. Whenever a call has ended, the channel receives an event for the
// Conversation of the call.
func (p *Pool) Done() <-chan event.GenericEvent { return p.done }

// Busy reports whether the pool runs at least half of its maximum number of calls.
func (p *Pool) Busy() bool { return 2*len(p.slots) >= cap(p.slots) }

// Recent reports whether a call began within this time and has not ended.
func (p *Pool) Recent(within time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, began := range p.running {
		if time.Since(began) < within {
			return true
		}
	}
	return false
}

// Go runs a call in the background, unless a call with the same key is running. When the call has
// ended, the channel of Done receives an event for the Conversation with this name.
func (p *Pool) Go(ctx context.Context, key string, name types.NamespacedName, call func(context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, runs := p.running[key]; runs {
		return
	}
	p.running[key] = time.Now()
	go p.run(ctx, key, name, call)
}

func (p *Pool) run(ctx context.Context, key string, name types.NamespacedName, call func(context.Context)) {
	select {
	case p.slots <- struct{}{}:
		call(ctx)
		<-p.slots
	case <-ctx.Done():
	}
	p.mu.Lock()
	delete(p.running, key)
	p.mu.Unlock()
	object := &v1alpha1.Conversation{}
	object.Namespace, object.Name = name.Namespace, name.Name
	select {
	case p.done <- event.GenericEvent{Object: object}:
	case <-ctx.Done():
	}
}
