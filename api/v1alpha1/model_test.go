package v1alpha1_test

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestWellKnownModelsHaveAProvider(t *testing.T) {
	for name, want := range map[string]string{
		"claude-opus-4-5": "anthropic", "claude-sonnet-4-20250514": "anthropic", "gpt-4o": "openai", "gpt-5.2": "openai",
		"o3-mini": "openai", "gemini-2.5-pro": "gemini", "grok-4": "xai", "deepseek-chat": "deepseek",
		"codestral-latest": "mistral", "kimi-k2-0905-preview": "moonshot",
		// For these names, ModelProvider returns an empty text: several providers serve the model,
		// the model is unknown, or the name already contains a provider.
		"gpt-oss-120b": "", "llama-3.3-70b-versatile": "", "deepseek-r1": "", "mistral-7b-instruct": "", "qwen3-coder": "",
		"my-model": "", "": "", "ollama": "", "anthropic/claude-opus-4-5": "", "openhands/claude-sonnet-4-20250514": "",
		"litellm_proxy/gpt-4o": "",
	} {
		if got := v1alpha1.ModelProvider(name); got != want {
			t.Errorf("the provider of %q is %q, want %q", name, got, want)
		}
	}
}

func TestAKeyIsNotUsedForModelsOfAnotherProvider(t *testing.T) {
	const other, unnamed = "must be a model of the same provider as llmModel in the UserSettings", "must name the provider"
	key := &v1alpha1.SecretKeyRef{Name: "s", Key: "k"}
	with := func(model, baseURL string, key *v1alpha1.SecretKeyRef) (settings v1alpha1.UserSettingsSpec) {
		if settings.LLMAPIKeyRef = key; model != "" {
			settings.LLMModel = &model
		}
		if baseURL != "" {
			settings.LLMBaseURL = &baseURL
		}
		return settings
	}
	for name, c := range map[string]struct {
		model    string
		settings v1alpha1.UserSettingsSpec
		problem  string
	}{
		"no model of its own":         {"", with("openai/a", "", key), ""},
		"the same provider":           {"openai/b", with("OpenAI/a", "", key), ""},
		"a provider that is implied":  {"claude-b", with("anthropic/a", "", key), ""},
		"another provider":            {"anthropic/b", with("gpt-5", "", key), other},
		"another provider, base URL":  {"anthropic/b", with("gpt-5", "https://a", key), ""},
		"another provider, no key":    {"anthropic/b", with("openai/a", "", nil), ""},
		"a key of an unknown owner":   {"openai/b", with("", "", key), other},
		"a model of unknown provider": {"llama", with("llama", "", key), unnamed},
		"an empty provider":           {"/b", with("/a", "", key), unnamed},
		"any name with a base URL":    {"llama", with("", "https://a", nil), ""},
	} {
		spec := v1alpha1.ConversationSpec{}
		if c.model != "" {
			spec.LLMModel = &c.model
		}
		if got := spec.ModelProblem(&c.settings); !strings.HasPrefix(got, c.problem) || c.problem == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, c.problem)
		}
	}
}

func TestEveryShippedModelHasAProvider(t *testing.T) {
	text, err := os.ReadFile("../../config/agents/models.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var prices corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &prices); err != nil {
		t.Fatal(err)
	}
	for group, entries := range prices.Data {
		models := map[string]any{}
		if err := yaml.Unmarshal([]byte(entries), &models); err != nil || len(models) == 0 {
			t.Errorf("%s: %d models, %v", group, len(models), err)
		}
		for name := range models {
			if !strings.Contains(name, "/") && v1alpha1.ModelProvider(name) == "" {
				t.Errorf("%s has no provider", name)
			}
		}
	}
}
