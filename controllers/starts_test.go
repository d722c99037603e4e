package controllers

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestOnlyWhatCameIntoBeingBeforeOurEyesHasNoPast(t *testing.T) {
	fresh := v1alpha1.ConversationStatus{State: v1alpha1.StateStarting, ObservedGeneration: -1}
	for name, c := range map[string]struct {
		listed, wrote, deleted bool
		status                 v1alpha1.ConversationStatus
		first                  bool
	}{
		"it came":                         {status: fresh, first: true},
		"it was there":                    {status: fresh, listed: true},
		"it came, and something was said": {status: fresh, wrote: true},
		"it came, and says something": {status: v1alpha1.ConversationStatus{State: v1alpha1.StateStarting,
			ObservedGeneration: 1}},
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

func TestAPodThatNeverShowsIsLookedForAlsoWhenItsStartIsRecorded(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager := managerClient(t)
	conv := working(ns, "c").with(func(s *v1alpha1.ConversationSpec) { s.Suspend = true }).obj()
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
	if again := look().RequeueAfter; again == 0 || again > awaitPod {
		t.Errorf("looks again in %s", again)
	}
	if s := theConversation(t, ns, "c").Status; s.State != v1alpha1.StateStarting ||
		s.ObservedGeneration != conv.Generation {
		t.Errorf("%+v", s)
	}
}

func TestOnTheWayThereAPodIsNoReasonForALookWhileOneIsDue(t *testing.T) {
	waiting := func(reason string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: sessionContainer, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
			}}
		}
	}
	scheduled := func(status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status}}
		}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		looked bool
	}{
		"it has a node":            {scheduled(corev1.ConditionTrue), false},
		"no node takes it":         {scheduled(corev1.ConditionFalse), true},
		"its image is pulled":      {waiting("ContainerCreating"), false},
		"its image is not there":   {waiting("ErrImagePull"), true},
		"its container cannot run": {waiting("CreateContainerError"), true},
		"it runs":                  {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning }, true},
		"it failed":                {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }, true},
		"it leaves":                {func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.Now()) }, true},
		"somebody took its label":  {func(pod *corev1.Pod) { delete(pod.Labels, v1alpha1.LabelAttempt) }, true},
	} {
		s, key := &starts{}, client.ObjectKey{Namespace: "ns", Name: "c"}
		before := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "c-session", Labels: map[string]string{v1alpha1.LabelAttempt: "1"},
				OwnerReferences: sessionOwner(makeConversation("ns", "c").Conversation),
			},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
		after := before.DeepCopy()
		c.change(after)
		changed := event.UpdateEvent{ObjectOld: before, ObjectNew: after}
		if !s.ofPods().Update(changed) {
			t.Errorf("%s, and nobody looks", name)
		}
		s.looksSoon(key)
		if got := s.ofPods().Update(changed); got != c.looked {
			t.Errorf("%s, and a look is due: looked at at once: %t, want %t", name, got, c.looked)
		}
		s.looks(key)
		if !s.ofPods().Update(changed) {
			t.Errorf("%s after the look, and nobody looks", name)
		}
	}
}

func TestAPodThatWasMadeIsNoNews(t *testing.T) {
	s, key := &starts{}, client.ObjectKey{Namespace: "ns", Name: "c"}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-session", OwnerReferences: sessionOwner(makeConversation("ns",
			"c").Conversation)},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if !s.ofPods().Create(event.CreateEvent{Object: pod}) {
		t.Error("a pod came that nobody here made, and nobody looks")
	}
	s.looksSoon(key)
	if s.ofPods().Create(event.CreateEvent{Object: pod}) {
		t.Error("who made it looks at once")
	}
	if !s.ofPods().Create(event.CreateEvent{Object: pod, IsInInitialList: true}) {
		t.Error("nobody looks at what was there")
	}
	pod.OwnerReferences[0].Name = "d"
	if !s.ofPods().Create(event.CreateEvent{Object: pod}) {
		t.Error("another's pod came, and nobody looks")
	}
}
