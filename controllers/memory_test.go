package controllers

import (
	"errors"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestTheManagerForgetsADeletedConversation(t *testing.T) {
	var m memory
	c := makeConversation("ns", "c").Conversation
	m.update(c, func(r *memoryEntry) { r.podAttempt, r.podCreated = 1, at(0) })
	m.update(c, func(r *memoryEntry) { r.recordRefusal(c, errors.New("no"), at(1)) })
	m.update(c, func(r *memoryEntry) { r.recordRefusal(c, errors.New("still no"), at(5)) })
	known := m.get(c)
	if !known.expectsPod(c, at(9)) || known.expectsPod(c, at(10)) {
		t.Error("a pod is expected for 10 seconds")
	}
	if last := known.currentRefusal(c); last == nil || last.err.Error() != "still no" || last.first != at(1) ||
		last.last != at(5) {
		t.Errorf("the refusal is %+v", last)
	}
	changed, next, recreated := c.DeepCopy(), c.DeepCopy(), c.DeepCopy()
	changed.Generation, next.Status.Attempt, recreated.UID = 2, 2, "another-uid"
	if m.get(changed).currentRefusal(changed) != nil {
		t.Error("a changed Conversation keeps its refusal")
	}
	if m.get(next).expectsPod(next, at(1)) {
		t.Error("the next attempt expects the old attempt's pod")
	}
	if got := m.get(recreated); !reflect.DeepEqual(got, memoryEntry{uid: "another-uid"}) {
		t.Errorf("a recreated Conversation has the entry %+v", got)
	}
	m.update(c, func(r *memoryEntry) { r.podAttempt, r.refusal = 0, refusal{} })
	if len(m.entries) > 0 {
		t.Error("an empty entry is kept")
	}
	m.update(c, func(r *memoryEntry) { r.failures = 1 })
	m.forget(client.ObjectKeyFromObject(c))
	if got := m.get(c); !reflect.DeepEqual(got, memoryEntry{uid: c.UID}) {
		t.Errorf("a forgotten Conversation has the entry %+v", got)
	}
}

func TestACreatedPodIsNotCreatedAgainBeforeTheCacheShowsIt(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager := managerClient(t)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	now := clocktesting.NewFakePassiveClock(time.Now())
	process := newProcess(staleCache{Client: manager, stalePods: true}, manager)
	process.clock = now
	reconcileOnce := func() (reconcile.Result, []testenv.Request) {
		t.Helper()
		before := len(testenv.Writes(t, auditDir, managerUser, ns))
		result, err := process.Reconcile(t.Context(), requestFor(ns, "c"))
		if err != nil {
			t.Fatal(err)
		}
		return result, testenv.Writes(t, auditDir, managerUser, ns)[before:]
	}
	reconcileOnce()
	made := kubelet{t, ns, "c"}.pod()
	if result, writes := reconcileOnce(); len(writes) > 0 || result.RequeueAfter == 0 {
		t.Errorf("requeued in %s, after\n%s", result.RequeueAfter, describe(writes))
	}
	// If the cache misses both the creation and the deletion of a pod, it never shows the pod.
	// After podTimeout, the manager must therefore create the pod again.
	if err := env.Client.Delete(t.Context(), made, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	now.SetTime(now.Now().Add(podTimeout))
	reconcileOnce()
	if again := (kubelet{t, ns, "c"}).pod(); again.UID == made.UID {
		t.Error("the pod was not recreated")
	}
	if s := getConversation(t, ns, "c").Status; s.ObservedGeneration != -1 || s.StartTime != (*metav1.Time)(nil) {
		t.Errorf("the status was written: %+v", s)
	}
}

func TestASessionStaysStartingUntilTheCacheShowsItsPod(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager := managerClient(t)
	conv := withTask(ns, "c").With(func(s *v1alpha1.ConversationSpec) { s.Suspend = true }).Obj()
	create(t, userSettings(ns, "ada"), conv)
	process := newProcess(staleCache{Client: manager, stalePods: true}, manager)
	reconcileOnce := func() reconcile.Result {
		t.Helper()
		result, err := process.Reconcile(t.Context(), requestFor(ns, "c"))
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	reconcileOnce()
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	for range 3 { // record the start, create the pod, record the pod
		reconcileOnce()
	}
	kubelet{t, ns, "c"}.pod()
	if again := reconcileOnce().RequeueAfter; again == 0 || again > podTimeout {
		t.Errorf("requeued in %s", again)
	}
	if s := getConversation(t, ns, "c").Status; s.State != v1alpha1.StateStarting ||
		s.ObservedGeneration != conv.Generation {
		t.Errorf("%+v", s)
	}
}
