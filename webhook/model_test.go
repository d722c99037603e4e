package webhook

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestASessionWithoutAModelCausesAWarning(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for name, spec := range map[string]string{"none": "{}", "model": "llmModel: example/model",
		"other": "agent: frugal"} {
		settings := object(t, "UserSettings", namespace, spec)
		settings.SetName(name)
		mustCreate(t, settings)
	}
	// This test has its own catalogue, because all tests share the operator's catalogue.
	mustCreate(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agents"},
		Data: map[string]string{v1alpha1.DefaultAgent: "needsModel: true", "frugal": "{}"}})
	validator := &conversationValidator{guard: newGuard(env.Client, env.Client, Options{}),
		agents: agentCatalogue{Namespace: namespace, Name: "agents"}}
	const warning = `spec.userSettingsName: UserSettings "none" name no model: the first turn will fail`
	message := ptr.To("work")
	for name, c := range map[string]struct {
		settings string
		message  *string
		warnings []string
	}{
		"no model":                 {"none", message, []string{warning}},
		"no model, and no work":    {"none", nil, nil},
		"a model":                  {"model", message, nil},
		"an agent without a model": {"other", message, nil},
	} {
		got, err := validator.ValidateCreate(byAdmin(t.Context(), namespace), &v1alpha1.Conversation{
			Spec: v1alpha1.ConversationSpec{UserSettingsName: c.settings, InitialUserMsg: c.message}})
		if err != nil || !slices.Equal(got, c.warnings) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.warnings)
		}
	}
	// A sender who is not allowed to use the settings learns nothing about them.
	stranger := user(t, "stranger", namespace)
	expectRefused(t, stranger.create(t, object(t, "Conversation", namespace,
		"{userSettingsName: none, initialUserMsg: work}")), "you must be allowed to use", "spec.userSettingsName")
	expectWarnings(t, stranger)
	// Without a catalogue there is no warning, and no refusal.
	validator.agents.Name = "missing"
	if got, err := validator.ValidateCreate(byAdmin(t.Context(), namespace), &v1alpha1.Conversation{
		Spec: v1alpha1.ConversationSpec{UserSettingsName: "none", InitialUserMsg: message}}); err != nil || len(got) > 0 {
		t.Errorf("without a catalogue: %q, %v", got, err)
	}
}
