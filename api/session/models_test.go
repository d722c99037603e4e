package session_test

import (
	"os"
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
}

func TestAnInvalidModelDoesNotAffectOthers(t *testing.T) {
	for mistake, says := range map[string]string{
		`{input: -1, output: 1}`:                         `"-1" is not a price`,
		`{input: lots, output: 1}`:                       `"lots" is not a price`,
		`{input: 1e999999999, output: 1}`:                "is not",
		`{input: "1e999999999", output: 1}`:              "is not a price",
		`{input: 1}`:                                     "both input and output, or neither",
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
