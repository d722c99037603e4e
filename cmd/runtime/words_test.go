package main_test

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
)

// failed waits until this many turns ended with an error, and returns the events.
func (p *pod) failed(t *testing.T, turns int) string {
	t.Helper()
	var told string
	eventually(t, "the turn ends as an error", func() bool {
		told = strings.Join(p.told(t), "\n")
		return strings.Count(told, "agent_state_changed error") == turns
	})
	return told
}

func TestASessionWithoutAModelFailsUntilThereIsOne(t *testing.T) {
	t.Parallel()
	p, model := scripted(t, func(d *session.Document) { d.Settings.LLMModel = nil }, says("Done."), says("Done too."))
	p.start(t)
	const words = "no model is set: set llm_model in the settings (llmModel in UserSettings)"
	if told := p.failed(t, 1); strings.Count(told, "environment error") != 1 || !strings.Contains(told, words) {
		t.Errorf("the events are\n%s", told)
	}
	p.send(t, `{"action":"message","args":{"content":"and now?"}}`)
	if told := p.failed(t, 2); strings.Count(told, "environment error") != 2 || strings.Count(told, words) < 2 {
		t.Errorf("after another message the events are\n%s", told)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait(t)
	p.doc.Settings.LLMModel = ptr.To("scripted/model")
	p.writeDocument(t)
	p.start(t)
	eventually(t, "both messages are worked on", func() bool { return over(p.told(t)) && len(model.Requests()) == 2 })
	if requests := model.Requests(); !requests[0].Contains("work") || requests[0].Contains("and now?") ||
		!requests[1].Contains("and now?") {
		t.Errorf("the model got %q, then %q", requests[0].Said(), requests[1].Said())
	}
}

func TestErrorsDistinguishSettingsFromTheProvider(t *testing.T) {
	t.Parallel()
	const unavailable = "STATUS$ERROR_LLM_SERVICE_UNAVAILABLE"
	for name, c := range map[string]struct{ model, base, id, says string }{
		"no endpoint": {"example/model", "", "", "The model cannot be used: llm_model: no endpoint is " +
			"known for example: set llm_base_url"},
		"no valid URL": {"example/model", "ftp://127.0.0.1", "", "The model cannot be used: llm_base_url: must be an " +
			"http or https URL"},
		"no such host": {"openai/model", "http://host.invalid", unavailable,
			"The model could not be reached; retries did not help: the model's endpoint host.invalid"},
		"no server": {"anthropic/model", "http://127.0.0.1:1", unavailable,
			"The model could not be reached; retries did not help: the model's endpoint 127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := scripted(t, func(d *session.Document) {
				d.Settings.LLMModel, d.Settings.LLMBaseURL = ptr.To(c.model), ptr.To(c.base)
			})
			p.start(t)
			if told := p.failed(t, 1); !strings.Contains(told, c.says) || strings.Contains(told, "provider") {
				t.Errorf("the events are\n%s", told)
			}
			if journal := p.file(".parley/events.jsonl"); !strings.Contains(journal, `"error_id":"`+c.id+`"`) {
				t.Errorf("the id of the error is not %q:\n%s", c.id, journal)
			}
		})
	}
}

func TestAnUnavailableToolServerIsReported(t *testing.T) {
	t.Parallel()
	p, _ := scripted(t, func(d *session.Document) {
		d.ToolServers.SHTTP = []session.RemoteServer{{Name: "tracker", URL: "http://user:hunter2@127.0.0.1:1/mcp?key=hunter2",
			APIKeyFile: "custom.0"}}
	}, says("Done."))
	p.start(t)
	eventually(t, "the turn is over", func() bool { return over(p.told(t)) })
	told := strings.Join(p.told(t), "\n")
	if strings.Count(told, "environment notice") != 2 ||
		!strings.Contains(told, "The agent waits for the tool server tracker") ||
		!strings.Contains(told, "The tool server tracker cannot be used") || !strings.Contains(told, "refused") {
		t.Errorf("the events are\n%s", told)
	}
	if strings.Contains(told, "hunter2") || strings.Contains(told, secretValues["custom.0"]) {
		t.Errorf("the events have a secret:\n%s", told)
	}
}

// A server that accepts connections and never answers does not block the start: the session serves
// requests and says that its agent waits for this server.
func TestASessionRunsWhileItsAgentWaitsForAToolServer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p, _ := scripted(t, func(d *session.Document) {
		d.ToolServers.SHTTP = []session.RemoteServer{{Name: "tracker", URL: "http://" + silent.Addr().String() + "/mcp"}}
	}, says("Done."))
	p.start(t)
	p.waitReady(t)
	eventually(t, "a notice names the tool server", func() bool {
		return strings.Contains(strings.Join(p.told(t), "\n"),
			"The agent waits for the tool server tracker: it does not answer.")
	})
	if told := p.told(t); over(told) {
		t.Errorf("the agent did not wait:\n%s", strings.Join(told, "\n"))
	}
}
