package controllers

import (
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/testenv"
)

func TestOnlyWhatCameIntoBeingBeforeOurEyesHasNoPast(t *testing.T) {
	fresh := v1alpha1.ConversationStatus{State: v1alpha1.StateStarting, ObservedGeneration: -1}
	for name, c := range map[string]struct {
		listed, wrote, deleted bool
		status                 v1alpha1.ConversationStatus
		first                  bool
	}{
		"it came":                          {status: fresh, first: true},
		"it was there":                     {status: fresh, listed: true},
		"it came, and something was said":  {status: fresh, wrote: true},
		"it came, and says something":      {status: v1alpha1.ConversationStatus{State: v1alpha1.StateStarting, ObservedGeneration: 1}},
		"it came, and another of its name": {status: fresh, deleted: true},
	} {
		s, conversation := &starts{}, makeConversation("ns", "c").obj()
		conversation.UID, conversation.Status = "uid", c.status
		s.ofConversations().Create(event.CreateEvent{Object: conversation, IsInInitialList: c.listed})
		if c.wrote {
			s.wrote(conversation)
		}
		if c.deleted {
			s.ofConversations().Delete(event.DeleteEvent{Object: conversation})
		}
		if got := s.first(conversation); got != c.first {
			t.Errorf("%s: %v", name, got)
		}
		if s.first(conversation) {
			t.Errorf("%s: twice", name)
		}
	}
}

func TestTheMoreThereIsToDoTheLaterAStepIsWritten(t *testing.T) {
	r := &conversationReconciler{}
	if got := r.visible(); got != stepVisible {
		t.Errorf("without a queue: %s", got)
	}
	r.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer r.queue.ShutDown()
	added := 0
	for _, c := range []struct {
		n    int
		want time.Duration
	}{{0, 2 * time.Second}, {100, 4 * time.Second}, {5000, stepLatest}} {
		for ; added < c.n; added++ {
			r.queue.Add(requestFor("ns", strconv.Itoa(added)))
		}
		if got := r.visible(); got != c.want {
			t.Errorf("%d to look at: %s, want %s", c.n, got, c.want)
		}
	}
}

func TestAPodThatTheCacheDoesNotShowYetIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager := managerClient(t)
	create(t, userSettings(ns, "ada"), working(ns, "c").obj())
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
	now.SetTime(now.Now().Add(awaitPod))
	look()
	if again := (kubelet{t, ns, "c"}).pod(); again.UID == made.UID {
		t.Error("it is not made again")
	}
	if s := theConversation(t, ns, "c").Status; s.ObservedGeneration != -1 || s.StartTime != (*metav1.Time)(nil) {
		t.Errorf("something was written: %+v", s)
	}
}
