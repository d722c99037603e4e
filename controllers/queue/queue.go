// Package queue limits the running sessions of each user. It assigns slots and queues the other
// sessions.
package queue

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Session identifies a session of a user by the name of its Conversation.
type Session struct{ User, Name types.NamespacedName }

// Queue tracks running and waiting sessions per user, in memory. Every session with a pod holds a
// slot, and every waiting session has a queue number in its status, so a new manager rebuilds the
// same queue.
type Queue struct {
	mu     sync.Mutex
	users  map[types.NamespacedName]*account
	owners map[types.NamespacedName]types.NamespacedName // the user of each running or waiting session
	// admitted is called, with the queue locked, for each waiting session that gets a slot.
	admitted func(types.NamespacedName)
}

type account struct {
	running map[types.NamespacedName]bool
	// refused contains the sessions that have a slot and whose objects the API server refused one
	// time.
	refused map[types.NamespacedName]bool
	waiting []waiter
	numbers map[types.NamespacedName]int64 // of the waiting sessions
	// Each waiting session has a queue number. last is the highest queue number so far.
	last int64
	// highest is the largest limit of all waiters so far.
	highest int32
}

// waiter is a waiting session. Waiters are ordered by queue number, not by time, because the clocks
// of two managers may differ.
type waiter struct {
	number int64
	name   types.NamespacedName
	// limit is the limit of the session's class. Sessions of one user may have different classes.
	limit int32
}

func (w waiter) compare(other waiter) int {
	return cmp.Or(cmp.Compare(w.number, other.number), cmp.Compare(w.name.Name, other.name.Name))
}

// New returns an empty queue. For each waiting session that gets a slot, the queue calls the
// function admitted, which must neither block nor call the queue.
func New(admitted func(types.NamespacedName)) *Queue {
	return &Queue{users: map[types.NamespacedName]*account{}, owners: map[types.NamespacedName]types.NamespacedName{},
		admitted: admitted}
}

// account returns the account of the session's user. If the Conversation was recreated for another
// user, the earlier user's session leaves the queue.
func (q *Queue) account(s Session) *account {
	if previous, known := q.owners[s.Name]; known && previous != s.User {
		q.remove(s.Name)
	}
	q.owners[s.Name] = s.User
	if q.users[s.User] == nil {
		q.users[s.User] = &account{running: map[types.NamespacedName]bool{}, refused: map[types.NamespacedName]bool{},
			numbers: map[types.NamespacedName]int64{}}
	}
	return q.users[s.User]
}

// Hold assigns a slot to a session that has a pod, even above the limit.
func (q *Queue) Hold(s Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(s)
	a.dequeue(s.Name)
	a.running[s.Name] = true
	delete(a.refused, s.Name)
}

// Enter assigns a slot to a session, and returns 0. If no slot is free, the session waits, and
// Enter returns its queue number. The parameter recorded is the queue number in the session's
// status; 0 means none.
func (q *Queue) Enter(s Session, limit *int32, recorded int64) (number int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(s)
	if limit == nil || a.running[s.Name] {
		a.dequeue(s.Name)
		a.running[s.Name] = true
		return 0
	}
	number = a.wait(s.Name, *limit, recorded)
	q.admit(a, s.Name)
	if a.running[s.Name] {
		return 0
	}
	return number
}

// Restore adds a session with a recorded queue number to the waiting sessions. It assigns no slot,
// because sessions with lower queue numbers may be restored later.
func (q *Queue) Restore(s Session, limit int32, recorded int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a := q.account(s); !a.running[s.Name] {
		a.wait(s.Name, limit, recorded)
	}
}

// wait adds a session to the waiting sessions and returns its queue number. If the session already
// waits, it keeps its queue number.
func (a *account) wait(name types.NamespacedName, limit int32, number int64) int64 {
	a.highest = max(a.highest, limit)
	if at, waits := a.position(name); waits {
		a.waiting[at].limit = limit
		return a.waiting[at].number
	}
	if number == 0 {
		number = a.last + 1
	}
	a.last, a.numbers[name] = max(a.last, number), number
	at, _ := a.position(name)
	a.waiting = slices.Insert(a.waiting, at, waiter{number, name, limit})
	return number
}

func (a *account) position(name types.NamespacedName) (at int, waits bool) {
	number, waits := a.numbers[name]
	at, _ = slices.BinarySearchFunc(a.waiting, waiter{number: number, name: name}, waiter.compare)
	return at, waits
}

// admit assigns free slots to waiting sessions in order. It calls q.admitted for each of these
// sessions except the session in the parameter caller.
func (q *Queue) admit(a *account, caller types.NamespacedName) {
	if len(a.running) >= int(a.highest) {
		return
	}
	a.waiting = slices.DeleteFunc(a.waiting, func(w waiter) bool {
		if len(a.running) >= int(w.limit) {
			return false // a later session may have a higher limit
		}
		a.running[w.name] = true
		delete(a.numbers, w.name)
		if w.name != caller {
			q.admitted(w.name)
		}
		return true
	})
}

func (a *account) dequeue(name types.NamespacedName) {
	if at, waits := a.position(name); waits {
		a.waiting = slices.Delete(a.waiting, at, at+1)
		delete(a.numbers, name)
	}
}

// Has reports whether a session has a slot.
func (q *Queue) Has(name types.NamespacedName) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.users[q.owners[name]]
	return a != nil && a.running[name]
}

// RetryWithSlot is called after the API server refused the objects of a session. It reports whether
// the session keeps its slot for a retry: yes after the first refusal, no after the second. If a
// session lost its slot at the first refusal while the quota is full, each waiting session in turn
// would get the slot, create objects and be refused. If a session could retry forever, a session
// that requests too much would block all other sessions.
func (q *Queue) RetryWithSlot(name types.NamespacedName) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.users[q.owners[name]]
	if a == nil || !a.running[name] || a.refused[name] {
		return false
	}
	a.refused[name] = true
	return true
}

// Leave frees the slot of a session, or removes the session from the waiting sessions.
func (q *Queue) Leave(name types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(name)
}

func (q *Queue) remove(name types.NamespacedName) {
	user, known := q.owners[name]
	if !known {
		return
	}
	delete(q.owners, name)
	a := q.users[user]
	delete(a.running, name)
	delete(a.refused, name)
	a.dequeue(name)
	q.admit(a, types.NamespacedName{})
	if len(a.running) == 0 && len(a.waiting) == 0 {
		delete(q.users, user)
	}
}
