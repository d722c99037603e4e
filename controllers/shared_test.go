package controllers

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// decoded is a pod as it comes from the API server: nothing in it is shared with another one.
func decoded(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := podOf(makeConversation("default", name)).ready().DeepCopy()
	pod.Name, pod.Labels = name, map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
		v1alpha1.LabelConversation: name, v1alpha1.LabelAttempt: "1"}
	pod.Spec.Containers = []corev1.Container{{Name: sessionContainer, Image: "example.com/image:1",
		Args: []string{"much"}}}
	content, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	pod = &corev1.Pod{}
	if err := pod.Unmarshal(content); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestTheCacheKeepsOnceWhatManyPodsSay(t *testing.T) {
	var kept []*corev1.Pod
	for i := range 2 {
		pod := decoded(t, fmt.Sprintf("pod-%d", i))
		before := pod.DeepCopy()
		if _, err := stripPod(pod); err != nil {
			t.Fatal(err)
		}
		if pod.Labels[v1alpha1.LabelConversation] != before.Name || pod.Spec.Containers[0].Image != "example.com/image:1" ||
			!podReady(pod) ||
			sessionStatus(pod).State.Running == nil {
			t.Errorf("what is read of a pod is gone: %+v", pod)
		}
		kept = append(kept, pod)
	}
	for what, of := range map[string]func(*corev1.Pod) string{
		"a label's value":    func(p *corev1.Pod) string { return p.Labels[v1alpha1.LabelManagedBy] },
		"a condition's type": func(p *corev1.Pod) string { return string(podCondition(p, corev1.PodReady).Type) },
		"an image":           func(p *corev1.Pod) string { return p.Spec.Containers[0].Image },
		"a container's name": func(p *corev1.Pod) string { return sessionStatus(p).Name },
	} {
		if a, b := of(kept[0]), of(kept[1]); unsafe.StringData(a) != unsafe.StringData(b) {
			t.Errorf("%s, %q, is kept twice", what, a)
		}
	}
	if &kept[0].Spec.Containers[0] != &kept[1].Spec.Containers[0] {
		t.Error("the containers of the same images are kept twice")
	}
	other := decoded(t, "other")
	other.Spec.Containers[0].Image = "example.com/image:2"
	if _, err := stripPod(other); err != nil || other.Spec.Containers[0].Image != "example.com/image:2" {
		t.Errorf("a pod of another image has %q, %v", other.Spec.Containers[0].Image, err)
	}
}

func TestOfASessionsSecretIsKeptWhoseItIs(t *testing.T) {
	owner := makeConversation("default", "c").obj()
	owner.UID = "c-uid"
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "c-session", UID: "s-uid", Labels: sessionLabels(owner),
		Annotations: map[string]string{annotationInputs: "x"}, OwnerReferences: sessionOwner(owner),
	}}
	if _, err := stripSecret(secret); err != nil || !owned(secret, owner) || secret.UID != "s-uid" ||
		len(secret.Labels)+len(secret.Annotations) > 0 {
		t.Errorf("kept is %+v, %v", secret, err)
	}
	settings := secret.DeepCopy()
	settings.OwnerReferences, settings.Labels = nil, map[string]string{v1alpha1.LabelUserSettings: "ada"}
	if _, err := stripSecret(settings); err != nil || keptFor(settings) != "ada" {
		t.Errorf("kept of a user's Secret is %+v, %v", settings, err)
	}
}

func TestSharedTextsAreBounded(t *testing.T) {
	s := &sharedValues[string]{}
	for i := range 2 * mostShared {
		if text := fmt.Sprint(i); s.of(text, strings.Clone) != text {
			t.Fatalf("%s became another text", text)
		}
	}
	if len(s.values) != mostShared {
		t.Errorf("%d texts are kept, want %d", len(s.values), mostShared)
	}
}
