package queue

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// driver calls a queue the way the reconciler does.
type driver struct {
	*testing.T
	queue    *Queue
	limit    map[string]int32 // limit and user are keyed by session
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

// enter calls Enter without a recorded queue number, and reports whether the session has a slot.
func (d driver) enter(session string) bool {
	limit := int32(1)
	if class := d.limit[session]; class != 0 {
		limit = class
	}
	return d.queue.Enter(d.session(session), &limit, 0) == 0
}

func (d driver) leave(session string) { d.queue.Leave(name(session)) }

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

func TestTheSessionThatWaitedLongestGetsTheFreeSlot(t *testing.T) {
	d := newDriver(t)
	d.expect("a comes first", d.enter("a"), true)
	d.expect("c waits", d.enter("c"), false)
	d.expect("b waits after c", d.enter("b"), false)
	d.leave("a")
	if admitted := d.takeAdmitted(); len(admitted) != 1 || admitted[0] != "c" {
		t.Errorf("admitted %v, want c", admitted)
	}
	d.expect("a new session", d.enter("new"), false)
	d.expect("b", d.enter("b"), false)
	d.expect("c", d.enter("c"), true)
	d.expect("c keeps its slot", d.enter("c"), true)
}

// The order of names, and the order in which a new manager finds the sessions, do not matter.
func TestQueuedSessionsKeepTheirOrderAfterARestartOfTheManager(t *testing.T) {
	before := newDriver(t)
	before.enter("first")
	numbers := map[string]int64{}
	limit := int32(1)
	for _, session := range []string{"z", "m", "a"} {
		numbers[session] = before.queue.Enter(before.session(session), &limit, 0)
	}
	before.leave("first") // z has a slot, but no pod yet
	d := newDriver(t)
	for _, session := range []string{"a", "m", "z"} {
		d.queue.Restore(d.session(session), limit, numbers[session])
	}
	d.expect("a new session", d.enter("b"), false)
	for _, session := range []string{"z", "m", "a"} {
		if number := d.queue.Enter(d.session(session), &limit, numbers[session]); number != 0 {
			t.Errorf("%s waits with number %d", session, number)
		}
		d.leave(session)
	}
	if admitted := d.takeAdmitted(); !slices.Equal(admitted, []string{"z", "m", "a", "b"}) {
		t.Errorf("admitted %v", admitted)
	}
}

func TestASessionWithAPodKeepsItsSlotAfterARestartOfTheManager(t *testing.T) {
	d := newDriver(t)
	d.queue.Hold(d.session("a"))
	d.queue.Restore(d.session("a"), 1, 1)
	d.expect("a", d.enter("a"), true)
	d.expect("b waits", d.enter("b"), false)
}

func TestAnAdmittedSessionKeepsItsSlot(t *testing.T) {
	d := newDriver(t)
	d.expect("a comes first", d.enter("a"), true)
	d.expect("b waits", d.enter("b"), false)
	d.expect("c waits", d.enter("c"), false)
	d.leave("a")
	d.expect("b", d.enter("b"), true)
}

func TestABlockedSessionHoldsNoSlot(t *testing.T) {
	d := newDriver(t)
	d.enter("a")
	d.expect("b waits", d.enter("b"), false)
	d.expect("c waits", d.enter("c"), false)
	d.leave("b") // its settings are gone
	d.leave("a")
	if admitted := d.takeAdmitted(); len(admitted) != 1 || admitted[0] != "c" {
		t.Errorf("admitted %v, want c", admitted)
	}
	d.enter("d")
	d.enter("e")
	d.leave("c")
	d.leave("d") // it was admitted but cannot start
	d.expect("e", d.enter("e"), true)
}

func TestASessionOvertakesASessionWhoseClassIsFull(t *testing.T) {
	d := newDriver(t)
	d.limit["a1"], d.limit["a2"], d.limit["a3"], d.limit["a4"] = 3, 3, 3, 3
	d.enter("a1")
	d.enter("a2")
	d.enter("a3")
	d.expect("a session of a narrow class waits", d.enter("narrow"), false)
	d.expect("a session of a wide class waits", d.enter("a4"), false)
	d.enter("narrow")
	d.leave("a1")
	if admitted := d.takeAdmitted(); len(admitted) != 1 || admitted[0] != "a4" {
		t.Errorf("admitted %v, want a4: the narrow class has no free slot", admitted)
	}
}

func TestRecreatingAConversationForAnotherUserFreesTheFirstUsersSlot(t *testing.T) {
	d := newDriver(t)
	d.enter("c")
	d.user["c"] = "grace" // recreated for another user
	d.expect("the same name of another user", d.enter("c"), true)
	d.expect("another session of the first user", d.enter("d"), true)
}

func TestARefusedSessionKeepsItsSlotForOneRetry(t *testing.T) {
	d := newDriver(t)
	retry := func(session string) bool {
		return d.queue.RetryWithSlot(name(session))
	}
	d.expect("an unknown session", retry("a"), false)
	d.enter("a")
	d.enter("b")
	d.expect("a session with a slot", retry("a"), true)
	d.enter("a")
	d.expect("a second retry", retry("a"), false)
	d.expect("a waiting session", retry("b"), false)
	d.leave("a")
	d.expect("an admitted session", retry("b"), true)
	d.queue.Hold(d.session("b"))
	d.expect("a session that had a pod since", retry("b"), true)
	d.leave("b")
	d.enter("a")
	d.expect("a session with a new slot", retry("a"), true)
}
