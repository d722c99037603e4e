package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	changeTries   = 100
	changeJitter  = 20 * time.Millisecond
	changeTimeout = 10 * time.Second
)

// objects stores changes to JSON objects in a bucket. If several changes of one object arrive during
// a write, the next write contains all of them. With one write per change, the sessions of a large
// namespace would wait for each other.
type objects[T any] struct {
	mu   sync.Mutex
	keys map[string]*changes[T] // the keys in use
}

type changes[T any] struct {
	// writing contains a value while the object is being changed.
	writing chan struct{}
	waiting []*change[T]
	users   int
}

type change[T any] struct {
	// apply changes the object and reports whether the object is different now. If the write
	// conflicts with another process, apply is called again with a newly read object. The result of
	// the earlier call is dropped.
	apply func(*T) (bool, error)
	done  chan struct{} // closed when err is set
	err   error
}

// change reads, changes and writes an object. If another process changes the object between the
// read and the write, this method reads the object again and repeats the change.
func (o *objects[T]) change(ctx context.Context, in bucket, key string, apply func(*T) (bool, error)) error {
	c := &change[T]{apply: apply, done: make(chan struct{})}
	of := o.enter(key, c)
	defer o.leave(key, of)
	select {
	case <-c.done:
	case of.writing <- struct{}{}:
		o.write(ctx, in, key, of, c)
	case <-ctx.Done():
		if o.withdraw(of, c) {
			return ctx.Err()
		}
	}
	<-c.done
	return c.err
}

func (o *objects[T]) enter(key string, c *change[T]) *changes[T] {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys == nil {
		o.keys = map[string]*changes[T]{}
	}
	of := o.keys[key]
	if of == nil {
		of = &changes[T]{writing: make(chan struct{}, 1)}
		o.keys[key] = of
	}
	of.users++
	of.waiting = append(of.waiting, c)
	return of
}

func (o *objects[T]) leave(key string, of *changes[T]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if of.users--; of.users == 0 {
		delete(o.keys, key)
	}
}

// write makes all waiting changes, unless an earlier write has already made the caller's change.
func (o *objects[T]) write(ctx context.Context, in bucket, key string, of *changes[T], c *change[T]) {
	defer func() { <-of.writing }()
	select {
	case <-c.done:
		return
	default:
	}
	o.mu.Lock()
	batch := of.waiting
	of.waiting = nil
	o.mu.Unlock()
	writeChanges(ctx, in, key, batch)
}

// withdraw removes a change. It returns false if the change is no longer waiting.
func (o *objects[T]) withdraw(of *changes[T], c *change[T]) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.Index(of.waiting, c)
	if at >= 0 {
		of.waiting = slices.Delete(of.waiting, at, at+1)
	}
	return at >= 0
}

// writeChanges makes some changes with one write. Each change gets its own result. If the write
// fails, all changes get the error of the write, because a result may depend on another change that
// was not written.
func writeChanges[T any](ctx context.Context, in bucket, key string, batch []*change[T]) {
	// The client of this request may disconnect. That must not cancel the write, because the
	// clients of the other changes wait for the result.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	err := errChanged
	defer func() {
		for _, c := range batch {
			if err != nil {
				c.err = err
			}
			close(c.done)
		}
	}()
	for range changeTries {
		if err = tryChanges(ctx, in, key, batch); !errors.Is(err, errChanged) {
			return
		}
		select {
		case <-time.After(rand.N(changeJitter)):
		case <-ctx.Done():
			return
		}
	}
}

func tryChanges[T any](ctx context.Context, in bucket, key string, batch []*change[T]) error {
	text, version, err := readAll(ctx, in, key)
	missing := errors.Is(err, errNotFound)
	if err != nil && !missing {
		return err
	}
	var object T
	if !missing {
		if err := json.Unmarshal(text, &object); err != nil {
			return fmt.Errorf("%s is damaged: %w", key, err)
		}
	}
	write := false
	for _, c := range batch {
		var changed bool
		changed, c.err = c.apply(&object)
		write = write || changed
	}
	if !write {
		return nil
	}
	if text, err = json.Marshal(&object); err != nil {
		return err
	}
	return in.put(ctx, key, "application/json", text, condition{absent: missing, version: version})
}
