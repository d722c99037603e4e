package store

import "sync"

// The type quota limits the storage of each user, so that no user fills the shared store. If
// several processes share a bucket, each process counts the writes of the other processes only
// after its next Sweep.
type quota struct {
	// limit is the limit of one user in bytes; zero means no limit.
	limit int64

	mu     sync.Mutex
	usage  map[string]usage // by Conversation UID
	owners map[string]int64 // bytes by owner
	// changed contains the Conversations that changed since the measurement began. Their measured
	// usage is stale.
	changed map[string]bool
}

type usage struct {
	owner                    string
	events, ending, snapshot int64
}

func (u usage) size() int64 { return u.events + u.ending + u.snapshot }

func withOwner(owner string) func(*usage) { return func(u *usage) { u.owner = owner } }

func withEvents(size int64) func(*usage) { return func(u *usage) { u.events = size } }

func withEnding(size int) func(*usage) { return func(u *usage) { u.ending = int64(size) } }

func withSnapshot(size int64) func(*usage) { return func(u *usage) { u.snapshot = size } }

func (q *quota) usageOf(uid string) usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.usage[uid]
}

func (q *quota) set(uid string, change func(*usage)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.usage[uid]
	change(&now)
	q.store(uid, now)
}

func (q *quota) store(uid string, now usage) {
	if q.usage == nil {
		q.usage, q.owners = map[string]usage{}, map[string]int64{}
	}
	before := q.usage[uid]
	q.owners[before.owner] -= before.size()
	q.owners[now.owner] += now.size()
	for _, owner := range []string{before.owner, now.owner} {
		if q.owners[owner] == 0 {
			delete(q.owners, owner)
		}
	}
	q.usage[uid] = now
	if now == (usage{}) {
		delete(q.usage, uid)
	}
	if q.changed != nil {
		q.changed[uid] = true
	}
}

func (q *quota) forget(uid string) { q.set(uid, func(u *usage) { *u = usage{} }) }

// allows reports whether a change stays within the owner's limit, or does not increase the usage.
// Without an owner everything is allowed.
func (q *quota) allows(uid string, change func(*usage)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.usage[uid]
	then := now
	change(&then)
	more := then.size() - now.size()
	return q.limit == 0 || now.owner == "" || more <= 0 || q.owners[now.owner]+more <= q.limit
}

// measure begins a measurement. From then on, the quota records which Conversations change.
func (q *quota) measure() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed = map[string]bool{}
}

// replace replaces the usage by the measured usage, except for Conversations that changed since the
// measurement began.
func (q *quota) replace(measured map[string]usage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for uid := range q.changed {
		measured[uid] = q.usage[uid]
	}
	q.usage, q.owners, q.changed = nil, nil, nil
	for uid, now := range measured {
		q.store(uid, now)
	}
}
