// Package queue gives the sessions of each user slots, where their class bounds how many may run,
// and queues the others.
package queue

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Session is a session of a user. Name is that of its Conversation.
type Session struct{ User, Name types.NamespacedName }

// Queue tracks running and waiting sessions per user. It is kept in memory: a session with a pod
// holds a slot, so that another manager finds the same.
type Queue struct {
	mu     sync.Mutex
	users  map[types.NamespacedName]*account
	owners map[types.NamespacedName]types.NamespacedName // the user of each session that runs or waits
	// admitted is called, with the queue locked, for each session that got a slot it waited for.
	admitted func(types.NamespacedName)
}

// account of one user.
type account struct {
	running map[types.NamespacedName]bool
	// refused are the running sessions that the API server refused since they got their slot.
	refused map[types.NamespacedName]bool
	waiting []waiter
}

// waiter is a session that waits, in the order in which waiting began. That is recorded in whole
// seconds; the name decides between those that began in the same one.
type waiter struct {
	since int64
	name  types.NamespacedName
	// limit of the session's class. Sessions of one user may be of several classes.
	limit int32
}

func (w waiter) compare(other waiter) int {
	return cmp.Or(cmp.Compare(w.since, other.since), cmp.Compare(w.name.Name, other.name.Name))
}

// New is an empty queue. It calls admitted, which must not block or call the queue, for each session
// that gets a slot it waited for.
func New(admitted func(types.NamespacedName)) *Queue {
	return &Queue{users: map[types.NamespacedName]*account{}, owners: map[types.NamespacedName]types.NamespacedName{},
		admitted: admitted}
}

// account of the session's user. A session that was deleted and created again for somebody else no
// longer belongs to the first user.
func (q *Queue) account(s Session) *account {
	if before, known := q.owners[s.Name]; known && before != s.User {
		q.remove(s.Name)
	}
	q.owners[s.Name] = s.User
	if q.users[s.User] == nil {
		q.users[s.User] = &account{running: map[types.NamespacedName]bool{}, refused: map[types.NamespacedName]bool{}}
	}
	return q.users[s.User]
}

// Hold keeps a slot for a session that has a pod, whatever the limit.
func (q *Queue) Hold(s Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(s)
	a.dequeue(s.Name)
	a.running[s.Name] = true
	delete(a.refused, s.Name)
}

// Enter gives a session a slot, if it has one already, its class has no limit, or it is its turn.
// Otherwise it waits, since the given time, and is told when it has one.
func (q *Queue) Enter(s Session, limit *int32, since time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(s)
	a.dequeue(s.Name)
	if limit == nil || a.running[s.Name] {
		a.running[s.Name] = true
		return true
	}
	self := waiter{name: s.Name, limit: *limit, since: since.Unix()}
	at, _ := slices.BinarySearchFunc(a.waiting, self, waiter.compare)
	a.waiting = slices.Insert(a.waiting, at, self)
	q.admit(a, s.Name)
	return a.running[s.Name]
}

// admit gives free slots to those whose turn it is, and tells all but the one that asks. They hold
// their slots from now on, so that no slot is free without being known.
func (q *Queue) admit(a *account, asking types.NamespacedName) {
	a.waiting = slices.DeleteFunc(a.waiting, func(w waiter) bool {
		if len(a.running) >= int(w.limit) {
			return false // the class of a later one may be wider
		}
		a.running[w.name] = true
		if w.name != asking {
			q.admitted(w.name)
		}
		return true
	})
}

func (a *account) dequeue(name types.NamespacedName) {
	a.waiting = slices.DeleteFunc(a.waiting, func(w waiter) bool { return w.name == name })
}

// Has says whether a session has a slot.
func (q *Queue) Has(name types.NamespacedName) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.users[q.owners[name]]
	return a != nil && a.running[name]
}

// RetryWithSlot says whether a session that the API server refused keeps its slot for another try:
// once. If it gave the slot away at once, each waiting session would create its objects and be
// refused too where a quota is full. If it kept the slot, one that asks for too much would hold up
// all others.
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

// Leave frees the slot of a session, or its place among those that wait.
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
