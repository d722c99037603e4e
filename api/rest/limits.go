package rest

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// sweepEvery is how often buckets that are full again are dropped: a new one is the same.
const sweepEvery = time.Minute

// limits is a token bucket for each name.
type limits struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
	swept   time.Time
}

func newLimits(perSecond float64, burst int) *limits {
	return &limits{rate: rate.Limit(perSecond), burst: burst, buckets: map[string]*rate.Limiter{}, swept: time.Now()}
}

// take takes a token and returns how long its taker must wait for it. Who would have to wait longer than willing gets none.
// A rate of zero is no limit.
func (l *limits) take(name string, willing time.Duration) time.Duration {
	if l.rate <= 0 {
		return 0
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
	bucket := l.buckets[name]
	if bucket == nil {
		bucket = rate.NewLimiter(l.rate, max(1, l.burst))
		l.buckets[name] = bucket
	}
	reservation := bucket.ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait > willing {
		reservation.CancelAt(now)
	}
	return wait
}

// queues lets one at a time through for each name.
type queues struct {
	mu    sync.Mutex
	locks map[string]*queue
}

type queue struct {
	mu    sync.Mutex
	users int
}

func newQueues() *queues { return &queues{locks: map[string]*queue{}} }

func (q *queues) lock(name string) (unlock func()) {
	q.mu.Lock()
	entry := q.locks[name]
	if entry == nil {
		entry = &queue{}
		q.locks[name] = entry
	}
	entry.users++
	q.mu.Unlock()
	entry.mu.Lock()
	return func() {
		entry.mu.Unlock()
		q.mu.Lock()
		defer q.mu.Unlock()
		if entry.users--; entry.users == 0 {
			delete(q.locks, name)
		}
	}
}
