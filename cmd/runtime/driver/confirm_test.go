package driver_test

import (
	"errors"
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
	if err := d.driver.ChangeState(session.StateConfirmed); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateAwaiting)
	d.expect("state loading", "user: ask touch a", "state running", "run touch a awaiting_confirmation", "state awaiting_user_confirmation",
		"change_agent_state", "state user_confirmed", "state running", "ran touch a:  map[exit_code:0], of 3", "state awaiting_user_input")
	if err := d.driver.ChangeState(session.StateConfirmed); !errors.Is(err, driver.ErrNothingAsked) {
		t.Errorf("an answer to no question: %v", err)
	}
}

func TestAnActionThatTheUserRejectsIsNotDone(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask touch a", Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	if err := d.driver.ChangeState(session.StateRejected); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateAwaiting)
	d.expect("state loading", "user: ask touch a", "state running", "run touch a awaiting_confirmation", "state awaiting_user_confirmation",
		"change_agent_state", "state user_rejected", "user_rejected The user rejected this action.", "state running",
		"ran touch a:  map[exit_code:1], of 3", "state awaiting_user_input")
}

func TestWithTheAnalyzerLLMOnlyHighRisksWait(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders("ask ls", "ask rm -r"), Settings: confirming("llm")}).start()
	d.until(session.StateConfirmation)
	d.expect("state loading", "user: "+orders("ask ls", "ask rm -r"), "state running", "run ls confirmed", "ran ls:  map[exit_code:0], of 3",
		"run rm -r awaiting_confirmation", "state awaiting_user_confirmation")
}

func TestWithoutConfirmationModeNothingWaits(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm"}).start()
	d.until(session.StateAwaiting)
}

func TestAQuestionOutlivesTheSession(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm", Settings: confirming("")})
	d.can = "plainresume"
	d.start().until(session.StateConfirmation)
	d.stop()
	d.start().wait("the question again", func() bool {
		return strings.Count(strings.Join(d.events(), "\n"), "state awaiting_user_confirmation") == 2
	})
	if err := d.driver.ChangeState(session.StateConfirmed); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateAwaiting)
}

func TestASessionWhoseQuestionNobodyAnswersBecomesIdle(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm", Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	close(d.idle)
	if got := d.over(); got == nil || got.Reason != v1alpha1.ReasonIdle {
		t.Errorf("it ended with %+v", got)
	}
}
