package modelproxy_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

func TestAModelIsRefusedIfTheAgentDoesNotUseTheAPIOfTheModel(t *testing.T) {
	models := session.Models{"gpt-5-codex": {Input: "1", Output: "2", API: session.APIResponses}}
	for name, c := range map[string]struct {
		base, model string
		responses   bool
		refused     bool
	}{
		"OpenAI, an agent without the API": {model: "openai/gpt-5-codex", refused: true},
		"OpenAI, a dated name":             {model: "openai/gpt-5-codex-2026-01-01", refused: true},
		"OpenAI, an agent with the API":    {model: "openai/gpt-5-codex", responses: true},
		"another model":                    {model: "openai/gpt-5"},
		"a gateway":                        {model: "openrouter/openai/gpt-5-codex"},
		"a base URL":                       {model: "openai/gpt-5-codex", base: "http://127.0.0.1:1"},
	} {
		_, err := modelproxy.New(modelproxy.Options{BaseURL: c.base, Model: c.model, Models: models, Busy: idle,
			Agent: &session.Agent{Name: "coder", Responses: c.responses}, Log: slog.New(slog.DiscardHandler)})
		if (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "which the agent coder does not use") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
