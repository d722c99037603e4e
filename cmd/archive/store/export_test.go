package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
)

func (s *Store) SetMaxConversation(size int64) { s.maxConversation = size }

// SetMaxTurns sets the maximum number of outcomes of turns in one response.
func (s *Store) SetMaxTurns(limit int) { s.turns.limit = limit }

// watched is a bucket with a hook before each write.
type watched struct {
	bucket
	before func(content []byte) error
}

func (w *watched) put(ctx context.Context, key, contentType string, content []byte, when condition) error {
	if err := w.before(content); err != nil {
		return err
	}
	return w.bucket.put(ctx, key, contentType, content, when)
}

// Written contains the total bytes of all writes, and the bytes of the largest write.
type Written struct{ Bytes, Largest int64 }

// CountWrites counts all further writes.
func (s *Store) CountWrites() *Written {
	count := &Written{}
	s.bucket = &watched{s.bucket, func(content []byte) error {
		count.Bytes += int64(len(content))
		count.Largest = max(count.Largest, int64(len(content)))
		return nil
	}}
	return count
}

func (s *Store) BeforeNextWrite(do func()) {
	s.bucket = &watched{s.bucket, func([]byte) error {
		if next := do; next != nil {
			do = nil
			next()
		}
		return nil
	}}
}

// FailWrite makes the write with the given number fail. The next write has number 1.
func (s *Store) FailWrite(number int) {
	s.bucket = &watched{s.bucket, func([]byte) error {
		if number--; number == 0 {
			return errors.New("the disk is full")
		}
		return nil
	}}
}

// FailRandomly makes a share of the writes fail, half of them after the object was written.
func (s *Store) FailRandomly(share float64) { s.bucket = &faulty{s.bucket, share} }

type faulty struct {
	bucket
	share float64
}

func (f *faulty) put(ctx context.Context, key, contentType string, content []byte, when condition) error {
	dice := rand.Float64()
	if dice < f.share/2 {
		return errors.New("the disk is full")
	}
	err := f.bucket.put(ctx, key, contentType, content, when)
	if err == nil && dice < f.share {
		return errors.New("the answer is lost")
	}
	return err
}

// HoldNamespaceWrites delays the writes of the namespaces' ledgers until the channel held is
// closed. waiting() returns the number of changes that are not written yet. writes() returns the
// number of writes.
func (s *Store) HoldNamespaceWrites(held <-chan struct{}) (waiting func() int, writes func() int64) {
	h := &holding{bucket: s.bucket, held: held}
	s.bucket = h
	return s.namespaces.unwritten, h.writes.Load
}

func (o *objects[T]) unwritten() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := 0
	for _, of := range o.keys {
		all += of.users
	}
	return all
}

type holding struct {
	bucket
	held   <-chan struct{}
	writes atomic.Int64
}

func (h *holding) put(ctx context.Context, key, contentType string, content []byte, when condition) error {
	if strings.HasPrefix(key, "_ledger/namespaces/") {
		<-h.held
		h.writes.Add(1)
	}
	return h.bucket.put(ctx, key, contentType, content, when)
}

// UseMemory replaces the bucket by one in memory, to measure without a disk.
func (s *Store) UseMemory() { s.bucket = &memory{bucket: s.bucket, objects: map[string][]byte{}} }

type memory struct {
	bucket
	objects map[string][]byte
}

func (m *memory) open(_ context.Context, key string, _ int64) (*object, error) {
	text, found := m.objects[key]
	if !found {
		return nil, errNotFound
	}
	return &object{ReadCloser: io.NopCloser(bytes.NewReader(text)), size: int64(len(text)), version: "1"}, nil
}

func (m *memory) put(_ context.Context, key, _ string, content []byte, _ condition) error {
	m.objects[key] = content
	return nil
}
