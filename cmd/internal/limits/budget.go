// Package limits bounds what users have in flight: each user, so that nobody slows another down, and
// all of them together, so that the memory of the process suffices.
package limits

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Resource is something that work for a user occupies while it lasts.
type Resource int

// The resources of a budget.
const (
	// Bodies are bytes of request bodies, from their announcement to the end of the work on them.
	Bodies Resource = iota + 1
	// Received are bytes of bodies that were read and wait to be worked on.
	Received
	// Work is bytes of bodies that are decoded and checked, which takes many times their length.
	Work
	// Answers are bytes of answers until they are sent. They are in memory about three times.
	Answers
	// ArchiveReads read from the archive: the size of the result is known only afterwards.
	ArchiveReads
	// Streams are long answers and uploads.
	Streams
	// SettingsWrites change a user's settings. Concurrent ones would make one another fail.
	SettingsWrites
	// Lists copy all conversations of a user, some MiB where there are ten thousand.
	Lists

	resources
)

const (
	// Patience is how long work waits for its turn.
	Patience = 10 * time.Second
	// sweepEvery is how often accounts without anything in flight are dropped.
	sweepEvery = time.Minute
)

// Bounds of a resource. Zero is no bound.
type Bounds struct{ User, All int64 }

// Options of a budget.
type Options struct {
	// Rate is how many requests per second each user may make on average, Burst how many at once.
	// Zero is no limit.
	Rate  float64
	Burst int
	// MaxBody is the largest body that is read.
	MaxBody int64
	// Streams bounds the open streams.
	Streams Bounds
	// Answers bounds what is held of answers. The default has room for the largest event of a session
	// and pages beside it.
	Answers Bounds
}

// Budget accounts what users have in flight.
type Budget struct {
	rate    rate.Limit
	burst   int
	maxBody int64
	bounds  [resources]Bounds

	mu       sync.Mutex
	accounts map[string]*account
	total    [resources]int64
	waiting  [resources][]*waiter
	swept    time.Time
}

// account of one user.
type account struct {
	bucket *rate.Limiter // nil where the rate is not limited
	used   [resources]int64
}

// waiter is granted its size as soon as that is within the bounds.
type waiter struct {
	user    string
	size    int64
	granted chan struct{}
	refusal error
}

// New budget with nothing in flight.
func New(o Options) *Budget {
	work := max(maxWork, userShare*o.MaxBody)
	return &Budget{
		rate: rate.Limit(o.Rate), burst: max(1, o.Burst), maxBody: o.MaxBody,
		accounts: map[string]*account{}, swept: time.Now(),
		bounds: [resources]Bounds{
			Bodies:         {User: work / userShare},
			Received:       {All: 192 << 20}, // dozens of users who send all they may and then stop
			Work:           {All: work},
			Answers:        cmp.Or(o.Answers, Bounds{User: 20 << 20, All: 64 << 20}),
			ArchiveReads:   {User: 1, All: 3},
			Streams:        o.Streams,
			SettingsWrites: {User: 1},
			Lists:          {User: 1},
		},
	}
}

var (
	userBusy = answer.Later(http.StatusTooManyRequests, "Too many requests in flight for this user; retry later",
		time.Second)
	allBusy     = answer.Later(http.StatusServiceUnavailable, "Too many requests in flight; retry later", time.Second)
	userStreams = answer.Later(http.StatusTooManyRequests, "Too many open streams for this user; close some of them",
		5*time.Second)
	allStreams = answer.Later(http.StatusServiceUnavailable, "Too many open streams; retry later", 5*time.Second)
)

// Count a request of a user, or refuse it.
func (b *Budget) Count(user string) error {
	if b.rate <= 0 {
		return nil
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.swept) > sweepEvery {
		for name, a := range b.accounts {
			b.dropIdle(name, a)
		}
		b.swept = now
	}
	reservation := b.account(user).bucket.ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait <= 0 {
		return nil
	}
	reservation.CancelAt(now)
	return answer.Later(http.StatusTooManyRequests, "Too many requests", wait)
}

func (b *Budget) account(user string) *account {
	if b.accounts[user] == nil {
		b.accounts[user] = &account{}
		if b.rate > 0 {
			b.accounts[user].bucket = rate.NewLimiter(b.rate, b.burst)
		}
	}
	return b.accounts[user]
}

// dropIdle forgets an account that is like a new one.
func (b *Budget) dropIdle(user string, a *account) {
	if a.used == [resources]int64{} && (a.bucket == nil || a.bucket.Tokens() >= float64(b.burst)) {
		delete(b.accounts, user)
	}
}

// refusal says why a user cannot have more of a resource now.
func (b *Budget) refusal(user string, r Resource, size int64) error {
	bounds, used := b.bounds[r], int64(0)
	if a := b.accounts[user]; a != nil {
		used = a.used[r]
	}
	switch {
	case bounds.User > 0 && used+size > bounds.User:
		if r == Streams {
			return userStreams
		}
		return userBusy
	case bounds.All > 0 && b.total[r]+size > bounds.All:
		if r == Streams {
			return allStreams
		}
		return allBusy
	}
	return nil
}

// add changes what a user has of a resource. What is given back goes to those who wait for it.
func (b *Budget) add(user string, r Resource, size int64) {
	a := b.account(user)
	a.used[r] += size
	b.total[r] += size
	if size <= 0 {
		b.dropIdle(user, a)
	}
	if size < 0 {
		b.grant(r)
	}
}

// grant a resource to those who wait for it, in turn. Waiting for one's own share holds up nobody
// else, and neither does a large answer a small one.
func (b *Budget) grant(r Resource) {
	full := false
	b.waiting[r] = slices.DeleteFunc(b.waiting[r], func(w *waiter) bool {
		if !full {
			w.refusal = b.refusal(w.user, r, w.size)
			full = r != Answers && errors.Is(w.refusal, allBusy)
		}
		if full || w.refusal != nil {
			return false
		}
		b.add(w.user, r, w.size)
		close(w.granted)
		return true
	})
}

// wait for a turn to have more of a resource.
func (b *Budget) wait(ctx context.Context, user string, r Resource, size int64) error {
	w := &waiter{user: user, size: size, granted: make(chan struct{}), refusal: allBusy}
	b.mu.Lock()
	b.waiting[r] = append(b.waiting[r], w)
	b.grant(r)
	b.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.waiting[r], w)
	if at < 0 {
		return nil // it was granted just now
	}
	b.waiting[r] = slices.Delete(b.waiting[r], at, at+1)
	b.grant(r)
	return w.refusal
}

// Hold is what one piece of work has of a resource.
type Hold struct {
	budget   *Budget
	resource Resource
	user     string
	size     int64
	// wanted is the size that was refused last.
	wanted int64
}

// Hold of a user, with nothing in it yet.
func (b *Budget) Hold(user string, r Resource) *Hold {
	return &Hold{budget: b, resource: r, user: user}
}

// User whose work it is.
func (h *Hold) User() string { return h.user }

// Take more, or refuse it. A negative size gives it back.
func (h *Hold) Take(size int64) error {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	if size > 0 {
		if err := h.budget.refusal(h.user, h.resource, size); err != nil {
			h.wanted = h.size + size
			return err
		}
	}
	h.budget.add(h.user, h.resource, size)
	h.size += size
	return nil
}

// Wait for more until the context ends.
func (h *Hold) Wait(ctx context.Context, size int64) error {
	err := h.budget.wait(ctx, h.user, h.resource, size)
	if err == nil {
		h.size += size
	}
	return err
}

// Release all of it.
func (h *Hold) Release() {
	if h.size != 0 {
		_ = h.Take(-h.size)
	}
}

// Reader takes what is read through it. Without a hold nothing is counted.
func (h *Hold) Reader(from io.Reader) io.Reader {
	if h == nil {
		return from
	}
	return &reader{from, h}
}

type reader struct {
	io.Reader
	hold *Hold
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if refused := r.hold.Take(int64(n)); refused != nil {
		return n, refused
	}
	return n, err
}

// Retry work that takes from the hold until there is room for it, for a while. Nothing is held
// meanwhile.
func (h *Hold) Retry(ctx context.Context, work func() error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		h.Release()
		h.wanted = 0
		err := work()
		if h.wanted == 0 || !errors.Is(err, userBusy) && !errors.Is(err, allBusy) {
			return err
		}
		h.Release()
		if ctx.Err() != nil || h.Wait(ctx, h.wanted) != nil {
			return err
		}
	}
}

// Take one of a resource for a user, or refuse it. done gives it back.
func (b *Budget) Take(user string, r Resource) (done func(), err error) {
	h := b.Hold(user, r)
	return h.Release, h.Take(1)
}

// Wait for one of a resource, in turn, until the context ends. done gives it back.
func (b *Budget) Wait(ctx context.Context, user string, r Resource) (done func(), err error) {
	h := b.Hold(user, r)
	return h.Release, h.Wait(ctx, 1)
}
