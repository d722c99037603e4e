package webhook

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	// This test has its own catalogue, because a change of the operator's catalogue would affect
	// other tests.
	mustCreate(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agents"},
		Data: map[string]string{v1alpha1.DefaultAgent: "needsModel: true", "frugal": "{}"}})
	validator := &conversationValidator{guard: newGuard(env.Client, env.Client, Options{}),
		agents: agentCatalogue{Namespace: namespace, Name: "agents"}}
	const warning = `spec.userSettingsName: UserSettings "none" have no model: the first turn will fail`
	message := ptr.To("work")
	for name, c := range map[string]struct {
		settings     string
		message      *string
		model, agent *string
		warnings     []string
	}{
		"settings without a model":                   {"none", message, nil, nil, []string{warning}},
		"a session without a message":                {"none", nil, nil, nil, nil},
		"settings with a model":                      {"model", message, nil, nil, nil},
		"settings with an agent that needs no model": {"other", message, nil, nil, nil},
		"a session with its own model":               {"none", message, ptr.To("example/own"), nil, nil},
		"a session with its own agent":               {"none", message, nil, ptr.To("frugal"), nil},
	} {
		got, err := validator.ValidateCreate(byAdmin(t.Context(), namespace), &v1alpha1.Conversation{
			Spec: v1alpha1.ConversationSpec{UserSettingsName: c.settings, InitialUserMsg: c.message, LLMModel: c.model,
				Agent: c.agent}})
		if err != nil || !slices.Equal(got, c.warnings) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.warnings)
		}
	}
	// A stranger learns nothing about the settings.
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

func TestAModelOfAnotherProviderThanInTheSettingsIsRefused(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for name, spec := range map[string]string{
		"keyed":   "{llmModel: openai/gpt-5, llmAPIKeyRef: {name: s, key: k}}",
		"gateway": "{llmModel: openai/gpt-5, llmAPIKeyRef: {name: s, key: k}, llmBaseURL: 'https://llm.example.com'}",
	} {
		settings := object(t, "UserSettings", namespace, spec)
		settings.SetName(name)
		mustCreate(t, settings)
	}
	const reason = "must be a model of the same provider as llmModel in the UserSettings"
	with := func(settings, model string) *unstructured.Unstructured {
		return object(t, "Conversation", namespace, "{userSettingsName: "+settings+", llmModel: "+model+"}")
	}
	expectAccepted(t, admin(t).create(t, with("keyed", "openai/gpt-5-mini")))
	expectRefused(t, admin(t).create(t, with("keyed", "anthropic/claude-opus-4-5")), reason, "spec.llmModel")
	expectRefused(t, admin(t).create(t, with("keyed", "llama")), "must name the provider", "spec.llmModel")
	expectAccepted(t, admin(t).create(t, with("gateway", "anthropic/claude-opus-4-5")))
	expectAccepted(t, admin(t).create(t, with("missing", "anthropic/claude-opus-4-5"))) // checked at the start
	// A stranger learns nothing about the settings.
	expectRefused(t, user(t, "stranger", namespace).create(t, with("keyed", "anthropic/claude-opus-4-5")),
		"you must be allowed to use", "spec.userSettingsName")
}
