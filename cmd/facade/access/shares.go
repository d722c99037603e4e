package access

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parley-dev/parley/cmd/facade/answer"
)

// lookEvery is how often it is looked again whether there is room.
const lookEvery = 200 * time.Millisecond

// tooMuch and overloaded are what there is no room for: of one user's, and of everybody's.
var (
	tooMuch    = answer.Later(http.StatusTooManyRequests, "Too much of yours is under way; try again", time.Second)
	overloaded = answer.Later(http.StatusServiceUnavailable, "Too many requests are under way; try again", time.Second)
)

// Shares bounds how many bytes are held at once: for each user, so that one holds nobody else up,
// and for all.
type Shares struct {
	each, all int64

	mu    sync.Mutex
	users map[string]int64
	held  int64
}

// NewShares lets each user hold so many bytes, and all together so many. Zero is no bound.
func NewShares(each, all int64) *Shares {
	return &Shares{each: each, all: all, users: map[string]int64{}}
}

// For a user, who holds nothing yet.
func (s *Shares) For(user string) *Held { return &Held{shares: s, user: user} }

func (s *Shares) add(user string, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case size > 0 && s.each > 0 && s.users[user]+size > s.each:
		return tooMuch
	case size > 0 && s.all > 0 && s.held+size > s.all:
		return overloaded
	}
	s.held += size
	if s.users[user] += size; s.users[user] == 0 {
		delete(s.users, user)
	}
	return nil
}

// Held is what one piece of work for a user holds. It counts as it grows: what is only announced
// takes no memory, and who has to be waited for holds no more than came of it.
type Held struct {
	shares *Shares
	user   string
	size   int64
}

// User whose work it is.
func (h *Held) User() string { return h.user }

// Take more bytes, or refuse them. A negative number gives them back.
func (h *Held) Take(size int64) error {
	if err := h.shares.add(h.user, size); err != nil {
		return err
	}
	h.size += size
	return nil
}

// Grow to a size, unless it is that large already.
func (h *Held) Grow(to int64) error { return h.Take(max(0, to-h.size)) }

// Release all of it.
func (h *Held) Release() { _ = h.Take(-h.size) }

// Reader takes what is read through it.
func (h *Held) Reader(from io.Reader) io.Reader { return &heldReader{from, h} }

type heldReader struct {
	io.Reader
	held *Held
}

func (r *heldReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if refused := r.held.Take(int64(n)); refused != nil {
		return n, refused
	}
	return n, err
}

// Patiently does again what there was no room for, for a while.
func Patiently(ctx context.Context, do func() error) error {
	for deadline := time.Now().Add(WorkPatience); ; {
		err := do()
		if !errors.Is(err, tooMuch) && !errors.Is(err, overloaded) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lookEvery):
		}
	}
}

// Turns are for work whose size nobody knows before it is done: each user does one at a time, and
// all together so many.
type Turns struct {
	queues Queues
	all    *semaphore.Weighted
}

// NewTurns lets so many work at a time.
func NewTurns(all int64) *Turns { return &Turns{all: semaphore.NewWeighted(all)} }

// Take a turn of a user's, after those before. done must be called when it is over, unless there is
// an error.
func (t *Turns) Take(ctx context.Context, user string) (done func(), err error) {
	unlock, err := t.queues.Lock(ctx, user)
	if err != nil {
		return nil, err
	}
	if t.all.Acquire(ctx, 1) != nil {
		unlock()
		return nil, overloaded
	}
	return func() { t.all.Release(1); unlock() }, nil
}
