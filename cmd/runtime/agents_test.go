//go:build agents

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/scriptedmodel"
)

// commands of the agents that others publish: the tool by which each runs a command in a shell.
var commands = map[string]func(string) scriptedmodel.Call{
	"opencode": func(command string) scriptedmodel.Call {
		return scriptedmodel.Call{Name: "bash", Input: scriptedmodel.Input(map[string]any{"command": command, "description": "runs a command"})}
	},
}

// example is the entry of an agent in config/agents/examples.
func example(t *testing.T, name string) *session.Agent {
	t.Helper()
	text, err := os.ReadFile("../../config/agents/examples/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var examples corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &examples); err != nil {
		t.Fatal(err)
	}
	catalogue, err := session.ParseCatalogue(examples.Data)
	if err != nil {
		t.Fatal(err)
	}
	agent := catalogue[name]
	return &agent
}

// The programs are where PARLEY_AGENTS says, as npm installs them.
func TestPublicAgentsWorkOnMessages(t *testing.T) {
	programs, err := filepath.Abs(os.Getenv("PARLEY_AGENTS"))
	if err != nil || os.Getenv("PARLEY_AGENTS") == "" {
		t.Fatal("PARLEY_AGENTS names no directory of agents")
	}
	for name, command := range commands {
		t.Run(name, func(t *testing.T) {
			p, model := scripted(t, func(d *session.Document) {
				d.Agent, d.ToolServers = example(t, name), toolServers()
			},
				calls(command("echo made > made")), says("It is made."),
				calls(scriptedmodel.Call{Name: "parley_local_where", Input: scriptedmodel.Input(map[string]any{})}), says("There it is."),
			)
			p.image = append(p.image, "PATH="+programs+":"+os.Getenv("PATH"))
			p.start(t)
			p.turnEnds(t, 1)
			if got := p.file("made"); got != "made\n" {
				t.Errorf("made is %q", got)
			}
			p.says(t, "And where?")
			p.turnEnds(t, 2)
			requests := model.Requests()
			last := requests[len(requests)-1]
			if !last.Contains("work") || !last.Contains("It is made.") || !last.Contains("And where?") || !last.Contains(p.workspace) {
				t.Errorf("the last request says %q", last.Said())
			}
			if violations := model.Violations(); len(violations) > 0 {
				t.Errorf("the model refused: %q", violations)
			}
			t.Logf("the events are\n%s", strings.Join(p.told(t), "\n"))
		})
	}
}

func (p *pod) says(t *testing.T, message string) {
	t.Helper()
	p.send(t, `{"action":"message","args":{"content":"`+message+`"}}`)
}

// turnEnds waits until as many turns have ended well.
func (p *pod) turnEnds(t *testing.T, turns int) {
	t.Helper()
	eventually(t, "the turn ends", func() bool {
		told := strings.Join(p.told(t), "\n")
		if strings.Contains(told, "agent_state_changed error") {
			t.Fatalf("the events are\n%s", told)
		}
		return strings.Count(told, "agent_state_changed "+string(session.StateAwaiting)) == turns
	})
}
