package controllers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func ownedBy(ns, username string) *v1alpha1.UserSettings {
	settings := userSettings(ns, "ada")
	settings.Spec.Owner = &v1alpha1.SettingsOwner{Username: username}
	return settings
}

func awaitOwner(t *testing.T, ns, name, owner string) {
	t.Helper()
	await(t, func() error {
		if c := getConversation(t, ns, name); c.Status.Owner != owner {
			return fmt.Errorf("%s belongs to %q, want %q", name, c.Status.Owner, owner)
		}
		return nil
	})
}

func TestConversationsBelongToTheOwnerOfTheirSettings(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := ownedBy(ns, "oidc:ada")
	create(t, settings)
	c := runningConversation(t, ns, "c")
	awaitOwner(t, ns, "c", "oidc:ada")

	// If the settings get another owner, the session ends, and the Conversation still belongs to
	// the earlier owner.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.Owner.Username = "oidc:bob" })
	kubelet{t, ns, "c"}.release()
	ended := awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSettingsDeleted)
	if !strings.Contains(ended.Status.Message, "another owner") {
		t.Error(ended.Status.Message)
	}
	restart(t, c)
	c = awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	if !strings.Contains(c.Status.Message, "another owner") || c.Status.Owner != "oidc:ada" {
		t.Errorf("%q, belongs to %q", c.Status.Message, c.Status.Owner)
	}
	runningConversation(t, ns, "of-bob")
	awaitOwner(t, ns, "of-bob", "oidc:bob")

	// If the settings are recreated with the earlier owner, the Conversation belongs to the new
	// settings, and its session starts.
	if err := env.Client.Delete(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	next := ownedBy(ns, "oidc:ada")
	create(t, next)
	kubelet{t, ns, "c"}.start()
	c = awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if c.Status.Owner != "oidc:ada" || c.Status.SettingsUID != next.UID {
		t.Errorf("it belongs to %q and %q", c.Status.Owner, c.Status.SettingsUID)
	}
}

func TestASessionEndsEvenIfItsSettingsAreRecreatedImmediately(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	stop := startManager(t, ns)
	settings := ownedBy(ns, "oidc:ada")
	create(t, settings)
	c := runningConversation(t, ns, "c")
	awaitOwner(t, ns, "c", "oidc:ada")

	// Stop the manager, so that it cannot notice the deletion before the settings exist again.
	stop()
	if err := env.Client.Delete(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	next := ownedBy(ns, "oidc:ada")
	create(t, next)
	startManager(t, ns)
	kubelet{t, ns, "c"}.release()
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSettingsDeleted)

	// The person can start the session again.
	restart(t, c)
	kubelet{t, ns, "c"}.start()
	c = awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if c.Status.SettingsUID != next.UID {
		t.Errorf("it belongs to %q", c.Status.SettingsUID)
	}
}

func restart(t *testing.T, c *v1alpha1.Conversation) {
	t.Helper()
	change(t, c, func(c *v1alpha1.Conversation) {
		at := c.NextRestart(c.CreationTimestamp.Time)
		c.Spec.RestartAt = &at
	})
}

func TestExistingConversationsBelongToTheFirstOwnerOfTheirSettings(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	create(t, settings)
	c := runningConversation(t, ns, "c")
	change(t, c, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	kubelet{t, ns, "c"}.release()
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	running := runningConversation(t, ns, "running")
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.Owner = &v1alpha1.SettingsOwner{Username: "oidc:ada"} })
	for _, name := range []string{"c", "running"} {
		awaitOwner(t, ns, name, "oidc:ada")
	}
	if now := getConversation(t, ns, "running"); now.Status.State != v1alpha1.StateRunning ||
		now.Status.Attempt != running.Status.Attempt {
		t.Errorf("the session is %s %s", now.Status.State, now.Status.Reason)
	}
}

func TestAConversationOfAFormerOwnerDoesNotStart(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	// The settings got another owner after the person requested the Conversation, and before the
	// manager saw the Conversation.
	conversation := makeConversation(ns, "c").Obj()
	conversation.SetAnnotations(map[string]string{v1alpha1.AnnotationRequestedBy: "oidc:ada"})
	create(t, ownedBy(ns, "oidc:bob"), conversation)
	startManager(t, ns)
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	if !strings.Contains(c.Status.Message, "another owner") || c.Status.Owner != "" {
		t.Errorf("%q, belongs to %q", c.Status.Message, c.Status.Owner)
	}
}
