package webhook

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestReferencesToMissingObjectsCauseWarnings(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, secret(namespace, "there"))
	mustCreate(t, configMap(namespace, "there", "[]"))
	settings := object(t, "UserSettings", namespace, "{}")
	settings.SetName("there")
	mustCreate(t, settings)
	for _, c := range []struct {
		name, kind, spec string
		warnings         []string
	}{
		{"an existing Secret", "UserSettings", "llmAPIKeyRef: {name: there, key: k}", nil},
		{"a missing Secret, twice", "UserSettings", "{llmAPIKeyRef: {name: later, key: k}, searchAPIKeyRef: {name: " +
			"later, key: l}}", []string{
			`spec.llmAPIKeyRef: Secret "later" does not exist yet`, `spec.searchAPIKeyRef: Secret "later" does not exist yet`,
		}},
		{"existing settings", "Conversation", "userSettingsName: there", nil},
		{"missing settings", "Conversation", "{userSettingsName: later, maxDuration: 1h}",
			[]string{`spec.userSettingsName: UserSettings "later" do not exist yet`}},
		{"an existing ConfigMap", "Conversation", "{userSettingsName: there, replayJSONRef: {name: there, key: " +
			"events.json}}", nil},
		{"a missing ConfigMap", "Conversation", "{userSettingsName: there, replayJSONRef: {name: later, key: k}}",
			[]string{
				`spec.replayJSONRef: ConfigMap "later" does not exist yet`,
			}},
		{"a missing key", "Conversation", "{userSettingsName: there, replayJSONRef: {name: there, key: k}}",
			[]string{
				`spec.replayJSONRef.key: ConfigMap "there" has no key "k" yet`,
			}},
		{"an existing image", "Conversation", "{userSettingsName: there, images: [{configMapKeyRef: {name: there, " +
			"key: events.json}, mediaType: image/png}]}", nil},
		{"missing images", "Conversation", "{userSettingsName: there, images: [{configMapKeyRef: {name: there, key: " +
			"k}, mediaType: image/png}, " +
			"{configMapKeyRef: {name: later, key: k}, mediaType: image/png}, {configMapKeyRef: {name: later, key: l}, " +
			"mediaType: image/png}]}", []string{
			`spec.images[1].configMapKeyRef: ConfigMap "later" does not exist yet`,
			`spec.images[2].configMapKeyRef: ConfigMap "later" does not exist yet`,
			`spec.images[0].configMapKeyRef.key: ConfigMap "there" has no key "k" yet`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			root := admin(t)
			expectAccepted(t, root.create(t, object(t, c.kind, namespace, c.spec)))
			expectWarnings(t, root, c.warnings...)
		})
	}
}

func TestTwoSandboxImagesCauseAWarning(t *testing.T) {
	namespace := env.Namespace(t, nil)
	root := admin(t)
	expectAccepted(t, root.create(t, object(t, "UserSettings", namespace, "sandboxRuntimeContainerImage: "+
		"example.com/runtime")))
	expectWarnings(t, root)
	expectAccepted(t, root.create(t, object(t, "UserSettings", namespace,
		"{sandboxBaseContainerImage: example.com/base, sandboxRuntimeContainerImage: example.com/runtime}")))
	expectWarnings(t, root, "spec.sandboxBaseContainerImage: has no effect: sandboxRuntimeContainerImage takes precedence")
}

func TestDeletingSettingsWarnsOfRunningSessions(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for _, name := range []string{"jane", "john"} {
		settings := object(t, "UserSettings", namespace, "{}")
		settings.SetName(name)
		mustCreate(t, settings)
	}
	for _, state := range []v1alpha1.ConversationState{"", v1alpha1.StateStarting, v1alpha1.StateRunning,
		v1alpha1.StateStopped} {
		conversation := &v1alpha1.Conversation{}
		conversation.Namespace, conversation.GenerateName = namespace, "t-"
		conversation.Spec.UserSettingsName = "jane"
		mustCreate(t, conversation)
		conversation.Status.State = state
		if err := env.Client.Status().Update(t.Context(), conversation); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() (bool, error) {
			var seen v1alpha1.Conversation
			err := cached.Get(t.Context(), client.ObjectKeyFromObject(conversation), &seen)
			return seen.Status.State == state, client.IgnoreNotFound(err)
		})
	}
	for name, warnings := range map[string][]string{
		"jane": {"This deletion ends running sessions: 3"},
		"john": nil,
	} {
		root := admin(t)
		settings := &v1alpha1.UserSettings{}
		settings.Namespace, settings.Name = namespace, name
		if err := root.Delete(t.Context(), settings); err != nil {
			t.Fatal(err)
		}
		expectWarnings(t, root, warnings...)
	}
}
