package queue

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func at(second int) time.Time { return time.Unix(int64(second), 0) }

// driver uses a queue as the reconciler does.
type driver struct {
	*testing.T
	queue    *Queue
	limit    map[string]int32 // of a session's class
	user     map[string]string
	admitted *[]string
}

func newDriver(t *testing.T) driver {
	admitted := &[]string{}
	q := New(func(name types.NamespacedName) { *admitted = append(*admitted, name.Name) })
	return driver{t, q, map[string]int32{}, map[string]string{}, admitted}
}

func name(session string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: session}
}

func (d driver) session(session string) Session {
	user := d.user[session]
	if user == "" {
		user = "ada"
	}
	return Session{User: name(user), Name: name(session)}
}

func (d driver) enter(session string, second int) bool {
	limit := int32(1)
	if of := d.limit[session]; of != 0 {
		limit = of
	}
	return d.queue.Enter(d.session(session), &limit, at(second))
}

func (d driver) leave(session string) { d.queue.Leave(name(session)) }

// told are the sessions that were told since the last time that they have a slot.
func (d driver) told() []string {
	names := *d.admitted
	*d.admitted = nil
	return names
}

func (d driver) expect(what string, got, want bool) {
	d.Helper()
	if got != want {
		d.Errorf("%s: %t, want %t", what, got, want)
	}
}

func TestSlotsAreGivenInOrderOfWaiting(t *testing.T) {
	d := newDriver(t)
	d.expect("a comes first", d.enter("a", 0), true)
	d.expect("c waits", d.enter("c", 1), false)
	d.expect("b waits, for longer than it seems", d.enter("b", 2), false)
	d.leave("a")
	if told := d.told(); len(told) != 1 || told[0] != "c" {
		t.Errorf("told: %v, want c", told)
	}
	d.expect("a newcomer", d.enter("new", 3), false)
	d.expect("b", d.enter("b", 4), false)
	d.expect("c", d.enter("c", 5), true)
	d.expect("c has its place", d.enter("c", 6), true)
}

func TestASlotIsKeptForTheSessionThatWasTold(t *testing.T) {
	d := newDriver(t)
	d.expect("a comes first", d.enter("a", 0), true)
	d.expect("b waits", d.enter("b", 1), false)
	d.expect("c waits", d.enter("c", 2), false)
	d.leave("a")
	d.expect("b, whose record came meanwhile", d.enter("b", 100), true)
}

func TestABlockedSessionHoldsNoSlot(t *testing.T) {
	d := newDriver(t)
	d.enter("a", 0)
	d.expect("b waits", d.enter("b", 1), false)
	d.expect("c waits", d.enter("c", 2), false)
	d.leave("b") // its settings are gone
	d.leave("a")
	if told := d.told(); len(told) != 1 || told[0] != "c" {
		t.Errorf("told: %v, want c", told)
	}
	d.enter("d", 3)
	d.enter("e", 4)
	d.leave("c")
	d.leave("d") // it was called, and cannot start
	d.expect("e", d.enter("e", 5), true)
}

func TestEachSessionWaitsForTheLimitOfItsClass(t *testing.T) {
	d := newDriver(t)
	d.limit["a1"], d.limit["a2"], d.limit["a3"], d.limit["a4"] = 3, 3, 3, 3
	d.enter("a1", 0)
	d.enter("a2", 0)
	d.enter("a3", 0)
	d.expect("one of a narrow class waits", d.enter("narrow", 1), false)
	d.expect("one of a wide class waits", d.enter("a4", 2), false)
	d.enter("narrow", 3)
	d.leave("a1")
	if told := d.told(); len(told) != 1 || told[0] != "a4" {
		t.Errorf("told: %v, want a4: the narrow class has no place for another", told)
	}
}

func TestASlotBelongsToItsUser(t *testing.T) {
	d := newDriver(t)
	d.enter("c", 0)
	d.user["c"] = "grace" // it was deleted, and made again for somebody else
	d.expect("the same name of another user", d.enter("c", 1), true)
	d.expect("another session of the first user", d.enter("d", 2), true)
}

func TestARefusedSessionRetriesOnceWithItsSlot(t *testing.T) {
	d := newDriver(t)
	again := func(session string) bool {
		return d.queue.RetryWithSlot(name(session))
	}
	d.expect("one that nobody knows", again("a"), false)
	d.enter("a", 0)
	d.enter("b", 1)
	d.expect("one that has a place", again("a"), true)
	d.enter("a", 2)
	d.expect("for the second time", again("a"), false)
	d.expect("one that waits", again("b"), false)
	d.leave("a")
	d.expect("one that was called", again("b"), true)
	d.queue.Hold(d.session("b"))
	d.expect("one that had a pod since", again("b"), true)
	d.leave("b")
	d.enter("a", 3)
	d.expect("one that has another place", again("a"), true)
}
