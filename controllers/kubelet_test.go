package controllers

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

// kubelet simulates the scheduler and the kubelet for one session's pod.
type kubelet struct {
	t               *testing.T
	namespace, name string
}

func (k kubelet) pod() *corev1.Pod {
	k.t.Helper()
	pod := &corev1.Pod{}
	await(k.t, func() error {
		return env.Client.Get(k.t.Context(), client.ObjectKey{Namespace: k.namespace, Name: v1alpha1.SessionName(k.name)},
			pod)
	})
	return pod
}

func (k kubelet) set(change func(aPod)) {
	k.t.Helper()
	await(k.t, func() error {
		pod := k.pod()
		change(aPod{Pod: pod})
		backdate(pod)
		return env.Client.Status().Update(k.t.Context(), pod)
	})
}

// backdate moves the times of the pod's steps into the past. The manager writes a step to the
// status only after the step has lasted for a while, so it writes a backdated step immediately.
func backdate(pod *corev1.Pod) {
	then := metav1.NewTime(time.Now().Add(-time.Minute))
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].LastTransitionTime = then
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if running := statuses[i].State.Running; running != nil {
				running.StartedAt = then
			}
		}
	}
}

// bind assigns a node to the pod. From then on, only the kubelet can complete the deletion of the
// pod.
func (k kubelet) bind() {
	k.t.Helper()
	if err := fakekubelet.Bind(k.t.Context(), env.Client, k.pod(), "node"); err != nil {
		k.t.Fatal(err)
	}
}

func (k kubelet) start() {
	k.t.Helper()
	k.bind()
	k.set(func(p aPod) { p.Ready() })
}

func (k kubelet) end(termination string) {
	k.t.Helper()
	k.set(func(p aPod) {
		p.Ended(0, termination, 0)
		p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.Now()
	})
}

func (k kubelet) object() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: v1alpha1.SessionName(k.name)}}
}

// releaseAttempt completes the deletion of an attempt's pod, unless it is already gone.
func (k kubelet) releaseAttempt(attempt string) {
	k.t.Helper()
	await(k.t, func() error {
		pod := k.object()
		if err := env.Client.Get(k.t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return client.IgnoreNotFound(err)
		}
		if pod.Labels[v1alpha1.LabelAttempt] != attempt {
			return nil
		}
		return fakekubelet.Release(k.t.Context(), env.Client, pod)
	})
}

// release completes the deletion of the pod, like a kubelet after the pod's containers ended.
func (k kubelet) release() {
	k.t.Helper()
	pod := k.pod()
	await(k.t, func() error {
		if err := env.Client.Get(k.t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return client.IgnoreNotFound(err)
		}
		return fakekubelet.Release(k.t.Context(), env.Client, pod)
	})
}

func (k kubelet) awaitReplacement(before *corev1.Pod) {
	k.t.Helper()
	await(k.t, func() error {
		if k.pod().UID == before.UID {
			return errors.New("still the old pod")
		}
		return nil
	})
}

func userSettings(namespace, name string) *v1alpha1.UserSettings {
	return &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func secretWith(namespace, name, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		StringData: map[string]string{"key": value}}
}
