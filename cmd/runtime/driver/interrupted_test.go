package driver_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

const runningCommand = `raw {"sessionUpdate":"tool_call","toolCallId":"k","title":"run","kind":"execute",` +
	`"status":"in_progress","rawInput":{"command":"make"}}`

func TestAnInterruptedCommandIsNotShownAsRunning(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders(runningCommand, "hang")}).start()
	d.has("run make", 1)
	d.change(session.StateStopped)
	d.until(session.StateStopped)
	d.has("ran make: [The turn ended before this action ended. The action may be partly done.] map[exit_code:130], "+
		"of 3", 1)
}

func TestAnInterruptedCommandGetsAResultAfterARestart(t *testing.T) {
	t.Parallel()
	for _, can := range []string{"plain", "plainresume", "plainexact"} {
		t.Run(can, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, session.Document{FirstMessage: orders(runningCommand, "wait "+filepath.Join(t.TempDir(), "x"))})
			d.can = can
			d.start().has("run make", 1)
			d.stop()
			d.start().has("ran make: [The session was restarted during this action. The action may be partly done.] "+
				"map[exit_code:130], of 3", 1)
		})
	}
}

// The workspace is lost, and with it the agent's memory. The journal is restored from the archive.
func TestAnAgentThatLostItsMemoryReceivesItsEarlierActions(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders("say I push", "run git push",
		"wait "+filepath.Join(t.TempDir(), "never"))})
	d.can = "plainexact"
	d.start().has("ran git push: out map[exit_code:3], of 4", 1)
	d.stop()
	before := len(d.heard())
	d.start().wait("the prompt", func() bool { return strings.Contains(d.heard()[before:], "session/prompt") })
	heard := d.heard()[before:]
	for _, want := range []string{"User: say I push", "You: I push", "You ran: git push", "Result: out",
		"was interrupted while you worked"} {
		if !strings.Contains(heard, want) {
			t.Errorf("the agent did not get %q:\n%s", want, heard)
		}
	}
	if !strings.Contains(heard, `"parley.dev/replayed":true`) {
		t.Errorf("the agent may replay a recording again:\n%s", heard)
	}
}

// The earlier attempt recorded the agent's new session. The attempt ended before the agent received
// the first prompt of that session.
func TestAnAgentThatLostItsMemoryGetsTheHistoryInALaterAttempt(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say first"})
	d.can = "plainexactload"
	d.start().untilSaid("first")
	d.until(session.StateAwaiting)
	d.stop()
	events, err := journal.Open(filepath.Join(d.dir, "events.jsonl"), masking.Mask)
	if err != nil {
		t.Fatal(err)
	}
	message := events.Len()
	begun := session.StateChange(session.StateRunning, "")
	begun.Meta = &session.EventMeta{Turn: &message, Session: "s2"}
	if _, err := events.Append(session.UserMessage("say second", nil), begun); err != nil {
		t.Fatal(err)
	}
	_ = events.Close()
	before := len(d.heard())
	d.start().untilSaid("second")
	heard := d.heard()[before:]
	for _, want := range []string{`"sessionId":"s2"`, "You: first", "User: say second",
		"was interrupted while you worked"} {
		if !strings.Contains(heard, want) {
			t.Errorf("the agent did not get %q:\n%s", want, heard)
		}
	}
}

func TestAnAgentThatLostItsMemoryIsToldNotToRepeatReplayedActions(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders("run make", "wait "+filepath.Join(t.TempDir(), "never")),
		Replay: true})
	d.can = "plainexact"
	recording := `[{"source":"agent","action":"run","args":{"command":"git push"}}]`
	if err := os.WriteFile(filepath.Join(d.dir, "replay"), []byte(recording), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start().wait("the result", func() bool { return strings.Contains(strings.Join(d.events(), "\n"), "ran make: out") })
	d.stop()
	before := len(d.heard())
	d.start().wait("the prompt", func() bool { return strings.Contains(d.heard()[before:], "session/prompt") })
	if heard := d.heard()[before:]; !strings.Contains(heard, "You ran: git push") ||
		!strings.Contains(heard, "do not repeat an action") || strings.Contains(heard, "Continue from its end") {
		t.Errorf("the agent got\n%s", heard)
	}
}

func TestResumingAfterAPauseAddsNoUserMessage(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders("say working", "hang")}).start()
	d.wait("work", func() bool { return strings.Contains(d.heard(), "session/prompt") })
	d.change(session.StatePaused)
	d.until(session.StatePaused)
	d.change(session.StateRunning)
	d.wait("the next turn", func() bool { return strings.Contains(d.heard(), `"text":"Continue."`) })
	d.until(session.StateAwaiting)
	if got := strings.Join(d.events(), "\n"); strings.Count(got, "user:") != 1 {
		t.Errorf("the events are\n%s", got)
	}
}

func TestAOneShotSessionRefusesASecondMessage(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "hang", OneShot: true}).start()
	d.until(session.StateRunning)
	if err := d.driver.Message("say more", nil, ""); !errors.Is(err, driver.ErrOneShot) {
		t.Errorf("a second message: %v", err)
	}
}

func TestAStopEndsTheSetupScript(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say never", Repository: &session.Repository{Name: "r"}})
	d.setup("echo begun; touch " + filepath.Join(d.dir, "begun") + "; exec sleep 600")
	d.start().has("run .openhands/setup.sh", 1)
	d.change(session.StateStopped)
	d.until(session.StateStopped)
	got := strings.Join(d.events(), "\n")
	if !strings.Contains(got, "exit_code:130") || strings.Contains(d.heard(), "session/prompt") {
		t.Errorf("the events are\n%s", got)
	}
}

func TestUsageIsRestoredFromTheJournal(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say hello"})
	d.turns.count(`{"session":{"calls":1},"turn":{"calls":1}}`)
	d.start().until(session.StateAwaiting)
	d.turns.count(`{"session":{"calls":2},"turn":{"calls":0}}`) // a call after the turn
	d.stop()
	d.start()
	if usage, err := driver.Usage(d.journal); err != nil || !strings.Contains(string(usage), `"session":{"calls":2}`) {
		t.Errorf("restored is %s: %v", usage, err)
	}
}

// The first attempt ends while the setup script runs, before the turn begins. The next attempt must
// record the end of the script before it runs the script again.
func TestTheSetupScriptOfALostAttemptIsRecordedAsEnded(t *testing.T) {
	t.Parallel()
	flag := filepath.Join(t.TempDir(), "flag")
	d := newDrive(t, session.Document{FirstMessage: "say hi", Repository: &session.Repository{Name: "r"}})
	d.setup("test -e " + flag + " && exit 0; touch " + flag + "; exec sleep 600")
	d.start().wait("the script", func() bool { _, err := os.Stat(flag); return err == nil })
	d.stop()
	d.start().untilSaid("hi")
	d.expect("state loading", "user: say hi", "run .openhands/setup.sh",
		"ran .openhands/setup.sh: [The session was restarted during this action. The action may be partly done.] "+
			"map[exit_code:130], of 2",
		"run .openhands/setup.sh", "ran .openhands/setup.sh:  map[exit_code:0], of 4", "state running", "system", "agent: hi",
		"state awaiting_user_input")
}
