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

// kubelet drives the status of one session's pod as a scheduler and a kubelet would. It stands in
// for them in tests.
type kubelet struct {
	t               *testing.T
	namespace, name string
}

// pod waits for the session's pod.
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
		longAgo(pod)
		return env.Client.Status().Update(k.t.Context(), pod)
	})
}

// longAgo makes each step of a start old enough to be worth a write.
func longAgo(pod *corev1.Pod) {
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

// bind gives the pod a node. From then on it is deleted only when the kubelet says so.
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

// object is the pod by its name.
func (k kubelet) object() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: v1alpha1.SessionName(k.name)}}
}

// letGoOf removes the pod of an attempt once it is told to stop, unless it is gone already.
func (k kubelet) letGoOf(attempt string) {
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

// letGo removes a pod that was told to stop, as a kubelet does when its containers have ended.
func (k kubelet) letGo() {
	k.t.Helper()
	pod := k.pod()
	await(k.t, func() error {
		if err := env.Client.Get(k.t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return client.IgnoreNotFound(err)
		}
		return fakekubelet.Release(k.t.Context(), env.Client, pod)
	})
}

// awaitAnother waits until the session has another pod.
func (k kubelet) awaitAnother(before *corev1.Pod) {
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
