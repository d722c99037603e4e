package controllers

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
