// Package limits bounds the requests in flight per user and in total. The limit per user keeps
// users from slowing one another down. The total limit keeps the process from running out of
// memory.
package limits

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Resource is a quantity that requests occupy while they run.
type Resource int

// The resources of a budget.
const (
	// Bodies are bytes of request bodies. They count from the start of a request to the end of the
	// work on it.
	Bodies Resource = iota + 1
	// Received are bytes of bodies that have been read and are not decoded yet.
	Received
	// Work is the size of the bodies that are being decoded and validated, in bytes. Decoding takes
	// many times this size in memory.
	Work
	// Responses are bytes of responses that are not sent yet. The process holds about three copies
	// of them in memory.
	Responses
	// ArchiveReads are reads from the archive. Their number is limited, because their size is not
	// known in advance.
	ArchiveReads
	// Streams are open streams, downloads and uploads.
	Streams
	// SettingsWrites are changes of a user's settings. Concurrent changes would conflict.
	SettingsWrites
	// Lists are lists of all conversations of a user, while they are in memory. A list of ten
	// thousand conversations takes some MiB.
	Lists
	// RenderRequests are requests to render texts as HTML. Waiting requests count too, because
	// their bodies are in memory.
	RenderRequests
	// Renders are requests whose texts are being rendered, which takes CPU time.
	Renders
	// Wakes are bytes of messages that wait until their session runs.
	Wakes

	resources
)

const (
	// MaxWait is the longest time for which a request waits for a resource.
	MaxWait = 10 * time.Second
	// MinWake is the minimum size, in bytes, that is counted for a waiting message.
	MinWake = 64 << 10
	// maxWakes limits the bytes of all waiting messages together.
	maxWakes = 64 << 20
	// sweepEvery is the interval at which idle accounts are dropped.
	sweepEvery = time.Minute
	// responseRate limits the average number of response bytes that a user may read per second, from
	// sessions and from the archive. responseBurst limits the bytes of one burst.
	responseRate  = 4 << 20
	responseBurst = 64 << 20
)

// Bounds limits a resource per user and in total. Zero means no limit.
type Bounds struct{ User, All int64 }

// Options configures a Budget.
type Options struct {
	// Rate limits the average number of requests of a user per second; zero means no limit. Burst
	// limits the number of requests in one burst.
	Rate  float64
	Burst int
	// MaxBody is the largest body, in bytes.
	MaxBody int64
	Streams Bounds
	// Responses limits the bytes of responses in memory. The default limit of a user has room for the
	// largest event of a session and some pages of events.
	Responses Bounds
}

// Budget counts the resources that users have in flight.
type Budget struct {
	rate    rate.Limit
	burst   int
	maxBody int64
	bounds  [resources]Bounds

	mu       sync.Mutex
	accounts map[string]*account
	total    [resources]int64
	// waiting contains the waiters for each resource, sorted by the field round of waiter. round
	// contains, for each resource, the highest round of a waiter that got the resource.
	waiting [resources][]*waiter
	round   [resources]int
	swept   time.Time
}

type account struct {
	bucket *rate.Limiter // nil without a rate limit
	// responses limits the response bytes of the user. It is nil until the user reads a response.
	responses *rate.Limiter
	used      [resources]int64
}

// waiter is a request that waits until its size fits within the limits.
type waiter struct {
	user string
	size int64
	// round orders the waiters: a lower round is served first. Each user has at most one waiter in
	// a round.
	round   int
	granted chan struct{}
	refusal error
}

// New returns a budget with nothing in flight.
func New(o Options) *Budget {
	work := max(maxWork, userShare*o.MaxBody)
	return &Budget{
		rate: rate.Limit(o.Rate), burst: max(1, o.Burst), maxBody: o.MaxBody,
		accounts: map[string]*account{}, swept: time.Now(),
		bounds: [resources]Bounds{
			Bodies:         {User: work / userShare},
			Received:       {All: 160 << 20}, // room for the bodies of dozens of users at their limits
			Work:           {All: work},
			Responses:      cmp.Or(o.Responses, Bounds{User: 20 << 20, All: 80 << 20}),
			ArchiveReads:   {User: 1, All: 3},
			Streams:        o.Streams,
			SettingsWrites: {User: 1},
			Lists:          {User: 1},
			RenderRequests: {User: 2},
			Renders:        {User: 1, All: 4},
			Wakes:          {User: work / userShare, All: max(maxWakes, work)},
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

// Count counts a request of a user or refuses it. An expensive request has a weight above 1, and
// counts as that number of requests. A weight above Burst is reduced to Burst.
func (b *Budget) Count(user string, weight int) error {
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
	reservation := b.account(user).bucket.ReserveN(now, min(weight, b.burst))
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

func (b *Budget) dropIdle(user string, a *account) {
	if a.used == [resources]int64{} && isFull(a.bucket) && isFull(a.responses) {
		delete(b.accounts, user)
	}
}

func isFull(limiter *rate.Limiter) bool {
	return limiter == nil || limiter.Tokens() >= float64(limiter.Burst())
}

// refusal returns nil if a user can take this amount of a resource now, and otherwise the reason.
// The responses of a user may take at most half of the bytes that other users leave free. Otherwise
// a few users who read slowly could exhaust the total.
func (b *Budget) refusal(user string, r Resource, size int64) error {
	bounds, used := b.bounds[r], int64(0)
	free := bounds.All - b.total[r]
	if a := b.accounts[user]; a != nil {
		used = a.used[r]
	}
	switch {
	case bounds.User > 0 && used+size > bounds.User:
		if r == Streams {
			return userStreams
		}
		return userBusy
	case bounds.All > 0 && (size > free || r == Responses && used+size > free-size):
		if r == Streams {
			return allStreams
		}
		return allBusy
	}
	return nil
}

// add changes a user's usage by size. If size is negative, waiters may get the freed amount.
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

// grant grants the resource to waiters in their order. It skips a waiter whose user is at the limit
// per user. If a waiter exceeds the total limit, all later waiters must wait too. The resource
// Responses is an exception: later waiters may still get it, because each user has a different
// share of the total (see refusal).
func (b *Budget) grant(r Resource) {
	full := false
	b.waiting[r] = slices.DeleteFunc(b.waiting[r], func(w *waiter) bool {
		if !full {
			w.refusal = b.refusal(w.user, r, w.size)
			full = r != Responses && errors.Is(w.refusal, allBusy)
		}
		if full || w.refusal != nil {
			return false
		}
		b.add(w.user, r, w.size)
		b.round[r] = max(b.round[r], w.round)
		close(w.granted)
		return true
	})
}

// enqueue adds a waiter to the current round. If the user already has waiters, the new waiter gets
// the round after the last round of these waiters.
func (b *Budget) enqueue(r Resource, w *waiter) {
	w.round = b.round[r]
	for _, other := range b.waiting[r] {
		if other.user == w.user {
			w.round = max(w.round, other.round+1)
		}
	}
	at := len(b.waiting[r])
	for at > 0 && b.waiting[r][at-1].round > w.round {
		at--
	}
	b.waiting[r] = slices.Insert(b.waiting[r], at, w)
}

func (b *Budget) wait(ctx context.Context, user string, r Resource, size int64) error {
	w := &waiter{user: user, size: size, granted: make(chan struct{}), refusal: allBusy}
	b.mu.Lock()
	b.enqueue(r, w)
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
		return nil // granted at the last moment
	}
	b.waiting[r] = slices.Delete(b.waiting[r], at, at+1)
	b.grant(r)
	return w.refusal
}

// Take takes one unit of a resource for a user, or returns a refusal. done() releases the unit.
func (b *Budget) Take(user string, r Resource) (done func(), err error) {
	h := b.Hold(user, r)
	return h.Release, h.Take(1)
}

// Wait waits for one unit of a resource, at most until the context ends. done() releases the unit.
func (b *Budget) Wait(ctx context.Context, user string, r Resource) (done func(), err error) {
	h := b.Hold(user, r)
	return h.Release, h.Wait(ctx, 1)
}
