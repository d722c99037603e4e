package driver_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
)

func confirming(analyzer string) v1alpha1.UserSettingsSpec {
	settings := v1alpha1.UserSettingsSpec{ConfirmationMode: ptr.To(true)}
	if analyzer != "" {
		settings.SecurityAnalyzer = &analyzer
	}
	return settings
}

func TestAnActionWaitsUntilTheUserConfirmsIt(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask touch a", Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	d.change(session.StateConfirmed)
	d.until(session.StateAwaiting)
	d.expect("state loading", "user: ask touch a", "state running", "run touch a awaiting_confirmation",
		"state awaiting_user_confirmation",
		"change_agent_state", "state user_confirmed", "state running", "ran touch a:  map[exit_code:0], of 3",
		"state awaiting_user_input")
	if err := d.answer(session.StateConfirmed, nil); !errors.Is(err, driver.ErrNothingAsked) {
		t.Errorf("an answer to no question: %v", err)
	}
}

func TestARejectedActionIsNotDone(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask touch a", Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	d.change(session.StateRejected)
	d.until(session.StateAwaiting)
	d.expect("state loading", "user: ask touch a", "state running", "run touch a awaiting_confirmation",
		"state awaiting_user_confirmation",
		"change_agent_state", "state user_rejected", "user_rejected The user rejected this action.", "state running",
		"state awaiting_user_input")
}

func TestWithTheLLMAnalyzerOnlyHighRisksNeedConfirmation(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders("ask ls", "ask rm -r"), Settings: confirming("llm")}).start()
	d.until(session.StateConfirmation)
	d.expect("state loading", "user: "+orders("ask ls", "ask rm -r"), "state running", "run ls confirmed",
		"ran ls:  map[exit_code:0], of 3",
		"run rm -r awaiting_confirmation", "state awaiting_user_confirmation")
}

func TestActionsRunWithoutAQuestionIfConfirmationModeIsOff(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm"}).start()
	d.until(session.StateAwaiting)
}

func TestAQuestionSurvivesARestart(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm", Settings: confirming("")})
	d.can = "plainresume"
	d.start().until(session.StateConfirmation)
	d.stop()
	d.start().wait("the question again", func() bool {
		return strings.Count(strings.Join(d.events(), "\n"), "state awaiting_user_confirmation") == 2
	})
	d.change(session.StateConfirmed)
	d.until(session.StateAwaiting)
}

func TestAnUnansweredQuestionLetsTheSessionBecomeIdle(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm", Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	close(d.idle)
	if got := d.over(); got == nil || got.Reason != v1alpha1.ReasonIdle {
		t.Errorf("it ended with %+v", got)
	}
}

// request returns an order that makes the stub agent request permission for a command.
func request(id, command, options string) string {
	return fmt.Sprintf(`request {"toolCall":{"toolCallId":%q,"title":"ask","kind":"execute","rawInput":{"command":%q}},`+
		`"options":[{"optionId":"n","kind":"reject_once"},%s]}`, id, command, options)
}

const (
	once   = `{"optionId":"y","kind":"allow_once"}`
	always = `{"optionId":"always","kind":"allow_always"}`
)

// drive.has waits until the line occurs exactly this many times in the events.
func (d *drive) has(line string, times int) {
	d.t.Helper()
	d.wait(fmt.Sprintf("%q %d times", line, times), func() bool {
		return strings.Count(strings.Join(d.events(), "\n")+"\n",
			line+"\n") == times
	})
}

// Another action with the same ID needs another answer.
func TestAConfirmationAppliesOnlyToItsQuestion(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders(request("k", "touch a", once), request("k", "touch b", once)),
		Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	d.change(session.StateConfirmed)
	d.has("state awaiting_user_confirmation", 2)
	d.has("run touch b awaiting_confirmation", 1)
	d.change(session.StateRejected)
	d.until(session.StateAwaiting)
	if _, said := d.driver.State(); said != "n" {
		t.Errorf("after it was rejected the agent said %q", said)
	}
}

// The second call has the same ID, title and input, but names another file.
func TestAConfirmationAppliesOnlyToItsFiles(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders(asks(t, `"kind":"delete","locations":[{"path":"/w/a"}]`),
		asks(t, `"kind":"delete","locations":[{"path":"/w/b"}]`)), Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	d.change(session.StateConfirmed)
	d.has("state awaiting_user_confirmation", 2)
}

// The agent requests permission again for an action that is already done.
func TestAConfirmationAppliesToOneCall(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders(request("k", "touch a", once), ran("k", "touch a"),
		request("k", "touch a", once)), Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	d.change(session.StateConfirmed)
	d.has("state awaiting_user_confirmation", 2)
	d.has("run touch a awaiting_confirmation", 2)
}

// The next attempt's agent repeats the turn.
func TestAnActionRepeatedAfterARestartNeedsConfirmationAgain(t *testing.T) {
	t.Parallel()
	never := filepath.Join(t.TempDir(), "never")
	d := newDrive(t, session.Document{FirstMessage: orders(request("k", "touch a", once), ran("k", "touch a"), "wait "+
		never), Settings: confirming("")})
	d.can = "plainresume"
	d.start().until(session.StateConfirmation)
	d.change(session.StateConfirmed)
	d.wait("the work", func() bool { return strings.Contains(strings.Join(d.events(), "\n"), "ran touch a") })
	d.stop()
	d.start().has("state awaiting_user_confirmation", 2)
	d.has("run touch a awaiting_confirmation", 2)
}

func TestAnAnsweredQuestionIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	never := filepath.Join(t.TempDir(), "never")
	d := newDrive(t, session.Document{FirstMessage: orders(request("k", "touch a", once), request("k", "touch a", once),
		"think hm", "wait "+never), Settings: confirming("")})
	d.can = "plainresume"
	d.start().until(session.StateConfirmation)
	d.change(session.StateConfirmed)
	d.has("agent: y", 2)
	d.stop()
	d.start().has("agent: y", 4)
	d.has("state awaiting_user_confirmation", 1)
	d.has("run touch a awaiting_confirmation", 1)
}

func TestAPermissionRequestWithoutAnIDIsRefused(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: request("", "touch a", once), Settings: confirming("")}).start()
	d.untilSaid("refused")
}

// An agent may offer to permit an action permanently. In confirmation mode, the driver does not
// choose this option.
func TestConfirmationModeGrantsNothingPermanently(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: request("k", "touch a", always), Settings: confirming("")}).start()
	d.untilSaid("n")
	if got := strings.Join(d.events(), "\n"); !strings.Contains(got, "notice The agent stub offered only a permanent") {
		t.Errorf("the events are\n%s", got)
	}
	d = newDrive(t, session.Document{FirstMessage: request("k", "touch a", always)}).start()
	d.untilSaid("always")
}
