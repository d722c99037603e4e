package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
)

func (d *drive) change(state session.State) {
	d.t.Helper()
	if err := d.answer(state, nil); err != nil {
		d.t.Fatal(err)
	}
}

func (d *drive) answer(state session.State, question *int) error {
	return d.driver.ChangeState(driver.StateRequest{State: state, Question: question}, "")
}

func (d *drive) message(text string) {
	d.t.Helper()
	if err := d.driver.Message(text, nil, ""); err != nil {
		d.t.Fatal(err)
	}
}

func (d *drive) untilSaid(text string) {
	d.t.Helper()
	d.wait("the answer "+text, func() bool {
		state, said := d.driver.State()
		return said == text && state == session.StateAwaiting
	})
}

// A second click on Stop may arrive after the turn has ended. It must not stop the turn of the next
// message.
func TestAStopBetweenTurnsDoesNotCancelTheNextMessage(t *testing.T) {
	t.Parallel()
	for _, state := range []session.State{session.StatePaused, session.StateStopped} {
		d := newDrive(t, session.Document{FirstMessage: "hang"}).start()
		d.until(session.StateRunning)
		d.change(state)
		d.until(state)
		d.change(state)
		d.message("say on")
		d.untilSaid("on")
		d.change(state)
		d.stop()
		d.start()
		d.message("say still on")
		d.untilSaid("still on")
	}
}

func TestAStopAfterAFailedAgentStartDoesNotDropTheMessage(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say first"})
	working := *d.doc.Agent
	d.doc.Agent = &session.Agent{Name: "gone", Protocol: session.ProtocolACP, Command: []string{"no-such-agent"}}
	d.start().until(session.StateError)
	d.change(session.StateStopped)
	d.stop()
	d.doc.Agent = &working
	d.start().untilSaid("first")
}

func TestNoPromptIsSentForATurnThatWasStoppedBeforeTheAgentStarted(t *testing.T) {
	t.Parallel()
	prepared := filepath.Join(t.TempDir(), "prepared")
	d := newDrive(t, session.Document{FirstMessage: "say never", Instructions: "Be brief.",
		Repository: &session.Repository{Name: "a/b"}})
	d.setup("until test -e " + prepared + "; do sleep 0.01; done")
	d.start().wait("the setup", func() bool {
		return strings.Contains(strings.Join(d.events(), "\n"),
			"run .openhands/setup.sh")
	})
	d.change(session.StateStopped)
	if err := os.WriteFile(prepared, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateStopped)
	if got := d.heard(); strings.Contains(got, "session/prompt") {
		t.Errorf("the agent heard\n%s", got)
	}
	d.message("say on")
	d.untilSaid("on")
	if got := d.heard(); !strings.Contains(got, "Be brief.") || strings.Contains(got, "say never") {
		t.Errorf("the agent heard\n%s", got)
	}
}

func TestAStoppedTurnEndsEvenIfItsAgentCannotStart(t *testing.T) {
	t.Parallel()
	prepared := filepath.Join(t.TempDir(), "prepared")
	d := newDrive(t, session.Document{FirstMessage: "say never", Repository: &session.Repository{Name: "a/b"}})
	working := *d.doc.Agent
	d.doc.Agent = &session.Agent{Name: "gone", Protocol: session.ProtocolACP, Command: []string{"no-such-agent"}}
	d.setup("until test -e " + prepared + "; do sleep 0.01; done")
	d.start().wait("the setup", func() bool {
		return strings.Contains(strings.Join(d.events(), "\n"),
			"run .openhands/setup.sh")
	})
	d.change(session.StateStopped)
	if err := os.WriteFile(prepared, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateStopped)
	d.stop()
	d.doc.Agent = &working
	d.start().message("say on")
	d.untilSaid("on")
	if got := d.heard(); strings.Contains(got, "say never") {
		t.Errorf("the agent heard\n%s", got)
	}
}

func TestATurnStoppedBeforeACrashIsNotResumed(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ignore"})
	d.can = "plainresume"
	d.start().wait("work", func() bool { return strings.Contains(d.heard(), "session/prompt") })
	d.change(session.StateStopped)
	d.stop()
	d.start().until(session.StateStopped)
	if got := d.heard(); strings.Count(got, "session/prompt") != 1 {
		t.Errorf("the agent heard\n%s", got)
	}
	d.message("say on")
	d.untilSaid("on")
}

// The agent hangs and does not read its prompt, which is larger than the pipe's buffer. The user
// can still stop the session.
func TestAnAgentThatDoesNotReadItsInputCanBeStopped(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: strings.Repeat("x", 1<<20)})
	d.can = "plaindeaf"
	d.start().until(session.StateRunning)
	d.change(session.StateStopped)
	d.stop()
	d.start().until(session.StateStopped)
}

// A stop must dismiss the pending question. Otherwise, the agent would wait for the answer until
// the driver kills it.
func TestAStopDuringAQuestionEndsTheTurn(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm", Settings: confirming("")}).start()
	for range 10 {
		d.until(session.StateConfirmation)
		d.change(session.StateStopped)
		d.until(session.StateStopped)
		d.message("ask rm")
	}
	d.until(session.StateConfirmation)
	if starts := strings.Count(d.heard(), "initialize "); starts != 1 {
		t.Errorf("the agent was started %d times", starts)
	}
}

// The second question waits for the answer to the first question. After the stop, the second
// question must not be asked.
func TestNoQuestionIsAskedAfterAStop(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "pair rm", Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	d.change(session.StateStopped)
	d.until(session.StateStopped)
	d.has("state awaiting_user_confirmation", 1)
	d.has("run rm awaiting_confirmation", 1)
}
