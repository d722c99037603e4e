package controllers

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// queue drives a ledger as the reconciler does.
type queue struct {
	*testing.T
	ledger *ledger
	limit  map[string]int32 // of a session's class
	user   map[string]string
}

func newQueue(t *testing.T) queue {
	return queue{t, newLedger(), map[string]int32{}, map[string]string{}}
}

func (q queue) session(name string) *v1alpha1.Conversation {
	c := makeConversation("ns", name)
	if user := q.user[name]; user != "" {
		c.Spec.UserSettingsName = user
	}
	return c.Conversation
}

func (q queue) comes(name string, second int) bool {
	limit := int32(1)
	if of := q.limit[name]; of != 0 {
		limit = of
	}
	return q.ledger.enter(q.session(name), &limit, at(second))
}

func (q queue) leaves(name string) { q.ledger.leave(types.NamespacedName{Namespace: "ns", Name: name}) }

// called are those who are told that it is their turn.
func (q queue) called() (names []string) {
	for {
		select {
		case e := <-q.ledger.free:
			names = append(names, e.Object.GetName())
		default:
			return names
		}
	}
}

func (q queue) expect(what string, got, want bool) {
	q.Helper()
	if got != want {
		q.Errorf("%s: %t, want %t", what, got, want)
	}
}

func TestPlacesGoToThoseWhoWaitInTheirOrder(t *testing.T) {
	q := newQueue(t)
	q.expect("a comes first", q.comes("a", 0), true)
	q.expect("c waits", q.comes("c", 1), false)
	q.expect("b waits, for longer than it seems", q.comes("b", 2), false)
	q.leaves("a")
	if called := q.called(); len(called) != 1 || called[0] != "c" {
		t.Errorf("called: %v, want c", called)
	}
	q.expect("a newcomer", q.comes("new", 3), false)
	q.expect("b", q.comes("b", 4), false)
	q.expect("c", q.comes("c", 5), true)
	q.expect("c has its place", q.comes("c", 6), true)
}

func TestAPlaceIsKeptForWhoIsCalled(t *testing.T) {
	q := newQueue(t)
	q.expect("a comes first", q.comes("a", 0), true)
	q.expect("b waits", q.comes("b", 1), false)
	c := q.session("b")
	c.Status.StartTime = metaTime(100) // what is recorded of its waiting is later than what the ledger knew
	q.expect("c waits", q.comes("c", 2), false)
	q.leaves("a")
	q.expect("b, whose record came meanwhile", q.ledger.enter(c, ptr.To[int32](1), at(100)), true)
}

func TestWhoCannotStartHoldsUpNobody(t *testing.T) {
	q := newQueue(t)
	q.comes("a", 0)
	q.expect("b waits", q.comes("b", 1), false)
	q.expect("c waits", q.comes("c", 2), false)
	q.leaves("b") // its settings are gone
	q.leaves("a")
	if called := q.called(); len(called) != 1 || called[0] != "c" {
		t.Errorf("called: %v, want c", called)
	}
	q.comes("d", 3)
	q.comes("e", 4)
	q.leaves("c")
	q.leaves("d") // it was called, and cannot start
	q.expect("e", q.comes("e", 5), true)
}

func TestEachWaitsForTheBoundOfItsOwnClass(t *testing.T) {
	q := newQueue(t)
	q.limit["a1"], q.limit["a2"], q.limit["a3"], q.limit["a4"] = 3, 3, 3, 3
	q.comes("a1", 0)
	q.comes("a2", 0)
	q.comes("a3", 0)
	q.expect("one of a narrow class waits", q.comes("narrow", 1), false)
	q.expect("one of a wide class waits", q.comes("a4", 2), false)
	q.comes("narrow", 3)
	q.leaves("a1")
	if called := q.called(); len(called) != 1 || called[0] != "a4" {
		t.Errorf("called: %v, want a4: the narrow class has no place for another", called)
	}
}

func TestAPlaceGoesWithItsUser(t *testing.T) {
	q := newQueue(t)
	q.comes("c", 0)
	q.user["c"] = "grace" // it was deleted, and made again for somebody else
	q.expect("the same name of another user", q.comes("c", 1), true)
	q.expect("another session of the first user", q.comes("d", 2), true)
}

func TestWhoIsRefusedMayTryOnceMoreWithItsPlace(t *testing.T) {
	q := newQueue(t)
	again := func(name string) bool {
		return q.ledger.mayTryOnceMore(types.NamespacedName{Namespace: "ns", Name: name})
	}
	q.expect("one that nobody knows", again("a"), false)
	q.comes("a", 0)
	q.comes("b", 1)
	q.expect("one that has a place", again("a"), true)
	q.comes("a", 2)
	q.expect("for the second time", again("a"), false)
	q.expect("one that waits", again("b"), false)
	q.leaves("a")
	q.expect("one that was called", again("b"), true)
	q.ledger.hold(q.session("b"))
	q.expect("one that had a pod since", again("b"), true)
	q.leaves("b")
	q.comes("a", 3)
	q.expect("one that has another place", again("a"), true)
}
