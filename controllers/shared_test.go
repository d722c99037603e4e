package controllers

import (
	"fmt"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// decoded is a pod as it comes from the API server: nothing in it is shared with another one.
func decoded(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := podOf(makeConversation("default", name)).ready().DeepCopy()
	pod.Name, pod.Labels = name, map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelConversation: name, v1alpha1.LabelAttempt: "1"}
	pod.Spec.Containers = []corev1.Container{{Name: sessionContainer, Image: "example.com/image:1", Args: []string{"much"}}}
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
		if pod.Labels[v1alpha1.LabelConversation] != before.Name || pod.Spec.Containers[0].Image != "example.com/image:1" || !podReady(pod) ||
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
}

func TestSharedTextsAreBounded(t *testing.T) {
	s := &sharedTexts{texts: map[string]string{}}
	for i := range 2 * mostShared {
		if text := fmt.Sprint(i); s.of(text) != text {
			t.Fatalf("%s became another text", text)
		}
	}
	if len(s.texts) != mostShared {
		t.Errorf("%d texts are kept, want %d", len(s.texts), mostShared)
	}
}
