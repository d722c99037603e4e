package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// serve serves a handler on the node's address until the check ends.
func (t *t) serve(handler http.Handler) (host string) {
	listener, err := net.Listen("tcp", nodeAddress+":0")
	t.must(err)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	server.Start()
	t.Cleanup(server.Close)
	return listener.Addr().String()
}

func (t *t) scriptedModel(steps ...scriptedmodel.Step) (model *scriptedmodel.Server, baseURL string) {
	model = scriptedmodel.New(scriptedmodel.Script{Steps: steps})
	return model, "http://" + t.serve(model)
}

// shippedAgent sets only a model and its key, and sends a message. All other settings are defaults.
func shippedAgent(t *t) {
	u := t.newUser()
	key := secretValue()
	model, baseURL := t.scriptedModel(
		scriptedmodel.Step{Text: "I will write it down.", Calls: []scriptedmodel.Call{{
			Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{"command": "echo written by the agent > made; env " +
				"> environment; cat /proc/1/environ"}),
		}}},
		scriptedmodel.Step{Text: "It is written."},
	)
	c := t.converse(u, rest.Settings{
		LLMModel: rest.Set("scripted/model"), LLMAPIKey: rest.NewKey(key), LLMBaseURL: rest.Set(baseURL),
	}, "shipped", "Write it down.")
	t.retry(func(context.Context) error {
		if events := t.shell(c, "cat .parley/events.jsonl"); !strings.Contains(events, "It is written.") ||
			!strings.Contains(events, "awaiting_user_input") {
			return fmt.Errorf("the events are %s", events)
		}
		return nil
	})
	if got := t.shell(c, "cat made"); got != "written by the agent" {
		t.Errorf("the agent wrote %q", got)
	}
	if seen := t.shell(c, "cat environment .parley/events.jsonl"); strings.Contains(seen, key) {
		t.Errorf("the agent found the key of the model")
	}
	for _, request := range model.Requests() {
		if !request.Contains("Write it down.") {
			t.Errorf("the model did not get the message: %q", request.Said())
		}
	}
	if problems := model.Violations(); len(problems) > 0 {
		t.Errorf("the model refused requests: %q", problems)
	}
}
