package main_test

import (
	"crypto/ed25519"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

var agentProgram = sync.OnceValues(func() (string, error) {
	runtime, err := program()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(runtime), "shipped", "agent")
	if err := buildShipped(path, "../agent"); err != nil {
		return "", err
	}
	return path, nil
})

func bash(command string) scriptedmodel.Call {
	return scriptedmodel.Call{Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{"command": command,
		"security_risk": "LOW"})}
}

func scripted(t *testing.T, change func(*session.Document), steps ...scriptedmodel.Step) (*pod, *scriptedmodel.Server) {
	t.Helper()
	agent, err := agentProgram()
	if err != nil {
		t.Fatal(err)
	}
	model := scriptedmodel.New(scriptedmodel.Script{Steps: steps})
	server := httptest.NewUnstartedServer(model)
	model.CountConnections(server.Config)
	server.Start()
	t.Cleanup(server.Close)
	doc := session.Document{
		UID: "u1", PublicKey: facadeKey.Public().(ed25519.PublicKey),
		FirstMessage: "work", Settings: v1alpha1.UserSettingsSpec{LLMModel: ptr.To("scripted/model"),
			LLMBaseURL: ptr.To(server.URL)},
		Agent: &session.Agent{
			Name: "CodeActAgent", Protocol: session.ProtocolACP, Confirms: true,
			Command: []string{
				agent, "--model={{.Model}}", "--base-url={{.BaseURL}}", "{{with .ContextWindow}}--context-window={{.}}{{end}}",
				"{{with .ReasoningEffort}}--reasoning-effort={{.}}{{end}}", "{{with .Temperature}}--temperature={{.}}{{end}}",
				"--condense={{.Condense}}", "--confirm={{.ConfirmationMode}}", "--rate-actions={{.RateActions}}",
				"{{with .ReplayFile}}--replay={{.}}{{end}}",
			},
		},
	}
	if change != nil {
		change(&doc)
	}
	return newPod(t, doc), model
}

// byTranscript returns steps of a scripted model. If a request contains n answers of the model, the
// model answers with step n, counted from 0. Like a real model, it gives the same answer to a
// repeated request.
func byTranscript(steps ...scriptedmodel.Step) []scriptedmodel.Step {
	for i := range steps {
		steps[i].Times = 100
		steps[i].When = func(request *scriptedmodel.Request) bool {
			said := 0
			for _, turn := range request.Turns {
				if turn.Role == "assistant" {
					said++
				}
			}
			return said == i
		}
	}
	return steps
}

func shippedPod(t *testing.T) (*pod, *scriptedmodel.Server) {
	t.Helper()
	return scripted(t, nil, byTranscript(
		scriptedmodel.Step{Text: "I begin.", Calls: []scriptedmodel.Call{bash("echo one >> log; X=kept")}},
		scriptedmodel.Step{Calls: []scriptedmodel.Call{bash("echo two $X >> log"), {
			Name: "str_replace_editor", Input: scriptedmodel.Input(map[string]any{"command": "create", "path": "made",
				"file_text": "a\n"}),
		}}},
		scriptedmodel.Step{Text: "I am done."},
	)...)
}

// eventLines returns a line for each event, without the parts that differ between runs.
func (p *pod) eventLines(t *testing.T) []string {
	t.Helper()
	var lines []string
	for _, e := range p.events(t) {
		content := ""
		if e.Content != nil {
			content = strings.ReplaceAll(*e.Content, p.workspace, "DIR")
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s%s %s %s %s", e.Source, e.Action, e.Observation,
			e.StateOf(), strings.ReplaceAll(e.Message, p.workspace, "DIR"), content)))
	}
	return lines
}

func (p *pod) file(name string) string {
	text, _ := os.ReadFile(filepath.Join(p.workspace, name))
	return string(text)
}

func over(events []string) bool {
	return len(events) > 0 && strings.Contains(events[len(events)-1], string(session.StateAwaiting))
}

// The session is killed at each event, and the next attempt resumes. The result is the same as
// without a kill, except for an interrupted command. That command is reported as interrupted and
// does not run again.
func TestASessionResumesAfterAKillAtAnyEvent(t *testing.T) {
	undisturbed, _ := shippedPod(t)
	undisturbed.start(t)
	eventually(t, "the turn is over", func() bool { return over(undisturbed.eventLines(t)) })
	want := undisturbed.eventLines(t)
	if undisturbed.file("log") != "one\ntwo kept\n" || undisturbed.file("made") != "a\n" {
		t.Fatalf("undisturbed, the files are %q and %q", undisturbed.file("log"), undisturbed.file("made"))
	}
	for n := 1; n < len(want); n++ {
		t.Run(fmt.Sprintf("%d %s", n, want[n-1]), func(t *testing.T) {
			p, model := shippedPod(t)
			p.start(t)
			eventually(t, "the event", func() bool { return len(p.eventLines(t)) >= n })
			p.killSession(t)
			p.start(t)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the events are\n%s", strings.Join(p.eventLines(t), "\n"))
				}
			})
			eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
			got := p.eventLines(t)
			if violations := model.Violations(); len(violations) > 0 {
				t.Errorf("the model refused: %q", violations)
			}
			if log := p.file("log"); strings.Count(log, "one") > 1 || strings.Count(log, "two") > 1 {
				t.Errorf("a command ran twice: %q", log)
			}
			if strings.Contains(strings.Join(got, "\n"), "interrupted by a restart") {
				return
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") || p.file("log") != undisturbed.file("log") ||
				p.file("made") != undisturbed.file("made") {
				t.Errorf("the files are %q and %q, and the events\n%s\nwant\n%s", p.file("log"), p.file("made"), strings.Join(got,
					"\n"), strings.Join(want, "\n"))
			}
		})
	}
}
