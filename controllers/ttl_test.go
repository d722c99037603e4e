package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAnEndedPodIsDeletedAfterItsTTL(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{Lifetimes: &v1alpha1.SessionLifetimes{
		EndedPodTTL: &metav1.Duration{Duration: time.Hour}}})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").With(ofClass(class)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.reconcile("c")
	k := kubelet{t, ns, "c"}
	k.set(func(pod aPod) { pod.Ready() })
	p.expect("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.end(`{"reason":"Failed","message":"no such branch"}`)
	p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if again := p.reconcile("c").RequeueAfter; again <= time.Hour-time.Minute || again > time.Hour {
		t.Errorf("requeued in %s", again)
	}
	if err := gone(t, k.object()); err == nil {
		t.Error("the pod was deleted before its TTL")
	}
	p.advance(time.Hour)
	p.reconcile("c")
	if err := gone(t, k.object()); err != nil {
		t.Errorf("after the TTL: %v", err)
	}
	p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if again := p.reconcile("c").RequeueAfter; again != 0 {
		t.Errorf("requeued in %s although nothing is left to do", again)
	}
}

func TestAnEndedPodStaysWhileItsPhaseIsStillRunning(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.set(func(p aPod) { p.Ended(0, `{"reason":"Completed"}`, 0).Phase(corev1.PodRunning) })
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	await(t, func() error { return gone(t, secretWith(ns, v1alpha1.SessionName("c"), "")) }) // the end is handled
	if pod := k.pod(); pod.DeletionTimestamp != nil {
		t.Error("the pod was deleted with its logs")
	}
}

func TestAConversationIsDeletedAfterItsTTLEvenIfItsVolumeIsDue(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{
		Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")},
		TTL:       &metav1.Duration{Duration: time.Hour},
	}})
	conversation := makeConversation(ns, "c").With(ofClass(class)).With(func(s *v1alpha1.ConversationSpec) {
		s.TTLAfterStopped = &metav1.Duration{Duration: time.Hour}
	}).Obj()
	create(t, userSettings(ns, "ada"), conversation)
	p := newTimedProcess(t, ns, managerClient(t))
	p.reconcile("c")
	k := kubelet{t, ns, "c"}
	k.set(func(pod aPod) { pod.Ready() })
	p.expect("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.end(`{"reason":"Completed"}`)
	p.expect("c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	p.advance(2 * time.Hour)
	p.reconcile("c")
	if left := gone(t, conversation); left != nil {
		t.Error(left)
	}
}
