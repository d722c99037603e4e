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
	running map[string]call
}

// call is a call that runs or waits for a slot. The time began is zero while it waits.
type call struct {
	namespace string
	began     time.Time
}

// New returns a pool. The parameter limit is the maximum number of concurrent calls.
func New(limit int) *Pool {
	return &Pool{slots: make(chan struct{}, limit), done: make(chan event.GenericEvent, 1024),
		running: map[string]call{}}
}

// Done returns a channel. Whenever a call has ended, the channel receives an event for the
// Conversation of the call.
func (p *Pool) Done() <-chan event.GenericEvent { return p.done }

// Busy reports whether the pool runs at least half of its maximum number of calls.
func (p *Pool) Busy() bool { return 2*len(p.slots) >= cap(p.slots) }

// Recent reports whether a call for a Conversation of this namespace began within this time and has
// not ended.
func (p *Pool) Recent(namespace string, within time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.running {
		if c.namespace == namespace && time.Since(c.began) < within {
			return true
		}
	}
	return false
}

// Go runs a call in the background, unless a call with the same key is running. When the call has
// ended, the channel of Done receives an event for the Conversation with this name.
func (p *Pool) Go(ctx context.Context, key string, name types.NamespacedName, do func(context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, runs := p.running[key]; runs {
		return
	}
	p.running[key] = call{namespace: name.Namespace}
	go p.run(ctx, key, name, do)
}

func (p *Pool) run(ctx context.Context, key string, name types.NamespacedName, do func(context.Context)) {
	select {
	case p.slots <- struct{}{}:
		p.mu.Lock()
		p.running[key] = call{name.Namespace, time.Now()}
		p.mu.Unlock()
		do(ctx)
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
