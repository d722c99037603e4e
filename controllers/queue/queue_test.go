package queue

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func at(second int) time.Time { return time.Unix(int64(second), 0) }

// driver calls a queue the way the reconciler does.
type driver struct {
	*testing.T
	queue    *Queue
	limit    map[string]int32 // by session
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
	if class := d.limit[session]; class != 0 {
		limit = class
	}
	return d.queue.Enter(d.session(session), &limit, at(second))
}

func (d driver) leave(session string) { d.queue.Leave(name(session)) }

// takeAdmitted returns the sessions that were admitted since the last call.
func (d driver) takeAdmitted() []string {
	names := *d.admitted
	*d.admitted = nil
	return names
}

func (d driver) expect(session string, got, want bool) {
	d.Helper()
	if got != want {
		d.Errorf("%s: %t, want %t", session, got, want)
	}
}

func TestSlotsAreGivenInOrderOfWaiting(t *testing.T) {
	d := newDriver(t)
	d.expect("a comes first", d.enter("a", 0), true)
	d.expect("c waits", d.enter("c", 1), false)
	d.expect("b waits after c", d.enter("b", 2), false)
	d.leave("a")
	if admitted := d.takeAdmitted(); len(admitted) != 1 || admitted[0] != "c" {
		t.Errorf("admitted %v, want c", admitted)
	}
	d.expect("a new session", d.enter("new", 3), false)
	d.expect("b", d.enter("b", 4), false)
	d.expect("c", d.enter("c", 5), true)
	d.expect("c keeps its slot", d.enter("c", 6), true)
}

func TestAnAdmittedSessionKeepsItsSlot(t *testing.T) {
	d := newDriver(t)
	d.expect("a comes first", d.enter("a", 0), true)
	d.expect("b waits", d.enter("b", 1), false)
	d.expect("c waits", d.enter("c", 2), false)
	d.leave("a")
	d.expect("b with a later start time", d.enter("b", 100), true)
}

func TestABlockedSessionHoldsNoSlot(t *testing.T) {
	d := newDriver(t)
	d.enter("a", 0)
	d.expect("b waits", d.enter("b", 1), false)
	d.expect("c waits", d.enter("c", 2), false)
	d.leave("b") // its settings are gone
	d.leave("a")
	if admitted := d.takeAdmitted(); len(admitted) != 1 || admitted[0] != "c" {
		t.Errorf("admitted %v, want c", admitted)
	}
	d.enter("d", 3)
	d.enter("e", 4)
	d.leave("c")
	d.leave("d") // it was admitted but cannot start
	d.expect("e", d.enter("e", 5), true)
}

func TestEachSessionWaitsForTheLimitOfItsClass(t *testing.T) {
	d := newDriver(t)
	d.limit["a1"], d.limit["a2"], d.limit["a3"], d.limit["a4"] = 3, 3, 3, 3
	d.enter("a1", 0)
	d.enter("a2", 0)
	d.enter("a3", 0)
	d.expect("a session of a narrow class waits", d.enter("narrow", 1), false)
	d.expect("a session of a wide class waits", d.enter("a4", 2), false)
	d.enter("narrow", 3)
	d.leave("a1")
	if admitted := d.takeAdmitted(); len(admitted) != 1 || admitted[0] != "a4" {
		t.Errorf("admitted %v, want a4: the narrow class has no free slot", admitted)
	}
}

func TestASlotBelongsToItsUser(t *testing.T) {
	d := newDriver(t)
	d.enter("c", 0)
	d.user["c"] = "grace" // recreated for another user
	d.expect("the same name of another user", d.enter("c", 1), true)
	d.expect("another session of the first user", d.enter("d", 2), true)
}

func TestARefusedSessionRetriesOnceWithItsSlot(t *testing.T) {
	d := newDriver(t)
	retry := func(session string) bool {
		return d.queue.RetryWithSlot(name(session))
	}
	d.expect("an unknown session", retry("a"), false)
	d.enter("a", 0)
	d.enter("b", 1)
	d.expect("a session with a slot", retry("a"), true)
	d.enter("a", 2)
	d.expect("a second retry", retry("a"), false)
	d.expect("a waiting session", retry("b"), false)
	d.leave("a")
	d.expect("an admitted session", retry("b"), true)
	d.queue.Hold(d.session("b"))
	d.expect("a session that had a pod since", retry("b"), true)
	d.leave("b")
	d.enter("a", 3)
	d.expect("a session with a new slot", retry("a"), true)
}
