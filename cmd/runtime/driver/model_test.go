package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
)

// The agent restarts between two turns if the model changed, but not if only the key changed. After
// the restart, it loads its session or receives the history as text.
func TestAnAgentKeepsItsContextAfterAModelChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		can              string
		forgets, restart bool
		hears, not       string
	}{
		"an agent that loads its session": {"plainload", false, true, "session/load", "You: the answer is 42"},
		"an agent that forgets":           {"plainload", true, true, "You: the answer is 42", "session/load"},
		"only the key changed":            {"plainload", false, false, "session/prompt", "initialize"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, session.Document{FirstMessage: orders("say the answer is 42")})
			d.can, d.doc.Agent.Forgets = c.can, c.forgets
			refreshes := 0
			d.refresh = func(context.Context) *driver.ModelChange {
				if refreshes++; refreshes == 1 {
					return nil
				}
				return &driver.ModelChange{Restart: c.restart, Revision: "r2", Notice: "The model is now hunter2.",
					Input: session.AgentInput{Model: "b/two"},
					Env:   append(os.Environ(), stubVariable+"="+c.can, "HEARD="+filepath.Join(d.dir, "heard"))}
			}
			d.start().until(session.StateAwaiting)
			before := len(d.heard())
			for _, text := range []string{"on", "and on"} {
				if err := d.driver.Message("say "+text, nil, ""); err != nil {
					t.Fatal(err)
				}
				d.wait("the answer", func() bool { _, said := d.driver.State(); return said == text })
				d.until(session.StateAwaiting)
			}
			if got := d.heard()[before:]; !strings.Contains(got, c.hears) || strings.Contains(got, c.not) {
				t.Errorf("after the change the agent got\n%s", got)
			}
			if got := strings.Join(d.events(), "\n"); strings.Count(got, "The model is now ***.") != 1 {
				t.Errorf("the events are\n%s", got)
			}
		})
	}
}
