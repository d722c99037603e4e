package controllers

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// A Conversation of a deleted user must not get the keys of the next user with the same name.
func TestRecreatedUserSettingsDoNotStartEarlierConversations(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	// A tool that applies the manifests of a Git repository may create Conversations before their
	// settings.
	create(t, makeConversation(ns, "first").Obj(), makeConversation(ns, "running").Obj())
	awaitState(t, ns, "first", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	former := userSettings(ns, "ada")
	create(t, former)
	for _, name := range []string{"first", "running"} {
		kubelet{t, ns, name}.start()
		if c := awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning); c.Status.SettingsUID != former.UID {
			t.Errorf("%s belongs to %q, want %q", name, c.Status.SettingsUID, former.UID)
		}
	}
	left := getConversation(t, ns, "first")
	change(t, left, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	kubelet{t, ns, "first"}.release()
	awaitState(t, ns, "first", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)

	if err := env.Client.Delete(t.Context(), former); err != nil {
		t.Fatal(err)
	}
	next := userSettings(ns, "ada")
	next.Spec.LLMModel = ptr.To("example/next")
	create(t, next)
	change(t, left, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	c := awaitState(t, ns, "first", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	if !strings.Contains(c.Status.Message, "recreated") || c.Status.SettingsUID != former.UID {
		t.Errorf("%q, belongs to %q", c.Status.Message, c.Status.SettingsUID)
	}
	if err := gone(t, kubelet{t, ns, "first"}.object()); err != nil {
		t.Error(err)
	}

	// A Conversation that the next user creates can start.
	own := makeConversation(ns, "own").Obj()
	create(t, own)
	kubelet{t, ns, "own"}.start()
	if c := awaitState(t, ns, "own", v1alpha1.StateRunning, v1alpha1.ReasonRunning); c.Status.SettingsUID != next.UID {
		t.Errorf("it belongs to %q, want %q", c.Status.SettingsUID, next.UID)
	}
	await(t, func() error {
		c := getConversation(t, ns, "running")
		for _, condition := range c.Status.Conditions {
			if condition.Type == v1alpha1.ConditionSettingsReady && condition.Status == metav1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("the running session of the former user has %+v", c.Status.Conditions)
	})
}
