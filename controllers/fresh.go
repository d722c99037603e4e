package controllers

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// freshSettings reads settings past the cache, for all who ask at the same time. Each gets what a
// read found that began after it asked, never one that was under way: who stores settings and then
// starts a session means those. So a burst of starts of one user costs a request or two for each
// round trip, not one for each start.
type freshSettings struct {
	mu    sync.Mutex
	reads map[client.ObjectKey]*settingsReads
}

// settingsReads are those of one UserSettings. They go with the last who asks.
type settingsReads struct {
	asking int
	turn   sync.Mutex    // of the one read that is under way
	next   *settingsRead // has not begun; nil if nobody waits for one
}

type settingsRead struct {
	done     chan struct{}
	settings *v1alpha1.UserSettings
	err      error
}

// get is a copy of its own for each caller.
func (f *freshSettings) get(ctx context.Context, live client.Reader, name client.ObjectKey) (*v1alpha1.UserSettings,
	error) {
	reads, read, first := f.ask(name)
	defer f.leave(name, reads)
	if first {
		f.run(ctx, live, name, reads, read)
	}
	select {
	case <-read.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if read.err != nil {
		return nil, read.err
	}
	return read.settings.DeepCopy(), nil
}

// ask joins the read that comes next, and says whether it is the caller's to run.
func (f *freshSettings) ask(name client.ObjectKey) (reads *settingsReads, read *settingsRead, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reads == nil {
		f.reads = map[client.ObjectKey]*settingsReads{}
	}
	if reads = f.reads[name]; reads == nil {
		reads = &settingsReads{}
		f.reads[name] = reads
	}
	reads.asking++
	if first = reads.next == nil; first {
		reads.next = &settingsRead{done: make(chan struct{})}
	}
	return reads, reads.next, first
}

func (f *freshSettings) leave(name client.ObjectKey, reads *settingsReads) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if reads.asking--; reads.asking == 0 {
		delete(f.reads, name)
	}
}

// run reads once the read before is done. Who asks from then on waits for the next.
func (f *freshSettings) run(ctx context.Context, live client.Reader, name client.ObjectKey, reads *settingsReads,
	read *settingsRead) {
	defer close(read.done)
	reads.turn.Lock()
	defer reads.turn.Unlock()
	f.mu.Lock()
	reads.next = nil
	f.mu.Unlock()
	read.settings = &v1alpha1.UserSettings{}
	read.err = live.Get(ctx, name, read.settings)
}
