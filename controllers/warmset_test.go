package controllers

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// freePod returns a warm pod without a session.
func freePod(namespace, class, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid"),
			Labels: map[string]string{v1alpha1.LabelWarm: "hash", v1alpha1.LabelSessionClass: class},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(),
				Kind: "SessionClass", Name: class, UID: "class-uid", Controller: ptr.To(true)}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func TestARelabelledWarmPodIsTrackedOnce(t *testing.T) {
	set, pod := newWarmSet(), freePod("ns", "class", "warm-1")
	for i := range 100 {
		pod = pod.DeepCopy()
		pod.Labels[v1alpha1.LabelSessionClass], pod.Labels[v1alpha1.LabelWarm] = fmt.Sprint("class-", i), fmt.Sprint(i)
		set.update(pod)
	}
	if len(set.pools) != 1 || len(set.ready) != 1 || !set.has("ns", "class-99") {
		t.Errorf("one pod is in %d pools, and ready in %d", len(set.pools), len(set.ready))
	}
	for name, change := range map[string]func(*corev1.Pod){
		"lost its label": func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelWarm) },
		"lost its class": func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelSessionClass); p.OwnerReferences = nil },
	} {
		set.update(pod)
		changed := pod.DeepCopy()
		change(changed)
		set.update(changed)
		if len(set.pods)+len(set.pools)+len(set.ready) != 0 {
			t.Errorf("a pod that %s is in %d pools", name, len(set.pools))
		}
	}
}

func TestAPodOwnedByAForeignSessionClassIsNotWarm(t *testing.T) {
	set, pod := newWarmSet(), freePod("ns", "class", "warm-1")
	pod.OwnerReferences[0].APIVersion = "example.com/v1"
	if set.update(pod); set.has("ns", "class") {
		t.Error("a pod of another API's SessionClass is in the pool")
	}
}
