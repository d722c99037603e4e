package controllers

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func (w *warmth) changeClass(with func(*v1alpha1.SessionClassSpec)) {
	w.Helper()
	change(w.T, &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: w.class}},
		func(class *v1alpha1.SessionClass) { with(&class.Spec) })
}

func (w *warmth) awaitReplaced(before []corev1.Pod, n int) {
	w.Helper()
	await(w.T, func() error {
		pods := w.pods()
		for _, pod := range pods {
			if slices.ContainsFunc(before, func(old corev1.Pod) bool { return old.UID == pod.UID }) {
				return fmt.Errorf("pod %s is still there", pod.Name)
			}
		}
		if len(pods) != n {
			return fmt.Errorf("%d warm pods, want %d", len(pods), n)
		}
		return nil
	})
}

func TestAWarmPodHasNoDataOfAUser(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	w.manage()
	pod := w.awaitReady(1)[0]
	if pod.Labels[v1alpha1.LabelConversation] != "" || pod.Labels[v1alpha1.LabelSessionClass] != w.class ||
		pod.Labels[v1alpha1.LabelComponent] != v1alpha1.ComponentSession || pod.Spec.Hostname != pod.Name {
		t.Errorf("the pod has the labels %v and the hostname %s", pod.Labels, pod.Spec.Hostname)
	}
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(&pod), secret); err != nil {
		t.Fatal(err)
	}
	if len(secret.Data) != 1 || secret.Type != v1alpha1.SecretTypeWarm || !owned(secret, &pod) ||
		len(secret.Data[session.BindKeyFile]) == 0 {
		t.Errorf("the Secret has %d keys and the type %s", len(secret.Data), secret.Type)
	}
	var policies networkingv1.NetworkPolicyList
	var services corev1.ServiceList
	for _, list := range []client.ObjectList{&policies, &services} {
		if err := env.Client.List(t.Context(), list, client.InNamespace(w.namespace)); err != nil {
			t.Fatal(err)
		}
	}
	if len(policies.Items) == 0 || len(services.Items) != 1 || policies.Items[0].CreationTimestamp.After(
		pod.CreationTimestamp.Time) {
		t.Error("the namespace of a warm pod has no Service or NetworkPolicy")
	}
}

func TestWarmPodsAreReplacedWhenTheirClassChanges(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 2)
	w.manage()
	before := w.awaitReady(2)
	w.changeClass(func(s *v1alpha1.SessionClassSpec) {
		s.Placement = &v1alpha1.SessionPlacement{NodeSelector: map[string]string{"disk": "ssd"}}
	})
	w.awaitReplaced(before, 2)
	w.changeClass(func(s *v1alpha1.SessionClassSpec) { s.Warm.Size = 1 })
	w.awaitReady(1)
	w.changeClass(func(s *v1alpha1.SessionClassSpec) { s.MaxRestarts = ptr.To[int32](9) }) // does not change the pods
	w.start("c")
	if c := w.awaitRunning("c"); w.podOf(c).Spec.NodeSelector["disk"] != "ssd" || c.Status.PodName == "c-session" {
		t.Errorf("runs in %s", c.Status.PodName)
	}
	w.changeClass(func(s *v1alpha1.SessionClassSpec) {
		s.Warm.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "other"}}
	})
	w.awaitReady(0)
	w.awaitRunning("c") // it keeps its pod
	await(t, func() error {
		class := &v1alpha1.SessionClass{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Name: w.class}, class); err != nil {
			return err
		}
		if ptr.Deref(class.Status.Warm, -1) != 0 || ptr.Deref(class.Status.WantedWarm, -1) != 0 {
			return fmt.Errorf("the status of the class is %+v", class.Status)
		}
		return nil
	})
}

func TestWarmPodsExistOnlyInNamespacesWithMatchingLabels(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	w.changeClass(func(s *v1alpha1.SessionClassSpec) {
		s.Warm.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"warm": w.namespace}}
	})
	options := w.options()
	options.Namespaces = []string{}
	startManagerOptions(t, 4, w.namespace, options)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	change(t, namespace, func(n *corev1.Namespace) { metav1.SetMetaDataLabel(&n.ObjectMeta, "warm", w.namespace) })
	w.awaitReady(1)
	change(t, namespace, func(n *corev1.Namespace) { delete(n.Labels, "warm") })
	w.awaitReady(0)
}

func TestWarmPodsAreDeletedWithTheirClass(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 2)
	w.manage()
	w.awaitReady(2)
	if err := env.Client.Delete(t.Context(), &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{
		Name: w.class}}); err != nil {
		t.Fatal(err)
	}
	w.awaitReady(0)
}

func TestWarmPodsSurviveARestartOfTheManager(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 2)
	stop := w.manage()
	before := w.awaitReady(2)
	stop()
	w.manage()
	w.start("c")
	c := w.awaitRunning("c")
	if !slices.ContainsFunc(before, func(pod corev1.Pod) bool { return pod.Name == c.Status.PodName }) {
		t.Errorf("runs in %s", c.Status.PodName)
	}
}

func TestFailedWarmPodsAreReplaced(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 2)
	w.manage()
	before := w.awaitReady(2)
	if err := w.kubelet.Restart(t.Context(), client.ObjectKeyFromObject(&before[0])); err != nil {
		t.Fatal(err)
	}
	w.awaitReplaced(before[:1], 2)
}

// The kubelet never starts a pod whose Secret or volume is missing, so the manager must delete such
// a warm pod.
func TestAWarmPodWithoutItsSecretOrVolumeIsDeleted(t *testing.T) {
	t.Parallel()
	for name, complete := range map[string]func(*corev1.Secret){
		"no Secret": func(*corev1.Secret) {},
		"no volume": func(secret *corev1.Secret) { create(t, secret) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWarmth(t, 1, func(s *v1alpha1.SessionClassSpec) {
				s.Workspace = &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: "1Gi",
					StorageClassName: ptr.To("fast")}}
			})
			stop := w.manage()
			ready := w.awaitReady(1)[0]
			stop()
			orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "warm-orphan",
				Labels: ready.Labels, OwnerReferences: ready.OwnerReferences}, Spec: ready.Spec}
			orphan.Spec.NodeName = ""
			if err := env.Client.Delete(t.Context(), &ready); err != nil {
				t.Fatal(err)
			}
			create(t, orphan)
			// The pod must not start. Because the fake kubelet does not check volumes, unlike a real
			// kubelet, the invalid key prevents the start.
			complete(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: orphan.Name},
				StringData: map[string]string{session.BindKeyFile: "invalid!"}})
			w.manage()
			await(t, func() error { return gone(t, orphan) })
		})
	}
}

func TestAWarmPodStaysIfTheAnswerToTheCreationOfItsVolumeIsLost(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1, withVolume)
	lost := &crash{method: http.MethodPost, path: w.namespace + "/persistentvolumeclaims", onlyAnswer: true}
	w.manage(lost.wrap)
	w.awaitReady(1)
	if !lost.done.Load() {
		t.Fatal("no answer was lost")
	}
	for _, write := range testenv.Writes(t, auditDir, managerUser, w.namespace) {
		if write.Verb == "delete" && write.Object.Resource == "pods" {
			t.Errorf("the manager deleted the pod %s", write.Object.Name)
		}
	}
}

func TestAWarmPodIsDeletedToMakeRoomForARefusedSession(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 3)
	w.manage()
	before := w.awaitReady(3)
	slices.SortFunc(before, func(a, b corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	quota := denyPods(t, w.namespace)
	w.start("c", func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} })
	awaitState(t, w.namespace, "c", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	for _, pod := range w.awaitReady(2) {
		if pod.UID == before[2].UID {
			t.Errorf("the newest pod %s is left; a session claims the oldest one", pod.Name)
		}
	}
	if err := env.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	w.awaitRunning("c")
	if n := len(w.pods()); n == 0 || n == 3 {
		t.Errorf("%d warm pods are left", n)
	}
}

func TestOnlyExceededQuotasAndFullNodesCountAsLackOfRoom(t *testing.T) {
	t.Parallel()
	forbidden := func(text string) error {
		return apierrors.NewForbidden(corev1.Resource("pods"), "c-session", errors.New(text))
	}
	if !exceedsQuota(fmt.Errorf("create Pod: %w", forbidden("exceeded quota: few, requested: pods=1, used: pods=2"))) {
		t.Error("an exceeded quota does not count")
	}
	if exceedsQuota(forbidden("image is not allowed")) || exceedsQuota(errors.New("exceeded quota")) || exceedsQuota(nil) {
		t.Error("another refusal counts as an exceeded quota")
	}
	for message, want := range map[string]bool{
		"0/2 nodes are available: 2 Insufficient cpu.":                              true,
		"0/2 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint": true,
		"0/2 nodes are available: 2 node(s) didn't match Pod's node selector.":      false,
	} {
		pod := podOf(makeConversation("ns", "c")).Condition(corev1.PodScheduled, false, message).Pod
		pod.Status.Conditions[0].Reason = corev1.PodReasonUnschedulable
		if lifecycle.LacksRoom(pod) != want {
			t.Errorf("%s: lacks room: %t", message, !want)
		}
	}
	if lifecycle.LacksRoom(nil) {
		t.Error("a missing pod lacks room")
	}
}

func TestPoolsPauseWhileNoNodeHasRoomForASessionOfTheirNamespace(t *testing.T) {
	t.Parallel()
	pause, now := &warmPause{changed: func(string) {}}, metav1.Now().Time
	name := types.NamespacedName{Namespace: "ns", Name: "c"}
	pause.note(name, true, now)
	if left := pause.left("ns", now); left == 0 {
		t.Error("not paused")
	}
	pause.note(name, false, now)
	if left := pause.left("ns", now); left != minWarmPause {
		t.Errorf("paused for %s", left)
	}
	now = now.Add(minWarmPause)
	if left := pause.left("ns", now); left != 0 {
		t.Errorf("paused for %s", left)
	}
	pause.note(name, true, now)
	pause.note(name, false, now)
	if left := pause.left("ns", now); left != 2*minWarmPause {
		t.Errorf("paused for %s the second time", left)
	}
	if pause.takeRoom("ns") {
		t.Error("a warm pod makes room for no session")
	}
}

func TestTheNumberOfWarmPodsDeletedForOneSessionIsLimited(t *testing.T) {
	t.Parallel()
	pause, now := &warmPause{changed: func(string) {}}, metav1.Now().Time
	taken := func() (n int) {
		for pause.takeRoom("ns") {
			n++
		}
		return n
	}
	first, second := types.NamespacedName{Namespace: "ns", Name: "a"}, types.NamespacedName{Namespace: "ns", Name: "b"}
	pause.note(first, true, now)
	pause.note(first, true, now)
	pause.note(second, true, now)
	if n := taken(); n != 2 {
		t.Errorf("%d warm pods make room for two sessions", n)
	}
	pause.note(second, false, now)
	all := 1
	for end := now.Add(maxRoomWait); now.Before(end); now = now.Add(roomInterval / 2) {
		pause.note(first, true, now)
		all += taken()
	}
	if all != maxRoom {
		t.Errorf("%d warm pods make room for one session", all)
	}
	if left := pause.left("ns", now.Add(time.Second)); left != 0 {
		t.Errorf("paused for %s by a session that never fits", left)
	}
}

func TestWarmPodsAreReplacedAfterARotationOfTheSnapshotSecret(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	allowOwnSecrets(t, w.namespace)
	options := w.options()
	options.Namespace = w.namespace
	startManagerOptions(t, 4, w.namespace, options)
	before := w.awaitReady(1)
	change(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: session.SigningSecret}},
		func(s *corev1.Secret) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, session.AnnotationRotateSnapshotSecret, "1")
		})
	w.awaitReplaced(before, 1)
}
