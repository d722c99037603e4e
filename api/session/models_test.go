package session_test

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestModelsAreReadFromTheirConfigMap(t *testing.T) {
	models, err := session.ParseModels(map[string]string{
		"shipped": "anthropic/claude: {input: 3, output: \"15.00\", cacheRead: 0.30, cacheWrite: 3.75, contextWindow: " +
			"200000}\nlocal: {contextWindow: 8192, reasoningEffort: high, " +
			"temperature: 0.2, api: responses}\n",
		"ours": `{"gateway/claude": {"input": "0.000000000001", "output": 0}}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]session.Model{
		"anthropic/claude": {Input: "3", Output: "15.00", CacheRead: "0.3", CacheWrite: "3.75", ContextWindow: 200000},
		"local":            {ContextWindow: 8192, ReasoningEffort: "high", Temperature: "0.2", API: session.APIResponses},
		"gateway/claude":   {Input: "0.000000000001", Output: "0"},
	} {
		if models[name] != want {
			t.Errorf("%s is %+v, want %+v", name, models[name], want)
		}
	}
}

func TestOverridesReplaceSingleFields(t *testing.T) {
	models, err := session.ParseModels(map[string]string{
		"overrides": "claude: {input: 2, output: 10}\nours: {input: 1, output: 1}\nbad: {input: none}\n",
		"zz":        "claude: {input: 3, output: 15, contextWindow: 200000, maxOutput: 64000}\nbad: {input: 7, output: 7}\n",
	})
	want := session.Models{"claude": {Input: "2", Output: "10", ContextWindow: 200000, MaxOutput: 64000},
		"ours": {Input: "1", Output: "1"}, "bad": {Input: "7", Output: "7"}}
	if !maps.Equal(models, want) {
		t.Errorf("got %+v", models)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "overrides: model bad: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

func TestThePriceOfAModelIsFoundByTheNameInTheSettings(t *testing.T) {
	models := session.Models{"openai/gpt-5": {Input: "1", Output: "1"}, "claude": {Input: "1", Output: "1"},
		"local/free": {Input: "0", Output: "0"}, "local/unknown": {ContextWindow: 1}}
	for name, want := range map[string]bool{"openai/gpt-5": true, "gpt-5": true, "OpenAI/gpt-5-2026-01-01": true,
		"openrouter/anthropic/claude": true, "anthropic/claude-latest": true, "local/free": true, "local/unknown": false,
		"azure/gpt-5": false, "litellm_proxy/large": false, "": false} {
		if models.HasPrice(name, "") != want {
			t.Errorf("%q has a price: %t", name, !want)
		}
	}
	// A gateway chooses its own names for models. Its gpt-5 may be another model than openai/gpt-5,
	// so it has no price. The price of claude is found, because the entry claude names no provider.
	if models.HasPrice("gpt-5", "https://gateway") || !models.HasPrice("claude", "https://gateway") {
		t.Error("a gateway's model has the price of another provider")
	}
}

func TestTheShippedPricesHaveADateAndASource(t *testing.T) {
	text, err := os.ReadFile("../../config/agents/models.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var shipped corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &shipped); err != nil {
		t.Fatal(err)
	}
	origin := regexp.MustCompile(`^# As of 20[0-9]{2}-[0-9]{2}-[0-9]{2}: https://`)
	for key, group := range shipped.Data {
		if !origin.MatchString(group) {
			t.Errorf("%s does not begin with a date and a source", key)
		}
	}
}

func TestTheShippedModelsAreValid(t *testing.T) {
	text, err := os.ReadFile("../../config/agents/models.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var shipped corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &shipped); err != nil {
		t.Fatal(err)
	}
	models, err := session.ParseModels(shipped.Data)
	if err != nil || shipped.Name != v1alpha1.ModelsName || len(models) < 40 {
		t.Errorf("%s has %d models: %v", shipped.Name, len(models), err)
	}
	for name, model := range models {
		if model.Input == "" || model.ContextWindow == 0 {
			t.Errorf("%s is %+v", name, model)
		}
	}
	// This version costs more than the other versions of its model.
	if dear := models.Find("openai", "gpt-4o-2024-05-13"); dear.Input != "5" || dear.Output != "15" {
		t.Errorf("the price is %+v", dear)
	}
}

func TestAnInvalidModelDoesNotAffectOthers(t *testing.T) {
	for mistake, says := range map[string]string{
		`{input: -1, output: 1}`:                         `"-1" is not a price`,
		`{input: lots, output: 1}`:                       `"lots" is not a price`,
		`{input: 1e999999999, output: 1}`:                "is not",
		`{input: "1e999999999", output: 1}`:              "is not a price",
		`{input: 1}`:                                     "both prices input and output, or neither",
		`{cacheRead: 1}`:                                 "the prices input and output, because",
		`{input: 1, output: 1, outptu: 2}`:               `unknown field "outptu"`,
		`{contextWindow: -1}`:                            "contextWindow is negative",
		`{reasoningEffort: much}`:                        "reasoningEffort",
		`{temperature: warm}`:                            "invalid number",
		`{api: chat}`:                                    "api",
		`{contextWindow: many}`:                          "contextWindow",
		`[]`:                                             "cannot unmarshal",
		"{input: 1, output: 1}\nbad: {contextWindow: 2}": "bad",
	} {
		models, err := session.ParseModels(map[string]string{"a": "bad: " + mistake, "b": "good: {input: 1, output: 2}"})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.HasPrefix(err.Error(), "a: ") {
			t.Errorf("%s: got %v", mistake, err)
		}
		if models["good"].Output != "2" {
			t.Errorf("%s: the other model is %+v", mistake, models["good"])
		}
	}
	if _, err := session.ParseModels(map[string]string{"a": "m: {}", "b": "m: {}"}); err == nil ||
		err.Error() != "b: model m: occurs twice" {
		t.Errorf("a model that occurs twice: %v", err)
	}
}
