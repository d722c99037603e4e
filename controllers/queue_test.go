package controllers

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// runningPods are the pods of a namespace in which something runs or may run.
func runningPods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := env.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !takesPlace(&p) })
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
			if err := env.Client.Create(t.Context(), makeConversation(ns, fmt.Sprintf("c-%03d", i)).with(ofClass(name)).obj()); err != nil {
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
			k.set(func(p aPod) { p.ended(0, `{"reason":"Completed"}`, 0) })
			ended[conversation] = true
		}
	}
}

func TestAQueuedSessionThatCannotStartHoldsUpNobody(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	startManager(t, ns)
	replay := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "replay"}, Data: map[string]string{"x": "[]"}}
	create(t, userSettings(ns, "ada"), replay, makeConversation(ns, "a").with(ofClass(name)).obj())
	k := kubelet{t, ns, "a"}
	k.start()
	create(t, makeConversation(ns, "b").with(ofClass(name)).with(func(s *v1alpha1.ConversationSpec) {
		s.ReplayJSONRef = &v1alpha1.ConfigMapKeyRef{Name: "replay", Key: "x"}
	}).obj())
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	create(t, makeConversation(ns, "c").with(ofClass(name)).obj())
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
	first := makeConversation(ns, "a").with(ofClass(name)).obj()
	create(t, userSettings(ns, "ada"), userSettings(ns, "grace"), first)
	k := kubelet{t, ns, "a"}
	k.start()
	awaitState(t, ns, "a", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	create(t, makeConversation(ns, "b").with(ofClass(name)).obj())
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := env.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	// By the time another user's session was started, the deletion was seen. Nothing here collects
	// garbage, so the pod stays.
	create(t, makeConversation(ns, "other").with(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "grace" }).obj())
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
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "refusing-" + namespace}, Spec: v1alpha1.SessionClassSpec{
		MaxSessionsPerUser: ptr.To(most), Placement: &v1alpha1.SessionPlacement{RuntimeClassName: ptr.To("none-" + namespace)},
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
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").with(ofClass(refused.Name)).obj())
	awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	create(t, makeConversation(ns, "b").with(ofClass(name)).obj())
	b := kubelet{t, ns, "b"}
	b.start()
	awaitState(t, ns, "b", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	// What stood in its way is gone. It tries again when there is a place for it, and not before.
	change(t, refused, func(c *v1alpha1.SessionClass) { c.Spec.Placement.RuntimeClassName = nil })
	create(t, makeConversation(ns, "c").with(ofClass(name)).obj())
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := gone(t, kubelet{t, ns, "a"}.object()); err != nil {
		t.Error(err)
	}
	awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	b.end(`{"reason":"Completed"}`)
	kubelet{t, ns, "a"}.start()
	awaitState(t, ns, "a", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// Each of those that wait would make its Secret, its volume and no pod.
func TestAQuotaDoesNotEmptyTheQueue(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	startManager(t, ns)
	quota := noPods(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").with(ofClass(name)).obj())
	awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	create(t, makeConversation(ns, "b").with(ofClass(name)).obj())
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := gone(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.SessionName("b")}}); err != nil {
		t.Error(err)
	}
	if err := env.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	kubelet{t, ns, "a"}.start()
	awaitState(t, ns, "a", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// Each write is a reason to look again. Sessions that are refused, and take a place in turn to try,
// would keep each other busy without end.
func TestASessionThatIsRefusedHasNothingNewToSayWhileItWaits(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").with(ofClass(refusing(t, ns, 1).Name)).obj(), makeConversation(ns, "b").with(ofClass(name)).obj())
	manager := managerClient(t)
	r := newProcess(manager, manager)
	look := func(name string) reconcile.Result {
		t.Helper()
		result, err := r.Reconcile(t.Context(), requestFor(ns, name))
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	look("a")
	before := awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	look("b")
	kubelet{t, ns, "b"}.pod()
	for range 3 {
		if again := look("a").RequeueAfter; again < retrySoonest {
			t.Errorf("it is looked at again in %s", again)
		}
	}
	if after := theConversation(t, ns, "a"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("it is %s %s (%s)", after.Status.State, after.Status.Reason, after.Status.Message)
	}
	// One that somebody changed may be another one now, and is in the queue as all are.
	change(t, before, func(c *v1alpha1.Conversation) { c.Spec.IdleTimeout.Duration += time.Minute })
	look("a")
	awaitState(t, ns, "a", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
}

// The API server refuses a second pod before it looks whether it is a second one.
func TestASessionWhosePodTheCacheDoesNotShowKeepsItsPlace(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "a").with(ofClass(name)).obj(), makeConversation(ns, "b").with(ofClass(name)).obj())
	manager := managerClient(t)
	if _, err := newProcess(manager, manager).Reconcile(t.Context(), requestFor(ns, "a")); err != nil {
		t.Fatal(err)
	}
	kubelet{t, ns, "a"}.pod()
	quota := noPods(t, ns)
	late := newProcess(behind{Client: manager, noPods: true}, manager)
	if _, err := late.Reconcile(t.Context(), requestFor(ns, "a")); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Reconcile(t.Context(), requestFor(ns, "b")); err != nil {
		t.Fatal(err)
	}
	awaitState(t, ns, "b", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
}
