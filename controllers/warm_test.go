package controllers

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// warmth is a namespace for tests of warm pods. It contains a class with warm pods, a fake kubelet,
// and a record of all Binds.
type warmth struct {
	*testing.T
	namespace, class string
	kubelet          *fakekubelet.Kubelet
	port             int

	mu    sync.Mutex
	binds []bindCall
	// answer decides about each Bind; nil accepts all.
	answer func(bindCall) fakekubelet.Answer
}

type bindCall struct {
	pod, conversation types.UID
	attempt           int
	data              map[string][]byte
}

// newWarmth creates the class and starts the kubelet, but no manager.
func newWarmth(t *testing.T, size int32, change ...func(*v1alpha1.SessionClassSpec)) *warmth {
	t.Helper()
	w := &warmth{T: t, namespace: env.Namespace(t, nil)}
	spec := v1alpha1.SessionClassSpec{Warm: &v1alpha1.WarmPods{Size: size, NamespaceSelector: &metav1.LabelSelector{
		MatchLabels: map[string]string{corev1.LabelMetadataName: w.namespace}}}}
	for _, c := range change {
		c(&spec)
	}
	w.class = createClass(t, w.namespace, spec)
	settings := userSettings(w.namespace, "ada")
	settings.Spec.SessionClassName = &w.class
	create(t, settings)
	c, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	warm := &fakekubelet.WarmPods{Address: "0.0.0.0:0", Answer: w.record}
	w.kubelet, err = fakekubelet.Run(t.Context(), fakekubelet.Options{Client: c, Node: "node", Workers: 4,
		Namespace: w.namespace, Warm: warm})
	if err != nil {
		t.Fatal(err)
	}
	w.port = warm.Port()
	return w
}

func (w *warmth) record(_ types.NamespacedName, pod types.UID, bind *session.Bind) fakekubelet.Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	call := bindCall{pod, types.UID(bind.UID), bind.Attempt, bind.Data}
	w.binds = append(w.binds, call)
	if w.answer != nil {
		return w.answer(call)
	}
	return fakekubelet.Accept
}

func (w *warmth) calls() []bindCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.binds)
}

func (w *warmth) options() Options {
	return Options{Namespace: "parley-system", RuntimeImage: "example.com/parley:1", SessionPort: w.port}
}

func (w *warmth) manage(change ...func(*rest.Config)) (stop func()) {
	w.Helper()
	return startManagerOptions(w.T, 4, w.namespace, w.options(), change...)
}

// pods returns the warm pods without a session.
func (w *warmth) pods() (warm []corev1.Pod) {
	w.Helper()
	var list corev1.PodList
	if err := env.Client.List(w.Context(), &list, client.InNamespace(w.namespace),
		client.HasLabels{v1alpha1.LabelWarm}); err != nil {
		w.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return owningClass(&pod) == nil || pod.DeletionTimestamp != nil
	})
}

// awaitReady waits until the pool has exactly n pods, and all of them are ready.
func (w *warmth) awaitReady(n int) (pods []corev1.Pod) {
	w.Helper()
	await(w.T, func() error {
		if pods = w.pods(); len(pods) != n {
			return fmt.Errorf("%d warm pods, want %d", len(pods), n)
		}
		for i := range pods {
			if !lifecycle.PodReady(&pods[i]) {
				return fmt.Errorf("%s is not ready", pods[i].Name)
			}
			if lifecycle.WorkspaceClaim(&pods[i]) == "" {
				continue
			}
			// The fake kubelet may make a pod ready before the pod's volume claim exists, so wait
			// for the claim too.
			if err := env.Client.Get(w.Context(), client.ObjectKeyFromObject(&pods[i]), w.volumeOf(pods[i])); err != nil {
				return err
			}
		}
		return nil
	})
	return pods
}

func (w *warmth) start(name string, change ...func(*v1alpha1.ConversationSpec)) {
	w.Helper()
	c := withTask(w.namespace, name)
	for _, with := range change {
		c = c.With(with)
	}
	create(w.T, c.Obj())
}

func (w *warmth) awaitRunning(name string) *v1alpha1.Conversation {
	w.Helper()
	return awaitState(w.T, w.namespace, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// suspendRunning runs a session in a warm pod, refills the pool and then suspends the session. It
// returns the Conversation as it was while the session ran.
func (w *warmth) suspendRunning(name string) *v1alpha1.Conversation {
	w.Helper()
	w.manage()
	w.awaitReady(1)
	w.start(name)
	running := w.awaitRunning(name)
	w.awaitReady(1)
	change(w.T, running.DeepCopy(), func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	return running
}

// podOf returns the only pod that a Conversation owns.
func (w *warmth) podOf(c *v1alpha1.Conversation) *corev1.Pod {
	w.Helper()
	var list corev1.PodList
	if err := env.Client.List(w.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.Fatal(err)
	}
	pods := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !owned(&pod, c) })
	if len(pods) != 1 {
		w.Fatalf("%s has %d pods", c.Name, len(pods))
	}
	return &pods[0]
}

// writesOfSession returns the manager's writes for a session, from the given index on. It omits
// events and the writes that refill the pool.
func (w *warmth) writesOfSession(first int) (writes []string) {
	for _, write := range testenv.Writes(w.T, auditDir, managerUser, w.namespace)[first:] {
		if write.Object.Resource != "events" && (!strings.HasPrefix(write.Object.Name, "warm-") || write.Verb == "patch") &&
			write.Object.Name != "" {
			writes = append(writes, strings.TrimSuffix(fmt.Sprintf("%s %s/%s", write.Verb, write.Object.Resource,
				write.Object.Subresource), "/"))
		}
	}
	return writes
}

// This test is not parallel, so that the start is fast. During a slow start, the manager would also
// write the steps of the start to the status.
func TestAWarmStartCostsThreeWritesAndOneCall(t *testing.T) {
	w := newWarmth(t, 2)
	w.manage()
	w.awaitReady(2)
	before := len(testenv.Writes(t, auditDir, managerUser, w.namespace))
	w.start("c")
	c := w.awaitRunning("c")
	pod := w.podOf(c)
	if writes, want := w.writesOfSession(before), []string{"create secrets", "patch pods",
		"update conversations/status"}; !slices.Equal(writes, want) {
		t.Errorf("the writes are %q, want %q", writes, want)
	}
	calls := w.calls()
	if len(calls) != 1 || calls[0].pod != pod.UID || calls[0].conversation != c.UID || calls[0].attempt != 1 {
		t.Errorf("the calls are %+v", calls)
	}
	if secret := readSecret(t, env.Client, w.namespace, "c"); string(calls[0].data[session.KeyFile]) !=
		string(secret.Data[session.KeyFile]) {
		t.Error("the pod did not get the session's key")
	}
	s := c.Status
	if s.PodName != pod.Name || s.PodIP != pod.Status.PodIP || !strings.Contains(s.URL, "//"+pod.Name+".sessions.") ||
		s.StartTime.Time.Before(c.CreationTimestamp.Time) {
		t.Errorf("the status is %+v", s)
	}
	if pod.Labels[v1alpha1.LabelConversation] != "c" || pod.Labels[v1alpha1.LabelUserSettings] != "ada" ||
		pod.Labels[v1alpha1.LabelAttempt] != "1" || pod.Labels[v1alpha1.LabelProtocol] != v1alpha1.ProtocolHTTPS {
		t.Errorf("the labels of the pod are %v", pod.Labels)
	}
	w.awaitReady(2) // the pool is refilled
	await(t, func() error {
		class := &v1alpha1.SessionClass{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Name: w.class}, class); err != nil {
			return err
		}
		if ptr.Deref(class.Status.Warm, -1) != 2 || ptr.Deref(class.Status.WantedWarm, -1) != 2 {
			return fmt.Errorf("the status of the class is %+v", class.Status)
		}
		return nil
	})
}

func TestASessionStartsColdIfNoWarmPodFits(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	own := userSettings(w.namespace, "own")
	own.Spec.SessionClassName, own.Spec.SandboxBaseContainerImage = &w.class, ptr.To("example.com/mine:1")
	large := userSettings(w.namespace, "large")
	large.Spec.SessionClassName, large.Spec.RemoteRuntimeResourceFactor = &w.class, ptr.To[int32](2)
	create(t, own, large)
	w.manage()
	w.awaitReady(1)
	for name, change := range map[string]func(*v1alpha1.ConversationSpec){
		"own":       func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "own" },
		"large":     func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "large" },
		"workspace": func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} },
		"class":     func(s *v1alpha1.ConversationSpec) { s.SessionClassName = ptr.To(v1alpha1.DefaultSessionClass) },
	} {
		w.start(name, change)
		if c := w.awaitRunning(name); c.Status.PodName != v1alpha1.SessionName(name) {
			t.Errorf("%s runs in %s", name, c.Status.PodName)
		}
	}
	if calls := w.calls(); len(calls) != 0 {
		t.Errorf("%d sessions were bound", len(calls))
	}
}

func TestAWakingSessionGetsAWarmPod(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	first := w.suspendRunning("c")
	awaitState(t, w.namespace, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	change(t, first.DeepCopy(), func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	second := w.awaitRunning("c")
	if calls := w.calls(); second.Status.Attempt != 2 || second.Status.PodName == first.Status.PodName ||
		len(calls) != 2 || calls[1].attempt != 2 || second.Status.PodName != w.podOf(second).Name {
		t.Errorf("woke as attempt %d in pod %s after %d calls", second.Status.Attempt, second.Status.PodName, len(calls))
	}
}

// This test is not parallel, because other tests could slow the start down. During a slow start,
// the manager also writes the steps of the start to the status. The first of the four writes
// records the new attempt.
func TestAWakeCostsFourWritesOfTheManager(t *testing.T) {
	w := newWarmth(t, 1)
	first := w.suspendRunning("c")
	await(t, func() error {
		c := &v1alpha1.Conversation{}
		err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(first), c)
		if stopped := c.Status.State == v1alpha1.StateStopped && meta.IsStatusConditionTrue(c.Status.Conditions,
			v1alpha1.ConditionReady); err == nil && !stopped {
			err = fmt.Errorf("the session is not stopped: %+v", c.Status)
		}
		return err
	})
	before := len(testenv.Writes(t, auditDir, managerUser, w.namespace))
	change(t, first.DeepCopy(), func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	w.awaitRunning("c")
	if writes, want := w.writesOfSession(before), []string{"update conversations/status", "create secrets", "patch pods",
		"update conversations/status"}; !slices.Equal(writes, want) {
		t.Errorf("the writes are %q, want %q", writes, want)
	}
}

func TestASessionKeepsTheVolumeOfItsWarmPod(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1, func(s *v1alpha1.SessionClassSpec) {
		s.Workspace = &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")}}
	})
	w.manage()
	w.awaitReady(1)
	w.start("c")
	c := w.awaitRunning("c")
	volume := &corev1.PersistentVolumeClaim{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: c.Status.WorkspaceClaimName},
		volume); err != nil || !owned(volume, c) || volume.Name != c.Status.PodName {
		t.Fatalf("the volume %q has the owners %+v: %v", volume.Name, volume.OwnerReferences, err)
	}
	change(t, c.DeepCopy(), func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	awaitState(t, w.namespace, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	w.awaitReady(1)
	change(t, c.DeepCopy(), func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	c = w.awaitRunning("c")
	if pod := w.podOf(c); c.Status.PodName != "c-session" || c.Status.WorkspaceClaimName != volume.Name ||
		lifecycle.WorkspaceClaim(pod) != volume.Name {
		t.Errorf("woke in pod %s with volume %s", c.Status.PodName, lifecycle.WorkspaceClaim(pod))
	}
}

func TestARestartedContainerIsBoundAgain(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	stop := w.manage()
	w.awaitReady(1)
	w.start("c")
	c := w.awaitRunning("c")
	stop()
	w.manage() // the new manager must not bind a running session
	w.awaitReady(1)
	w.start("other")
	w.awaitRunning("other")
	if calls := w.calls(); len(calls) != 2 {
		for i := range calls {
			calls[i].data = nil
		}
		t.Fatalf("calls after a restart of the manager: %+v", calls)
	}
	if err := w.kubelet.Restart(t.Context(), types.NamespacedName{Namespace: w.namespace,
		Name: c.Status.PodName}); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		c = getConversation(t, w.namespace, "c")
		if calls := w.calls(); len(calls) != 3 || c.Status.PodRestarts != 1 || c.Status.State != v1alpha1.StateRunning {
			return fmt.Errorf("%d calls, %d restarts, %s", len(calls), c.Status.PodRestarts, c.Status.State)
		}
		return nil
	})
	if calls := w.calls(); calls[2].pod != calls[0].pod || calls[2].conversation != c.UID || calls[2].attempt != 1 {
		t.Errorf("the calls are %+v", calls)
	}
}
