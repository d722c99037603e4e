package controllers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// runningPods are the pods of a namespace in which something runs or may run.
func runningPods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := env.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !lifecycle.HoldsSlot(&p) })
}

func TestNoMoreSessionsOfAUserRunThanTheClassAllows(t *testing.T) {
	t.Parallel()
	const all, limit, workers = 100, 10, 32
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](limit)})
	stop := startManagerOf(t, workers, "parley-system", ns)
	create(t, userSettings(ns, "ada"))
	var users sync.WaitGroup
	for i := range all {
		users.Go(func() {
			if err := env.Client.Create(t.Context(), makeConversation(ns, fmt.Sprintf("c-%03d", i)).With(
				ofClass(name)).Obj()); err != nil {
				t.Error(err)
			}
		})
	}
	users.Wait()
	pods := func() []corev1.Pod {
		t.Helper()
		running := runningPods(t, ns)
		if len(running) > limit {
			t.Fatalf("%d pods at once", len(running))
		}
		return running
	}
	ended := map[string]bool{}
	for len(ended) < all {
		await(t, func() error {
			if got := len(pods()); got < min(limit, all-len(ended)) {
				return fmt.Errorf("%d pods, and %d sessions to go", got, all-len(ended))
			}
			return nil
		})
		// Half way another manager takes over.
		if len(ended) == all/2 && stop != nil {
			stop()
			startManagerOf(t, workers, "parley-system", ns)
			stop = nil
		}
		for _, pod := range pods() {
			conversation := pod.Labels[v1alpha1.LabelConversation]
			k := kubelet{t, ns, conversation}
			k.set(func(p aPod) { p.Ended(0, `{"reason":"Completed"}`, 0) })
			ended[conversation] = true
		}
	}
}

func TestAQueuedSessionThatCannotStartHoldsUpNobody(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	startManager(t, ns)
	replay := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "replay"},
		Data: map[string]string{"x": "[]"}}
	create(t, userSettings(ns, "ada"), replay, makeConversation(ns, "a").With(ofClass(name)).Obj())
	k := kubelet{t, ns, "a"}
	k.start()
	create(t, makeConversation(ns, "b").With(ofClass(name)).With(func(s *v1alpha1.ConversationSpec) {
		s.ReplayJSONRef = &v1alpha1.ConfigMapKeyRef{Name: "replay", Key: "x"}
	}).Obj())
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	create(t, makeConversation(ns, "c").With(ofClass(name)).Obj())
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := env.Client.Delete(t.Context(), replay); err != nil {
		t.Fatal(err)
	}
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	k.end(`{"reason":"Completed"}`)
	kubelet{t, ns, "c"}.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

func TestTheNextStartsWhenThePodOfADeletedOneIsGone(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	startManager(t, ns)
	first := makeConversation(ns, "a").With(ofClass(name)).Obj()
	create(t, userSettings(ns, "ada"), userSettings(ns, "grace"), first)
	k := kubelet{t, ns, "a"}
	k.start()
	awaitState(t, ns, "a", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	create(t, makeConversation(ns, "b").With(ofClass(name)).Obj())
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := env.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	// By the time another user's session was started, the deletion was seen. Nothing here collects
	// garbage, so the pod stays.
	create(t, makeConversation(ns, "other").With(func(s *v1alpha1.ConversationSpec) {
		s.UserSettingsName =
			"grace"
	}).Obj())
	kubelet{t, ns, "other"}.start()
	awaitState(t, ns, "other", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if err := gone(t, kubelet{t, ns, "b"}.object()); err != nil {
		t.Error(errors.Join(err, errors.New("the first pod still runs")))
	}
	if err := env.Client.Delete(t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	kubelet{t, ns, "b"}.start()
	awaitState(t, ns, "b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// refusing is a class whose pods the API server refuses, and which bounds as another does.
func refusing(t *testing.T, namespace string, most int32) *v1alpha1.SessionClass {
	t.Helper()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "refusing-" + namespace},
		Spec: v1alpha1.SessionClassSpec{
			MaxSessionsPerUser: ptr.To(most), Placement: &v1alpha1.SessionPlacement{RuntimeClassName: ptr.To("none-" +
				namespace)},
		}}
	create(t, class)
	t.Cleanup(func() { _ = env.Client.Delete(t.Context(), class) })
	return class
}

func TestASessionThatIsRefusedGivesItsTurnToTheNext(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	refused := refusing(t, ns, 1)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(refused.Name)).Obj())
	awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	create(t, makeConversation(ns, "b").With(ofClass(name)).Obj())
	b := kubelet{t, ns, "b"}
	b.start()
	awaitState(t, ns, "b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	// What stood in its way is gone. It tries again when there is a place for it, and not before.
	waits := awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if !strings.Contains(waits.Status.Message, "none-"+ns) {
		t.Errorf("it does not say why it was refused: %s", waits.Status.Message)
	}
	change(t, refused, func(c *v1alpha1.SessionClass) { c.Spec.Placement.RuntimeClassName = nil })
	create(t, makeConversation(ns, "c").With(ofClass(name)).Obj())
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := gone(t, kubelet{t, ns, "a"}.object()); err != nil {
		t.Error(err)
	}
	b.end(`{"reason":"Completed"}`)
	kubelet{t, ns, "a"}.start()
	awaitState(t, ns, "a", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// Each of those that wait would make its Secret, its volume and no pod.
func TestAQuotaDoesNotEmptyTheQueue(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	quota := noPods(t, ns)
	create(t, userSettings(ns, "ada"))
	for _, c := range []string{"a", "b", "c"} {
		create(t, makeConversation(ns, c).With(ofClass(name)).Obj())
	}
	p := newTimedProcess(t, ns, managerClient(t))
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	for range 3 {
		p.look("a")
		p.finds("b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
		p.waits(time.Second)
		p.finds("c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	}
	if p.hasSecret("b") || p.hasSecret("c") {
		t.Error("those that wait try as well")
	}
	// Each has two tries, and the next is not called before the second.
	p.waits(retrySoonest)
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.finds("b", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.finds("c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	p.waits(retrySoonest)
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if p.hasSecret("c") {
		t.Error("the whole queue tries")
	}
	if err := env.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		p.waits(retrySoonest)
		for _, name := range []string{"a", "b", "c"} {
			p.look(name)
		}
		if pods := len(runningPods(t, ns)); pods != 1 {
			return fmt.Errorf("there are %d pods", pods)
		}
		return nil
	})
}

// It may ask for more than another does.
func TestASessionThatAQuotaRefusesHoldsUpNobodyForLong(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	nothingOf(t, ns, corev1.ResourceRequestsStorage)
	large := func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} }
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(name)).With(large).Obj(),
		makeConversation(ns, "b").With(ofClass(name)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.finds("b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	// Whoever waits for it does not wait for its slower and slower tries.
	p.waits(time.Minute)
	p.look("a")
	p.look("b")
	b := kubelet{t, ns, "b"}
	b.start()
	p.finds("b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	p.waits(retrySoonest)
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	b.end(`{"reason":"Completed"}`)
	p.finds("b", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	p.look("b")
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
}

func TestWhoHasAPlaceTriesAgainSoon(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(refusing(t, ns, 1).Name)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.look("a")
	p.waits(4 * time.Minute)
	if again := p.look("a").RequeueAfter; again < time.Minute { // the second time, so that it has no place
		t.Errorf("it tries again in %s", again)
	}
	p.waits(4 * time.Minute)
	if again := p.look("a").RequeueAfter; again > 2*retrySoonest {
		t.Errorf("who waits for its place waits for %s", again)
	}
}

func TestNoDeadlineCountsWhileOneThatWasRefusedWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(refusing(t, ns, 1).Name)).Obj(),
		makeConversation(ns, "b").With(ofClass(name)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.look("a")
	p.waits(retrySoonest)
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.look("b")
	b := kubelet{t, ns, "b"}
	b.start()
	p.finds("b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	p.waits(retrySoonest)
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	p.waits(time.Hour)
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	b.end(`{"reason":"Completed"}`)
	p.finds("b", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	p.look("b")
	// It has all its time when it is its turn, also by what another process knows.
	p = timedProcess{newProcess(p.client, p.client), t, ns, p.now}
	p.clock = p.now
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.waits(9 * time.Minute)
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	p.waits(time.Minute)
	if s := p.finds("a", v1alpha1.StateStopped, v1alpha1.ReasonStartDeadlineExceeded); !strings.Contains(s.Message,
		"stuck at Rejected: create Pod: ") {
		t.Errorf("it says %s", s.Message)
	}
}

func TestARefusedSessionThatMustWaitIsNotStoppedAtItsDeadline(t *testing.T) {
	t.Parallel()
	for reason, wait := range map[string]func(p timedProcess){
		v1alpha1.ReasonQueued: func(p timedProcess) {
			p.look("b")
			kubelet{p.t, p.namespace, "b"}.start()
			p.finds("b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		},
		v1alpha1.ReasonSettingsNotReady: func(p timedProcess) {
			if err := env.Client.Delete(p.t.Context(), userSettings(p.namespace, "ada")); err != nil {
				p.t.Fatal(err)
			}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			ns := env.Namespace(t, nil)
			name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
			create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(refusing(t, ns, 1).Name)).Obj(),
				makeConversation(ns, "b").With(ofClass(name)).Obj())
			p := newTimedProcess(t, ns, managerClient(t))
			p.look("a")
			p.waits(retrySoonest)
			p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonRejected) // the second time, so that it has no slot
			wait(p)
			p.waits(time.Hour)
			p.finds("a", v1alpha1.StateStarting, reason)
		})
	}
}

// Each write is a reason to look again. Sessions that are refused, and take a place in turn to try,
// would keep each other busy without end.
func TestASessionThatIsRefusedHasNothingNewToSayAtOnce(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := refusing(t, ns, 1).Name
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(class)).Obj(), makeConversation(ns,
		"b").With(ofClass(class)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	for range 4 { // until each was refused twice
		p.look("a")
		p.look("b")
		p.waits(retrySoonest)
	}
	p.look("a")
	p.look("b")
	before := len(testenv.Writes(t, auditDir, managerUser, ns))
	for range 3 {
		for _, name := range []string{"a", "b"} {
			if again := p.look(name).RequeueAfter; again != 0 && again < retrySoonest {
				t.Errorf("%s is looked at again in %s", name, again)
			}
		}
	}
	if writes := testenv.Writes(t, auditDir, managerUser, ns)[before:]; len(writes) > 0 {
		t.Errorf("they keep each other busy:\n%s", describe(writes))
	}
	// One that somebody changed may be another one now, and is in the queue as all are.
	change(t, theConversation(t, ns, "a"), func(c *v1alpha1.Conversation) { c.Spec.IdleTimeout.Duration += time.Minute })
	p.finds("a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
}

// The API server refuses a second pod before it looks whether it is a second one.
func TestASessionWhosePodTheCacheDoesNotShowKeepsItsPlace(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	patient := func(s *v1alpha1.ConversationSpec) { s.StartDeadline = &metav1.Duration{Duration: 24 * time.Hour} }
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").With(ofClass(name)).With(patient).Obj(),
		makeConversation(ns, "b").With(ofClass(name)).Obj())
	manager := managerClient(t)
	newTimedProcess(t, ns, manager).look("a")
	kubelet{t, ns, "a"}.pod()
	noPods(t, ns)
	late := newTimedProcess(t, ns, behind{Client: manager, noPods: true})
	await(t, func() error {
		late.waits(podTimeout)
		late.look("a")
		if s := theConversation(t, ns, "a").Status; s.Reason != v1alpha1.ReasonRejected {
			return fmt.Errorf("it is %s", s.Reason)
		}
		return nil
	})
	late.waits(podTimeout)
	late.look("a") // for the second time, after which one without a pod gives its place away
	late.finds("b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
}
