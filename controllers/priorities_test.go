package controllers

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestAStartIsFinishedBeforeAnotherStartBegins(t *testing.T) {
	t.Parallel()
	queue := priorityqueue.New[reconcile.Request](t.Name())
	defer queue.ShutDown()
	byName := func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{requestFor("ns", o.GetName())}
	}
	object := func(name string) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	changed := func(name string) event.UpdateEvent {
		before, after := object(name), object(name)
		before.ResourceVersion, after.ResourceVersion = "1", "2"
		return event.UpdateEvent{ObjectOld: before, ObjectNew: after}
	}
	pods, secrets := withPriority(podPriority, byName), withPriority(sharedPriority, byName)
	conversations := &handler.EnqueueRequestForObject{}
	pods.Create(t.Context(), event.CreateEvent{Object: object("known"), IsInInitialList: true}, queue)
	secrets.Update(t.Context(), changed("waiting"), queue)
	conversations.Create(t.Context(), event.CreateEvent{Object: object("new")}, queue)
	pods.Update(t.Context(), changed("ready"), queue)
	for _, want := range []string{"ready", "new", "waiting", "known"} {
		if got, _, _ := queue.GetWithPriority(); got.Name != want {
			t.Errorf("%s is reconciled before %s", got.Name, want)
		}
	}
}
