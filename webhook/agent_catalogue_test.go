package webhook

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// All tests share one catalogue, so this test checks three cases in a fixed order: no catalogue
// exists, a catalogue exists, and existing UserSettings name an agent that the catalogue lacks.
func TestAnAgentMustBeInTheCatalogue(t *testing.T) {
	namespace := env.Namespace(t, nil)
	early := admin(t)
	settings := object(t, "UserSettings", namespace, "agent: CodeActAgent")
	expectAccepted(t, early.create(t, settings))
	expectWarnings(t, early, "spec.agent: cannot be checked: the agent catalogue does not exist yet")

	mustCreate(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: operatorNamespace}})
	catalogue := mustCreate(t, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: v1alpha1.AgentCatalogueName},
		Data:       map[string]string{"writer": "{}", "coder": "{}"},
	})
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), catalogue) })

	expectAccepted(t, admin(t).create(t, object(t, "UserSettings", namespace, "agent: coder")))
	expectRefused(t, admin(t).create(t, object(t, "UserSettings", namespace, "agent: painter")),
		"agent of the catalogue: coder, writer", "spec.agent")
	expectAccepted(t, admin(t).create(t, object(t, "Conversation", namespace, "agent: coder")))
	expectRefused(t, admin(t).create(t, object(t, "Conversation", namespace, "agent: painter")),
		"agent of the catalogue: coder, writer", "spec.agent")
	t.Run("a removed agent does not block changes of other fields", func(t *testing.T) {
		expectAccepted(t, admin(t).change(t, settings, setField(t, "en", "spec", "language")))
		expectRefused(t, admin(t).change(t, settings, setField(t, "painter", "spec", "agent")),
			"agent of the catalogue: coder, writer", "spec.agent")
		expectAccepted(t, admin(t).change(t, settings, setField(t, "writer", "spec", "agent")))
	})
}
