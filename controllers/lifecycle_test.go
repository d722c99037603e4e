package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
	"github.com/parley-dev/parley/hack/test/status"
	"github.com/parley-dev/parley/hack/test/testenv"
)

type step struct {
	name    string
	do      func()
	state   v1alpha1.ConversationState
	reason  string
	message string
	kstatus status.Status
}

func walk(t *testing.T, namespace, name string, steps []step) {
	t.Helper()
	for _, s := range steps {
		s.do()
		await(t, func() error {
			c := getConversation(t, namespace, name)
			if c.Status.State != s.state || c.Status.Reason != s.reason || !strings.Contains(c.Status.Message, s.message) {
				return fmt.Errorf("%s: %s %s %q, want %s %s %q", s.name, c.Status.State, c.Status.Reason, c.Status.Message, s.state,
					s.reason, s.message)
			}
			if got := kstatusOf(t, c); got != s.kstatus {
				return fmt.Errorf("%s: kstatus is %s, want %s", s.name, got, s.kstatus)
			}
			return nil
		})
	}
}

// kstatusOf returns the status that Flux and kpt compute; Argo CD uses its own script.
func kstatusOf(t *testing.T, o client.Object) status.Status {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: content}
	kinds, _, err := env.Scheme.ObjectKinds(o)
	if err != nil {
		t.Fatal(err)
	}
	object.SetGroupVersionKind(kinds[0])
	return status.Compute(object)
}

func TestTheStatusFollowsEachStepOfTheLifecycle(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	k := kubelet{t, ns, "c"}
	conv := makeConversation(ns, "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Workspace = &v1alpha1.Workspace{
			Size: "1Gi"}
	}).Obj()
	settings := userSettings(ns, "ada")
	settings.Spec.LLMAPIKeyRef, settings.Spec.SandboxBaseContainerImage = ref("llm"), ptr.To("example.com/base:1")
	suspend := func(suspended bool) func() {
		return func() { change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = suspended }) }
	}
	restarts := 0
	restart := func() {
		restarts++ // times are in whole seconds and must differ
		change(t, conv, func(c *v1alpha1.Conversation) {
			c.Spec.RestartAt = ptr.To(metav1.NewTime(time.Now().Add(time.Duration(restarts-10) * time.Second)))
		})
	}
	var first *corev1.Pod

	walk(t, ns, "c", []step{
		{"created before its settings", func() { create(t, conv) }, "STARTING", "SettingsNotReady",
			"UserSettings ada do not exist", status.InProgressStatus},
		{"settings are created before their Secret", func() { create(t, settings) }, "STARTING", "SettingsNotReady",
			"Secret llm does not exist", status.InProgressStatus},
		{"the Secret is created", func() { create(t, secretWith(ns, "llm", "k")); first = k.pod() }, "STARTING", "Scheduling",
			"", status.InProgressStatus},
		{"no node fits", func() {
			k.set(func(p aPod) {
				p.Condition(corev1.PodScheduled, false, "0/1 nodes are "+
					"available")
			})
		}, "STARTING", "Scheduling", "0/1 nodes", status.InProgressStatus},
		{"a node fits", func() {
			k.bind()
			k.set(func(p aPod) { p.Scheduled().Waiting(lifecycle.InstallContainer, "PodInitializing") })
		}, "STARTING", "PreparingWorkspace", "volumes", status.InProgressStatus},
		{"an image is pulled", func() {
			k.set(func(p aPod) {
				p.Sandboxed().Waiting(lifecycle.InstallContainer,
					"ContainerCreating")
			})
		}, "STARTING", "PullingImage", "example.com/parley:1", status.InProgressStatus},
		{"the runtime starts", func() {
			k.set(func(p aPod) {
				p.Status.InitContainerStatuses = nil
				p.Running(lifecycle.SessionContainer)
			})
		}, "STARTING", "StartingRuntime", "", status.InProgressStatus},
		{"the session is ready", func() { k.set(func(p aPod) { p.Ready() }) },
			"RUNNING", "Running", "", status.CurrentStatus},
		{"the process crashes", func() {
			k.set(func(p aPod) {
				p.Condition(corev1.PodReady, false, "").Container(corev1.ContainerStatus{Name: lifecycle.SessionContainer,
					State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137,
						Reason: "OOMKilled"}}})
			})
		}, "STARTING", "Restarting", "status 137 (OOMKilled)", status.InProgressStatus},
		{"the session is ready again", func() { k.set(func(p aPod) { p.Ready() }) },
			"RUNNING", "Running", "", status.CurrentStatus},
		{"the pod is evicted and replaced", func() {
			k.set(func(p aPod) { p.Failed("Evicted") })
			k.awaitReplacement(first)
			k.start()
		}, "RUNNING", "Running", "", status.CurrentStatus},
		{"the session is suspended", func() { suspend(true)(); k.release() },
			"STOPPED", "Suspended", "", status.CurrentStatus},
		{"the session is resumed", suspend(false), "STARTING", "Scheduling", "", status.InProgressStatus},
		{"the session is suspended while it starts", suspend(true), "STOPPED", "Suspended", "", status.CurrentStatus},
		{"the session is resumed again", func() { suspend(false)(); k.start() },
			"RUNNING", "Running", "", status.CurrentStatus},
		{"the session is idle", func() { k.end(`{"reason":"Idle"}`) }, "STOPPED", "Idle", "", status.CurrentStatus},
		{"the session is restarted", func() {
			before := k.pod()
			restart()
			k.awaitReplacement(before)
			k.start()
		}, "RUNNING", "Running", "", status.CurrentStatus},
		{"the agent fails", func() { k.end(`{"reason":"Failed","message":"no such branch"}`) }, "STOPPED", "Failed",
			"no such branch", status.FailedStatus},
		{"the session is restarted again", func() {
			before := k.pod()
			restart()
			k.awaitReplacement(before)
			k.start()
		}, "RUNNING", "Running", "", status.CurrentStatus},
		{"the agent completes", func() { k.end(`{"reason":"Completed"}`) }, "STOPPED", "Completed", "", status.CurrentStatus},
		{"the pod is garbage collected", func() {
			if err := env.Client.Delete(t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
		}, "STOPPED", "Completed", "", status.CurrentStatus},
	})
	if err := gone(t, secretWith(ns, "c-session", "")); err != nil {
		t.Errorf("the Secret of an ended session still exists: %v", err)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-workspace"}}
	if err := gone(t, claim); err == nil {
		t.Error("the workspace was deleted before the Conversation")
	}
	awaitEvents(t, ns, "SettingsNotReady", "Started", "Restarting", "Suspended", "Idle", "Failed", "Completed")
}

// awaitEvents waits for an event with each reason on the Conversation "c".
func awaitEvents(t *testing.T, namespace string, reasons ...string) {
	t.Helper()
	await(t, func() error {
		list := &eventsv1.EventList{}
		if err := env.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, reason := range reasons {
			if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
				return e.Reason == reason &&
					e.Regarding.Name == "c"
			}) {
				return fmt.Errorf("no event %s among %d", reason, len(list.Items))
			}
		}
		return nil
	})
}

func TestTheStatusNamesTheStepInWhichAStartExceedsItsDeadline(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	soon := func(s *v1alpha1.ConversationSpec) { s.StartDeadline = &metav1.Duration{Duration: 10 * time.Second} }

	t.Run("an image that does not exist", func(t *testing.T) {
		create(t, makeConversation(ns, "image").Obj())
		k := kubelet{t, ns, "image"}
		k.bind()
		k.set(func(p aPod) { p.Sandboxed().Waiting(lifecycle.SessionContainer, "ImagePullBackOff") })
		change(t, awaitState(t, ns, "image", v1alpha1.StateStarting, v1alpha1.ReasonPullingImage),
			func(c *v1alpha1.Conversation) {
				c.Spec.StartDeadline = &metav1.Duration{Duration: time.Second}
			})
		c := awaitState(t, ns, "image", v1alpha1.StateStopped, v1alpha1.ReasonStartDeadlineExceeded)
		if !strings.Contains(c.Status.Message, "PullingImage: Image example.com/parley:1") {
			t.Errorf("message %q names neither step nor image", c.Status.Message)
		}
		k.release()
		await(t, func() error { return gone(t, secretWith(ns, "image-session", "")) })
		if got := kstatusOf(t, getConversation(t, ns, "image")); got != status.FailedStatus {
			t.Errorf("kstatus is %s", got)
		}
	})
	t.Run("settings that do not exist, until they are created", func(t *testing.T) {
		create(t, makeConversation(ns, "lonely").With(soon).With(func(s *v1alpha1.ConversationSpec) {
			s.UserSettingsName =
				"bob"
		}).Obj())
		c := awaitState(t, ns, "lonely", v1alpha1.StateStopped, v1alpha1.ReasonSettingsMissing)
		if kstatusOf(t, c) != status.FailedStatus {
			t.Errorf("kstatus is %s", kstatusOf(t, c))
		}
		create(t, userSettings(ns, "bob"))
		kubelet{t, ns, "lonely"}.start()
		awaitState(t, ns, "lonely", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	})
}

func TestOnlyEndedConversationsAreDeletedAfterTheirTTL(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	short := func(s *v1alpha1.ConversationSpec) { s.TTLAfterStopped = &metav1.Duration{Duration: time.Second} }
	suspended := makeConversation(ns, "suspended").With(short).With(func(s *v1alpha1.ConversationSpec) {
		s.Suspend = true
	}).Obj()
	ended := makeConversation(ns, "ended").With(short).Obj()
	create(t, suspended, ended)
	awaitState(t, ns, "suspended", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	k := kubelet{t, ns, "ended"}
	k.start()
	k.end(`{"reason":"Completed"}`)
	await(t, func() error { return gone(t, ended) })
	if err := gone(t, suspended); err == nil {
		t.Error("the suspended Conversation was deleted")
	}
}

func TestDeletingAConversationRemovesEveryChild(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	env.StartControllerManager(t, "garbage-collector-controller")
	startManager(t, ns)
	conv := makeConversation(ns, "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Workspace = &v1alpha1.Workspace{
			Size: "1Gi"}
	}).Obj()
	create(t, userSettings(ns, "ada"), conv)
	pod := kubelet{t, ns, "c"}.pod()
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonScheduling)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-workspace"}}
	if err := env.Client.Delete(t.Context(), conv); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{conv, pod, secretWith(ns, "c-session", ""), claim} {
		await(t, func() error {
			err := gone(t, o)
			// The PersistentVolumeClaim has a finalizer, which no controller in this test removes.
			// The test therefore only checks that the claim has a deletion timestamp.
			if err != nil && o == client.Object(claim) && claim.DeletionTimestamp != nil {
				return nil
			}
			return err
		})
	}
}

func TestDeletingUserSettingsEndsTheirSessions(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](2)})
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	create(t, settings, userSettings(ns, "grace"), makeConversation(ns, "c").With(ofClass(class)).Obj(),
		makeConversation(ns, "other").With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "grace" }).Obj())
	k, starting, other := kubelet{t, ns, "c"}, kubelet{t, ns, "starting"}, kubelet{t, ns, "other"}
	k.start()
	other.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	create(t, makeConversation(ns, "starting").With(ofClass(class)).Obj())
	starting.bind()
	create(t, makeConversation(ns, "queued").With(ofClass(class)).Obj())
	awaitState(t, ns, "queued", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
	if err := env.Client.Delete(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSettingsDeleted)
	awaitState(t, ns, "starting", v1alpha1.StateStopped, v1alpha1.ReasonSettingsDeleted)
	awaitState(t, ns, "queued", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	awaitEvents(t, ns, v1alpha1.ReasonSettingsDeleted)
	await(t, func() error {
		pod := k.pod()
		if pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds == 0 {
			return errors.New("the pod is not being deleted with a grace period")
		}
		return nil
	})
	k.release()
	starting.release()
	await(t, func() error {
		return gone(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.SessionName("c")}})
	})
	var kinds []string
	for _, w := range testenv.Writes(t, auditDir, managerUser, ns) {
		if w.Object.Name == "c" || w.Object.Resource == "pods" && w.Verb == "delete" && w.Object.Name == "c-session" {
			kinds = append(kinds, w.Verb+" "+w.Object.Resource)
		}
	}
	if at := slices.Index(kinds, "delete pods"); at < 1 || kinds[at-1] != "update conversations" {
		t.Errorf("the end was not recorded before the pod was deleted: %v", kinds)
	}
	if c := getConversation(t, ns, "other"); c.Status.State != v1alpha1.StateRunning {
		t.Errorf("the session of another user is %s", c.Status.State)
	}

	t.Run("new settings of the same name do not start them", func(t *testing.T) {
		create(t, userSettings(ns, "ada"), makeConversation(ns, "new").With(ofClass(class)).Obj())
		kubelet{t, ns, "new"}.start()
		awaitState(t, ns, "new", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		for _, name := range []string{"c", "starting"} {
			if s := getConversation(t, ns, name).Status; s.Reason != v1alpha1.ReasonSettingsDeleted {
				t.Errorf("%s is %s, %s", name, s.State, s.Reason)
			}
		}
	})
}

func TestALostPodIsNotReplacedAfterItsSettingsAreDeleted(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	stop := startManager(t, ns)
	settings := userSettings(ns, "ada")
	create(t, settings, makeConversation(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	stop()
	for _, o := range []client.Object{settings, k.pod()} {
		if err := env.Client.Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	startManager(t, ns)
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSettingsDeleted)
	if err := gone(t, k.object()); err != nil {
		t.Error(err)
	}
}

func TestChangedSettingsApplyToResumedSessionsOnly(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.LLMModel, settings.Spec.SandboxBaseContainerImage = ptr.To("first"), ptr.To("example.com/base:1")
	conv := makeConversation(ns, "c").Obj()
	create(t, settings, conv)
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	change(t, settings, func(s *v1alpha1.UserSettings) {
		s.Spec.LLMModel, s.Spec.SandboxBaseContainerImage = ptr.To("second"), ptr.To("example.com/base:2")
	})
	replace := func(model, image string) {
		t.Helper()
		before := k.pod().UID
		if err := env.Client.Delete(t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		await(t, func() error { return startedWith(t, k, before, model, image) })
		k.start()
		awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
	replace("first", "example.com/base:1")

	before := k.pod().UID
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	k.release()
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	await(t, func() error { return startedWith(t, k, before, "second", "example.com/base:2") })
}

// startedWith returns nil if the session's pod is new (its UID is not oldUID) and has this model
// and this container image.
func startedWith(t *testing.T, k kubelet, oldUID any, model, image string) error {
	pod := k.pod()
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: k.namespace, Name: v1alpha1.SessionName(k.name)},
		secret); err != nil {
		return err
	}
	var doc session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil {
		return err
	}
	if pod.UID == oldUID || ptr.Deref(doc.Settings.LLMModel, "") != model || pod.Spec.Containers[0].Image != image {
		return fmt.Errorf("pod %s has model %s and image %s", pod.UID, ptr.Deref(doc.Settings.LLMModel, ""),
			pod.Spec.Containers[0].Image)
	}
	return nil
}

func TestObjectsOfOtherOwnersAreNeverChanged(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	create(t, userSettings(ns, "ada"))
	container := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/other:1"}}}
	foreign := map[string]client.Object{
		"Pod pod-session": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "pod-session"},
			Spec: container},
		"Secret secret-session": secretWith(ns, "secret-session", "mine"),
		"PersistentVolumeClaim claim-workspace": &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns,
			Name: "claim-workspace"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}},
	}
	before := map[string]string{}
	for kindAndName, o := range foreign {
		create(t, o)
		before[kindAndName] = o.GetResourceVersion()
	}
	startManager(t, ns)
	for kindAndName, o := range foreign {
		name, _, _ := strings.Cut(o.GetName(), "-")
		create(t, makeConversation(ns, name).With(func(s *v1alpha1.ConversationSpec) {
			if name == "claim" {
				s.Workspace = &v1alpha1.Workspace{Size: "1Gi"}
			}
		}).Obj())
		c := awaitState(t, ns, name, v1alpha1.StateStarting, v1alpha1.ReasonForeignObject)
		if !strings.Contains(c.Status.Message, kindAndName) || kstatusOf(t, c) != status.FailedStatus {
			t.Errorf("%s: message %q, kstatus %s", kindAndName, c.Status.Message, kstatusOf(t, c))
		}
		change(t, c, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
		awaitState(t, ns, name, v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil ||
			o.GetResourceVersion() != before[kindAndName] {
			t.Errorf("%s was changed: %v", kindAndName, err)
		}
	}
}

func TestTheManagerUndoesChangesToTheServiceAndTheNetworkPolicy(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").Obj())
	kubelet{t, ns, "c"}.pod()
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns,
		Name: objects.NetworkPolicyName(v1alpha1.DefaultSessionClass)}}
	var rules int
	change(t, policy, func(p *networkingv1.NetworkPolicy) {
		rules = len(p.Spec.Egress)
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{})
	})
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: lifecycle.ServiceName}}
	if err := env.Client.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
			return err
		}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(policy), policy); err != nil {
			return err
		}
		if len(policy.Spec.Egress) != rules {
			return fmt.Errorf("the policy has %d rules for egress, want %d", len(policy.Spec.Egress), rules)
		}
		return nil
	})
}

func TestARecreatedConversationWaitsForDeletionOfTheOldPod(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	before := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if err := env.Client.Delete(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	create(t, makeConversation(ns, "c").Obj())
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonScheduling)
	if !strings.Contains(c.Status.Message, "of an earlier Conversation") || kstatusOf(t, c) != status.InProgressStatus {
		t.Errorf("message %q, kstatus %s", c.Status.Message, kstatusOf(t, c))
	}
	// Delete the objects, as the garbage collector would.
	old := k.pod()
	if err := env.Client.Delete(t.Context(), secretWith(ns, "c-session", "")); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Delete(t.Context(), old.DeepCopy(), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	k.awaitReplacement(old)
}

func TestARestrictedNamespaceAdmitsEverySessionPod(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	startManager(t, ns)
	prebuilt := userSettings(ns, "prebuilt")
	prebuilt.Spec.SandboxRuntimeContainerImage = ptr.To("example.com/own:1")
	create(t, userSettings(ns, "ada"), prebuilt, makeConversation(ns, "c").Obj(),
		makeConversation(ns, "own").With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "prebuilt" }).Obj())
	kubelet{t, ns, "c"}.pod()
	kubelet{t, ns, "own"}.pod()
}

func denyPods(t *testing.T, ns string) *corev1.ResourceQuota {
	t.Helper()
	return denyResource(t, ns, corev1.ResourcePods)
}

func denyResource(t *testing.T, ns string, name corev1.ResourceName) *corev1.ResourceQuota {
	t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: resource.MustParse("0")}}}
	create(t, quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard}
	if err := env.Client.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	return quota
}

func TestARefusedPodIsReportedAndRetried(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	quota := denyPods(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").Obj())
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	if !strings.Contains(c.Status.Message, "exceeded quota") {
		t.Errorf("message %q", c.Status.Message)
	}
	if err := env.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonScheduling)
}

func TestASessionWaitsUntilItsAgentIsInTheCatalogue(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil) // also the operator's namespace in this test
	startManagerIn(t, ns, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.Agent = ptr.To("coder")
	create(t, settings, makeConversation(ns, "c").Obj())
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	if !strings.Contains(c.Status.Message, "coder is not in the agent catalogue") {
		t.Errorf("message %q", c.Status.Message)
	}
	catalogue := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.AgentCatalogueName},
		Data: map[string]string{"coder": "command: [coder, '{{.NoSuchField}}']", "broken": "{{{"}}
	create(t, catalogue)
	await(t, func() error {
		if c := getConversation(t, ns, "c"); !strings.Contains(c.Status.Message, "no field .NoSuchField") {
			return fmt.Errorf("message %q", c.Status.Message)
		}
		return nil
	})
	change(t, catalogue, func(m *corev1.ConfigMap) {
		m.Data["coder"] = "{command: [coder, '{{.MessageFile}}'], image: example.com/coder:1}"
	})
	if image := (kubelet{t, ns, "c"}).pod().Spec.Containers[0].Image; image != "example.com/coder:1" {
		t.Errorf("image %s", image)
	}
}
