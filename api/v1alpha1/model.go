package v1alpha1

import (
	"cmp"
	"regexp"
	"strings"
)

// modelFamilies contains only models that a single provider offers. Open models, such as gpt-oss or
// llama, have many providers.
var modelFamilies = []struct {
	provider string
	names    *regexp.Regexp
}{
	{"anthropic", regexp.MustCompile(`^claude-`)},
	{"openai", regexp.MustCompile(`^(gpt-[0-9]|o[0-9]|chatgpt-|codex-)`)},
	{"gemini", regexp.MustCompile(`^gemini-`)},
	{"xai", regexp.MustCompile(`^grok-`)},
	{"deepseek", regexp.MustCompile(`^deepseek-(chat|reasoner)$`)},
	{"mistral", regexp.MustCompile(`^(mistral-(large|medium|small)|codestral|devstral|magistral)`)},
	{"moonshot", regexp.MustCompile(`^kimi-`)},
}

// ModelProvider returns the provider of a model name without a provider, such as claude-opus-4-5. It
// returns an empty text if the provider is unknown.
func ModelProvider(name string) string {
	for _, family := range modelFamilies {
		if family.names.MatchString(name) {
			return family.provider
		}
	}
	return ""
}

// ModelEndpoint identifies the host that receives the API key of the model: the base URL, or else the
// provider of the model. It is empty if the settings have neither a base URL nor a model.
func (s *UserSettingsSpec) ModelEndpoint() string {
	model, baseURL := *cmp.Or(s.LLMModel, new(string)), *cmp.Or(s.LLMBaseURL, new(string))
	return cmp.Or(baseURL, providerOf(model), model)
}

func providerOf(model string) string {
	if provider, _, named := strings.Cut(model, "/"); named {
		return strings.ToLower(provider)
	}
	return ModelProvider(model)
}
