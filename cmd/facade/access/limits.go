package access

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parley-dev/parley/cmd/facade/answer"
)

// sweepEvery is how often buckets that are full again are dropped: a new one is the same.
const sweepEvery = time.Minute

// Limits is how often each user may ask.
type Limits struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
	swept   time.Time
}

// NewLimits lets each user make so many requests a second on average, and a burst at once. A rate
// of zero is no limit.
func NewLimits(perSecond float64, burst int) *Limits {
	return &Limits{rate: rate.Limit(perSecond), burst: max(1, burst), buckets: map[string]*rate.Limiter{},
		swept: time.Now()}
}

// Take counts a request of a user, or refuses it.
func (l *Limits) Take(user string) error {
	if l.rate <= 0 {
		return nil
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.swept) > sweepEvery {
		for name, bucket := range l.buckets {
			if bucket.TokensAt(now) >= float64(l.burst) {
				delete(l.buckets, name)
			}
		}
		l.swept = now
	}
	bucket := l.buckets[user]
	if bucket == nil {
		bucket = rate.NewLimiter(l.rate, l.burst)
		l.buckets[user] = bucket
	}
	reservation := bucket.ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait <= 0 {
		return nil
	}
	reservation.CancelAt(now)
	return tooFast(wait)
}

func tooFast(wait time.Duration) error {
	return answer.Later(http.StatusTooManyRequests, "Too many requests", wait)
}

// Queues lets one at a time through for each name.
type Queues struct {
	mu    sync.Mutex
	locks map[string]*queue
}

type queue struct {
	// turn is sent to by whose it is, and received from when it is over.
	turn chan struct{}
	// users are those in the queue.
	users int
}

// Lock waits for everybody before in the queue of this name, as long as there is time. unlock must
// be called when it is over, unless there is an error.
func (q *Queues) Lock(ctx context.Context, name string) (unlock func(), err error) {
	entry := q.enter(name)
	select {
	case entry.turn <- struct{}{}:
		return func() { <-entry.turn; q.leave(name, entry) }, nil
	case <-ctx.Done():
		q.leave(name, entry)
		return nil, tooMuch
	}
}

func (q *Queues) enter(name string) *queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.locks == nil {
		q.locks = map[string]*queue{}
	}
	if q.locks[name] == nil {
		q.locks[name] = &queue{turn: make(chan struct{}, 1)}
	}
	q.locks[name].users++
	return q.locks[name]
}

func (q *Queues) leave(name string, entry *queue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if entry.users--; entry.users == 0 {
		delete(q.locks, name)
	}
}
