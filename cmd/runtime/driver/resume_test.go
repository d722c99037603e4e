package driver_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// A turn that was under way is gone on with in the way that the agent knows, and is never begun as
// if it were new.
func TestATurnThatWasCutOffIsGoneOnWith(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		can     string
		forgets bool
		method  string
	}{
		"by neither":                 {"plain", false, "session/new"},
		"by loading":                 {"plainload", false, "session/load"},
		"by resuming":                {"plainresume", false, "session/resume"},
		"by loading, but it forgets": {"plainload", true, "session/new"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, session.Document{FirstMessage: orders("say working", "wait "+filepath.Join(t.TempDir(), "never"))})
			d.can, d.doc.Agent.Forgets = c.can, c.forgets
			method := c.method
			d.start().wait("work", func() bool { return strings.Contains(d.heard(), "session/prompt") })
			d.stop()
			before := len(d.heard())
			d.start()
			d.wait("the agent to go on", func() bool { return strings.Contains(d.heard()[before:], "session/prompt") })
			told := d.heard()[before:]
			if !strings.Contains(told, method) || !strings.Contains(told, "was interrupted while you worked") {
				t.Errorf("started again, the agent was told\n%s", told)
			}
			if got := strings.Join(d.events(), "\n"); strings.Contains(got, "told again") || strings.Count(got, "user:") != 1 {
				t.Errorf("the events are\n%s", got)
			}
		})
	}
}

func TestAnAgentThatForgetsIsToldWhatHappened(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders("say the answer is 42", "run ls")}).start()
	d.until(session.StateAwaiting)
	d.stop()
	before := len(d.heard())
	d.start()
	if err := d.driver.Message("say on", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.wait("the answer", func() bool { _, said := d.driver.State(); return said == "on" })
	told := d.heard()[before:]
	for _, want := range []string{"You: the answer is 42", "You ran: ls", "Result: out"} {
		if !strings.Contains(told, want) {
			t.Errorf("the agent was not told %q:\n%s", want, told)
		}
	}
	if strings.Contains(told, "was interrupted while") {
		t.Errorf("the agent was told of an interruption:\n%s", told)
	}
}

func TestMessagesThatWaitedAreWorkedOnAfterAStart(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "hang"}).start()
	d.wait("work", func() bool { return strings.Contains(d.heard(), "session/prompt") })
	if err := d.driver.Message("say later", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.stop()
	d.start()
	d.wait("work", func() bool { return strings.Count(d.heard(), "session/prompt") == 2 })
	if err := d.driver.ChangeState(session.StateStopped, ""); err != nil {
		t.Fatal(err)
	}
	d.wait("the second message", func() bool { _, said := d.driver.State(); return said == "later" })
}
