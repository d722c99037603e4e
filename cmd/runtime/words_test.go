package main_test

import (
	"strings"
	"syscall"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
)

// failed() waits until this many turns have ended with an error, and returns the events.
func (p *pod) failed(t *testing.T, turns int) string {
	t.Helper()
	var events string
	eventually(t, "the turn ends as an error", func() bool {
		events = strings.Join(p.eventLines(t), "\n")
		return strings.Count(events, "agent_state_changed error") == turns
	})
	return events
}

func TestTurnsFailUntilAModelIsSet(t *testing.T) {
	t.Parallel()
	p, model := scripted(t, func(d *session.Document) { d.Settings.LLMModel = nil }, says("Done."), says("Done too."))
	p.start(t)
	const words = "no model is set: set llm_model in the settings (llmModel in UserSettings)"
	if events := p.failed(t, 1); strings.Count(events, "environment error") != 1 || !strings.Contains(events, words) {
		t.Errorf("the events are\n%s", events)
	}
	p.send(t, `{"action":"message","args":{"content":"and now?"}}`)
	if events := p.failed(t, 2); strings.Count(events, "environment error") != 2 || strings.Count(events, words) < 2 {
		t.Errorf("after another message the events are\n%s", events)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait(t)
	p.doc.Settings.LLMModel = ptr.To("scripted/model")
	p.writeDocument(t)
	p.start(t)
	eventually(t, "both messages are answered", func() bool { return over(p.eventLines(t)) && len(model.Requests()) == 2 })
	if requests := model.Requests(); !requests[0].Contains("work") || requests[0].Contains("and now?") ||
		!requests[1].Contains("and now?") {
		t.Errorf("the model got %q, then %q", requests[0].Said(), requests[1].Said())
	}
}

func TestErrorsDistinguishWrongSettingsFromProviderFailures(t *testing.T) {
	t.Parallel()
	const unavailable = "STATUS$ERROR_LLM_SERVICE_UNAVAILABLE"
	for name, c := range map[string]struct{ model, base, id, says string }{
		"no endpoint": {"example/model", "", "", "The model cannot be used: llm_model: no endpoint is " +
			"known for example: set llm_base_url"},
		"no valid URL": {"example/model", "ftp://127.0.0.1", "", "The model cannot be used: llm_base_url: must be an " +
			"http or https URL"},
		"no such host": {"openai/model", "http://host.invalid", unavailable,
			"The model could not be reached: the model's endpoint host.invalid"},
		"no server": {"anthropic/model", "http://127.0.0.1:1", unavailable,
			"The model could not be reached: the model's endpoint 127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := scripted(t, func(d *session.Document) {
				d.Settings.LLMModel, d.Settings.LLMBaseURL = ptr.To(c.model), ptr.To(c.base)
			})
			p.start(t)
			if events := p.failed(t, 1); !strings.Contains(events, c.says) || strings.Contains(events, "provider") {
				t.Errorf("the events are\n%s", events)
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
	eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
	events := strings.Join(p.eventLines(t), "\n")
	if strings.Count(events, "environment notice") != 2 ||
		!strings.Contains(events, "The agent waits for the tool server tracker") ||
		!strings.Contains(events, "The tool server tracker cannot be used") || !strings.Contains(events, "refused") {
		t.Errorf("the events are\n%s", events)
	}
	if strings.Contains(events, "hunter2") || strings.Contains(events, secretValues["custom.0"]) {
		t.Errorf("the events have a secret:\n%s", events)
	}
}

// The tool server accepts connections and never responds. The session still serves requests and
// says that its agent waits for this server.
func TestASessionRunsWhileItsAgentWaitsForAToolServer(t *testing.T) {
	t.Parallel()
	p, _ := scripted(t, func(d *session.Document) {
		d.ToolServers.SHTTP = []session.RemoteServer{silentServer(t)}
	}, says("Done."))
	p.start(t)
	p.waitReady(t)
	eventually(t, "a notice names the tool server", func() bool {
		return strings.Contains(strings.Join(p.eventLines(t), "\n"),
			"The agent waits for the tool server tracker: it does not answer.")
	})
	if events := p.eventLines(t); over(events) {
		t.Errorf("the agent did not wait:\n%s", strings.Join(events, "\n"))
	}
}
