package controllers

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestMemoryIsOfOneConversationNotOfItsName(t *testing.T) {
	var m memory
	c := makeConversation("ns", "c").Conversation
	m.change(c, func(r *remembered) { r.created, r.podAttempt, r.podCreated = true, 1, at(0) })
	m.change(c, func(r *remembered) { r.refuse(c, errors.New("no"), at(1)) })
	m.change(c, func(r *remembered) { r.refuse(c, errors.New("still no"), at(5)) })
	known := m.of(c)
	if !known.expectsPod(c, at(9)) || known.expectsPod(c, at(10)) {
		t.Error("a pod is expected for 10 seconds")
	}
	if last := known.refusalOf(c); last == nil || last.err.Error() != "still no" || last.first != at(1) ||
		last.last != at(5) {
		t.Errorf("it was refused: %+v", last)
	}
	changed, next, recreated := c.DeepCopy(), c.DeepCopy(), c.DeepCopy()
	changed.Generation, next.Status.Attempt, recreated.UID = 2, 2, "another-uid"
	if m.of(changed).refusalOf(changed) != nil {
		t.Error("a changed Conversation may not be refused again")
	}
	if m.of(next).expectsPod(next, at(1)) {
		t.Error("the next attempt has a pod of its own")
	}
	if got := m.of(recreated); got != (remembered{uid: "another-uid"}) {
		t.Errorf("of a recreated Conversation is known %+v", got)
	}
	m.change(c, func(r *remembered) { r.created, r.podAttempt, r.refusal = false, 0, refusal{} })
	if _, found := m.entries.Load(client.ObjectKeyFromObject(c)); found {
		t.Error("an entry that says nothing is kept")
	}
	m.change(c, func(r *remembered) { r.created = true })
	m.forget(client.ObjectKeyFromObject(c))
	if got := m.of(c); got != (remembered{uid: c.UID}) {
		t.Errorf("what was forgotten: %+v", got)
	}
}

func TestAPodThatTheCacheDoesNotShowYetIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager := managerClient(t)
	create(t, userSettings(ns, "ada"), working(ns, "c").Obj())
	now := clocktesting.NewFakePassiveClock(time.Now())
	process := newProcess(behind{Client: manager, noPods: true}, manager)
	process.clock = now
	look := func() (reconcile.Result, []testenv.Request) {
		t.Helper()
		before := len(testenv.Writes(t, auditDir, managerUser, ns))
		result, err := process.Reconcile(t.Context(), requestFor(ns, "c"))
		if err != nil {
			t.Fatal(err)
		}
		return result, testenv.Writes(t, auditDir, managerUser, ns)[before:]
	}
	look()
	made := kubelet{t, ns, "c"}.pod()
	if result, writes := look(); len(writes) > 0 || result.RequeueAfter == 0 {
		t.Errorf("looks again in %s, after\n%s", result.RequeueAfter, describe(writes))
	}
	// It may have been made and removed while nobody listened.
	if err := env.Client.Delete(t.Context(), made, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	now.SetTime(now.Now().Add(podTimeout))
	look()
	if again := (kubelet{t, ns, "c"}).pod(); again.UID == made.UID {
		t.Error("it is not made again")
	}
	if s := theConversation(t, ns, "c").Status; s.ObservedGeneration != -1 || s.StartTime != (*metav1.Time)(nil) {
		t.Errorf("something was written: %+v", s)
	}
}

func TestAPodThatNeverShowsIsLookedForAlsoWhenItsStartIsRecorded(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager := managerClient(t)
	conv := working(ns, "c").With(func(s *v1alpha1.ConversationSpec) { s.Suspend = true }).Obj()
	create(t, userSettings(ns, "ada"), conv)
	process := newProcess(behind{Client: manager, noPods: true}, manager)
	look := func() reconcile.Result {
		t.Helper()
		result, err := process.Reconcile(t.Context(), requestFor(ns, "c"))
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	look()
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	for range 3 { // it is recorded, the pod is made, and that is recorded
		look()
	}
	kubelet{t, ns, "c"}.pod()
	if again := look().RequeueAfter; again == 0 || again > podTimeout {
		t.Errorf("looks again in %s", again)
	}
	if s := theConversation(t, ns, "c").Status; s.State != v1alpha1.StateStarting ||
		s.ObservedGeneration != conv.Generation {
		t.Errorf("%+v", s)
	}
}
