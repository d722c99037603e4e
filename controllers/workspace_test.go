package controllers

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// suspendedOnVolume runs a session on its class's volume, suspends it, and removes the volume from
// the class.
func suspendedOnVolume(t *testing.T, namespace string) (*v1alpha1.Conversation, *corev1.PersistentVolumeClaim) {
	t.Helper()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: createClass(t, namespace,
		workspaceTTL(time.Hour))}}
	conversation := withTask(namespace, "c").With(ofClass(class.Name)).Obj()
	create(t, userSettings(namespace, "ada"), conversation)
	k := kubelet{t, namespace, "c"}
	k.start()
	awaitState(t, namespace, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	change(t, conversation, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	k.release()
	awaitState(t, namespace, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	change(t, class, func(c *v1alpha1.SessionClass) { c.Spec.Workspace = nil })
	return conversation, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: "c-workspace"}}
}

func usesVolume(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
}

func TestASessionWithoutItsVolumeRestartsOnScratchSpace(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	conversation, claim := suspendedOnVolume(t, ns)
	if err := env.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	// The session waits until the claim is deleted. No controller in this test removes the
	// finalizer of the claim, so the test removes it.
	change(t, conversation, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	change(t, claim, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
	k := kubelet{t, ns, "c"}
	k.start()
	if usesVolume(k.pod()) {
		t.Error("the pod waits for a claim that does not exist")
	}
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	expectDeleted := func(c *v1alpha1.Conversation) {
		t.Helper()
		condition := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionWorkspaceReady)
		if c.Status.Workspace != v1alpha1.WorkspaceScratch || condition == nil || condition.Status != metav1.ConditionFalse ||
			condition.Reason != v1alpha1.ReasonVolumeDeleted {
			t.Errorf("workspace %s, %+v", c.Status.Workspace, condition)
		}
	}
	expectDeleted(c)
	awaitEvents(t, ns, v1alpha1.ReasonVolumeDeleted)
	k.end(`{"reason":"Completed"}`)
	expectDeleted(awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted))
}

func TestASessionThatLostItsVolumeTakesSnapshots(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	archive.manager(t, ns)
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: createClass(t, ns, workspaceTTL(time.Hour))}}
	create(t, userSettings(ns, "ada"), withTask(ns, "c").With(ofClass(class.Name)).Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	change(t, class, func(c *v1alpha1.SessionClass) { c.Spec.Workspace = nil })
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-workspace"}}
	if err := env.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	change(t, claim, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
	lost := k.pod()
	if err := env.Client.Delete(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	k.release()
	k.awaitReplacement(lost)
	k.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), sessionObject(c), secret); err != nil {
		t.Fatal(err)
	}
	if doc := documentOf(t, ns, "c"); !doc.Scratch || len(secret.Data[session.SnapshotKeyFile]) == 0 ||
		c.Status.Attempt != 2 || usesVolume(k.pod()) {
		t.Errorf("attempt %d: scratch %t, a snapshot key of %d bytes, a volume %t", c.Status.Attempt, doc.Scratch,
			len(secret.Data[session.SnapshotKeyFile]), usesVolume(k.pod()))
	}
}

func TestARestartedSessionKeepsItsVolumeEvenIfItsClassProvidesNone(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	conversation, _ := suspendedOnVolume(t, ns)
	change(t, conversation, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	k := kubelet{t, ns, "c"}
	k.start()
	if !usesVolume(k.pod()) {
		t.Error("the pod does not use the session's volume")
	}
	if c := awaitState(t, ns, "c", v1alpha1.StateRunning,
		v1alpha1.ReasonRunning); c.Status.Workspace != v1alpha1.WorkspaceClass {
		t.Errorf("the workspace is %s", c.Status.Workspace)
	}
}
