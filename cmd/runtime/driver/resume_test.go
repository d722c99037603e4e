package driver_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// The agent's capabilities determine which method opens the agent's session again. With each
// method, the agent learns that its turn was interrupted, and the journal contains the user's
// message only once.
func TestAnInterruptedTurnIsResumed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		can     string
		forgets bool
		method  string
	}{
		"in a new session":           {"plain", false, "session/new"},
		"by loading":                 {"plainload", false, "session/load"},
		"by resuming":                {"plainresume", false, "session/resume"},
		"with an agent that forgets": {"plainload", true, "session/new"},
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
			d.wait("the agent to resume", func() bool { return strings.Contains(d.heard()[before:], "session/prompt") })
			requests := d.heard()[before:]
			if !strings.Contains(requests, method) || !strings.Contains(requests, "was interrupted while you worked") {
				t.Errorf("after the restart the agent got\n%s", requests)
			}
			if got := strings.Join(d.events(), "\n"); strings.Contains(got, "told again") || strings.Count(got, "user:") != 1 {
				t.Errorf("the events are\n%s", got)
			}
		})
	}
}

func TestAnAgentThatLostItsSessionGetsATranscript(t *testing.T) {
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
	requests := d.heard()[before:]
	for _, want := range []string{"You: the answer is 42", "You ran: ls", "Result: out"} {
		if !strings.Contains(requests, want) {
			t.Errorf("the agent did not get %q:\n%s", want, requests)
		}
	}
	if strings.Contains(requests, "was interrupted while") {
		t.Errorf("the agent got the text for an interruption:\n%s", requests)
	}
}

func TestWaitingMessagesAreWorkedOnAfterARestart(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "hang"}).start()
	d.wait("work", func() bool { return strings.Contains(d.heard(), "session/prompt") })
	if err := d.driver.Message("say later", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.stop()
	d.start()
	d.wait("work", func() bool { return strings.Count(d.heard(), "session/prompt") == 2 })
	d.change(session.StateStopped)
	d.wait("the second message", func() bool { _, said := d.driver.State(); return said == "later" })
}
