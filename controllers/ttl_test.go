package controllers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAnEndedPodIsRemovedAfterItsTimeAndTheConversationStays(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := aClass(t, ns, v1alpha1.SessionClassSpec{Lifetimes: &v1alpha1.SessionLifetimes{
		EndedPodTTL: &metav1.Duration{Duration: time.Hour}}})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").With(ofClass(class)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.look("c")
	k := kubelet{t, ns, "c"}
	k.set(func(pod aPod) { pod.Ready() })
	p.finds("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.end(`{"reason":"Failed","message":"no such branch"}`)
	p.finds("c", v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if again := p.look("c").RequeueAfter; again <= time.Hour-time.Minute || again > time.Hour {
		t.Errorf("it is looked at again in %s", again)
	}
	if err := gone(t, k.object()); err == nil {
		t.Error("the pod is gone before its time, and its logs with it")
	}
	p.waits(time.Hour)
	p.look("c")
	if err := gone(t, k.object()); err != nil {
		t.Errorf("after its time: %v", err)
	}
	p.finds("c", v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if again := p.look("c").RequeueAfter; again != 0 {
		t.Errorf("nothing is left to do, and it is looked at again in %s", again)
	}
}

func TestAConversationIsDeletedAfterItsTimeThoughItsVolumeIsDueToo(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := aClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{
		Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")},
		TTL:       &metav1.Duration{Duration: time.Hour},
	}})
	conversation := makeConversation(ns, "c").With(ofClass(class)).With(func(s *v1alpha1.ConversationSpec) {
		s.TTLAfterStopped = &metav1.Duration{Duration: time.Hour}
	}).Obj()
	create(t, userSettings(ns, "ada"), conversation)
	p := newTimedProcess(t, ns, managerClient(t))
	p.look("c")
	k := kubelet{t, ns, "c"}
	k.set(func(pod aPod) { pod.Ready() })
	p.finds("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.end(`{"reason":"Completed"}`)
	p.finds("c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	p.waits(2 * time.Hour)
	p.look("c")
	if left := gone(t, conversation); left != nil {
		t.Error(left)
	}
}
