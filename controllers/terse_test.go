package controllers

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func terseClient(t *testing.T) *terse {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	options := ManagerOptions(scheme, 1, Scope{})
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	mgr, err := ctrl.NewManager(asUser, options)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newTerse(mgr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAStatusIsWrittenWithoutTheSpec(t *testing.T) {
	t.Parallel()
	ns, c := env.Namespace(t, nil), terseClient(t)
	conversation := working(ns, "c").obj()
	conversation.Labels = map[string]string{"team": "a"}
	create(t, conversation)
	sent := conversation.DeepCopy()
	sent.Status = v1alpha1.ConversationStatus{State: v1alpha1.StateStopped, Reason: v1alpha1.ReasonSuspended,
		ObservedGeneration: 1}
	if err := c.Status().Update(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	got := theConversation(t, ns, "c")
	if got.Status.State != v1alpha1.StateStopped || got.ResourceVersion != sent.ResourceVersion {
		t.Errorf("it says %q in version %s, and the writer knows of version %s", got.Status.State, got.ResourceVersion,
			sent.ResourceVersion)
	}
	if got.Spec.UserSettingsName != conversation.Spec.UserSettingsName || got.Labels["team"] != "a" ||
		got.Generation != conversation.Generation {
		t.Errorf("more than the status changed: %+v", got)
	}
	if owner := got.ManagedFields[len(got.ManagedFields)-1]; owner.Manager != FieldOwner || owner.Subresource != "status" {
		t.Errorf("the status belongs to %s, %s", owner.Manager, owner.Subresource)
	}

	if err := c.Status().Update(t.Context(), conversation); !apierrors.IsConflict(err) {
		t.Errorf("over a newer version: %v", err)
	}
	sent.Status.State = "DOZING"
	if err := c.Status().Update(t.Context(), sent); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		"status.state") {
		t.Errorf("the refusal of a state that does not exist does not say why: %v", err)
	}
}

func TestWhatIsMadeIsNotReadBack(t *testing.T) {
	t.Parallel()
	ns, c := env.Namespace(t, nil), terseClient(t)
	secret := func() *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "s"},
			StringData: map[string]string{"key": "value"}}
	}
	made := secret()
	if err := c.Create(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	if made.ResourceVersion != "" {
		t.Error("the Secret came back")
	}
	if err := c.Create(t.Context(), secret()); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the second of its name: %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"}}
	if err := c.Create(t.Context(), pod); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.containers") {
		t.Errorf("the refusal of a pod without containers does not say why: %v", err)
	}
}
