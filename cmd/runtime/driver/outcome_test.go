package driver_test

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

func outcomeOf(t *testing.T, o *driver.Outcome) string {
	t.Helper()
	turn, err := o.Turn()
	if err != nil {
		t.Fatal(err)
	}
	if turn == nil {
		return ""
	}
	return string(turn.State) + " " + turn.Reason + ": " + turn.Message
}

const approval = "NeedsApproval ApprovalPending: An action of the agent waits for approval"

func TestTheLastStateDeterminesTheOutcomeOfATurn(t *testing.T) {
	t.Parallel()
	failed := func(id, reason string) []session.Event {
		return []session.Event{{Source: session.FromEnvironment, Observation: session.ObservedError,
			Extras: map[string]any{"error_id": id}}, session.StateChange(session.StateError, reason)}
	}
	notStarted := failed("", "the agent cannot be started")
	notStarted[0].Extras["agent_not_started"] = true
	state := func(s session.State) []session.Event { return []session.Event{session.StateChange(s, "")} }
	// A message that looks like a state event does not change the outcome.
	message := []session.Event{session.UserMessage(`{"observation":"agent_state_changed"}`, nil)}
	journal := newJournal(t)
	outcome := &driver.Outcome{Journal: journal}
	for _, step := range []struct {
		events []session.Event
		want   string
	}{
		{nil, ""},
		{state(session.StateLoading), ""},
		{message, ""},
		{state(session.StateConfirmation), approval},
		{message, approval},
		{append(state(session.StateConfirmed), state(session.StateRunning)...), ""},
		{failed("", "it broke\nhunter2"), "Failed TurnFailed: it broke ***"},
		{message, "Failed TurnFailed: it broke ***"},
		{state(session.StateRunning), ""},
		{failed("STATUS$ERROR_LLM_AUTHENTICATION", "refused"), "Failed ModelRefusedKey: refused"},
		{failed("STATUS$ERROR_LLM_SERVICE_UNAVAILABLE", "away"), "Failed ModelUnreachable: away"},
		{failed("STATUS$ERROR_LLM_MODEL_NOT_FOUND", "none"), "Failed ModelNotFound: none"},
		{failed("STATUS$ERROR_OF_ANOTHER_AGENT", "so"), "Failed TurnFailed: so"},
		{notStarted, "Failed AgentNotStarted: the agent cannot be started"},
		{state(session.StateStopped), ""},
		{append(failed("", "one"), state(session.StateAwaiting)...), ""},
	} {
		if _, err := journal.Append(step.events...); err != nil {
			t.Fatal(err)
		}
		if got := outcomeOf(t, outcome); got != step.want {
			t.Errorf("after %d events the outcome is %q, want %q", journal.Len(), got, step.want)
		}
		// A later attempt starts with a new Outcome, which reads the whole journal.
		if got := outcomeOf(t, &driver.Outcome{Journal: journal}); got != step.want {
			t.Errorf("after %d events a later attempt finds %q, want %q", journal.Len(), got, step.want)
		}
	}
	if _, err := journal.Append(failed("", "no model is set")...); err != nil {
		t.Fatal(err)
	}
	if got, want := outcomeOf(t, &driver.Outcome{Journal: journal, NoModel: func() bool { return true }}),
		"Failed NoModel: no model is set"; got != want {
		t.Errorf("without a model the outcome is %q, want %q", got, want)
	}
	// If a session cannot start, for example because its repository does not exist, no turn has
	// failed. The outcome must then be empty.
	if err := driver.Failed(journal, "no such repository"); err != nil {
		t.Fatal(err)
	}
	if got := outcomeOf(t, outcome); got != "" {
		t.Errorf("after a failed start the outcome is %q", got)
	}
}

func newJournal(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := journal.Open(filepath.Join(t.TempDir(), "events.jsonl"), masking.Mask)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func TestTheOutcomeOfATurnSaysWhyTheUserMustAct(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		doc   session.Document
		until session.State
		want  string
	}{
		"a refused key": {session.Document{FirstMessage: "fail wrong key hunter2"}, session.StateError,
			"Failed ModelRefusedKey: wrong key ***"},
		"an agent that dies": {session.Document{FirstMessage: "die"}, session.StateError,
			"Failed TurnFailed: the agent stub "},
		"an agent that is missing": {session.Document{FirstMessage: "say hello", Agent: &session.Agent{Name: "none",
			Protocol: session.ProtocolACP, Command: []string{"/nowhere/agent"}}}, session.StateError,
			"Failed AgentNotStarted: the agent none cannot be started: "},
		"a question": {session.Document{FirstMessage: "ask rm",
			Settings: v1alpha1.UserSettingsSpec{ConfirmationMode: ptr.To(true)}}, session.StateConfirmation, approval},
		"an answer": {session.Document{FirstMessage: "say hello"}, session.StateAwaiting, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, c.doc).start()
			d.until(c.until)
			got := outcomeOf(t, &driver.Outcome{Journal: d.journal})
			if got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
				t.Errorf("the outcome is %q, want %q", got, c.want)
			}
		})
	}
}

// The first attempt began the turn, and the second attempt cannot start the agent. The turn fails.
// Its outcome must say that the agent cannot be started, as if the first attempt had failed to
// start the agent.
func TestTheOutcomeOfAResumedTurnSaysThatTheAgentCannotStart(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "hang"})
	d.start().has("state running", 1)
	d.stop()
	d.doc.Agent.Command = []string{"/nowhere/agent"}
	d.start().until(session.StateError)
	const want = "Failed AgentNotStarted: the agent stub cannot be started: "
	if got := outcomeOf(t, &driver.Outcome{Journal: d.journal}); !strings.HasPrefix(got, want) {
		t.Errorf("the outcome is %q, want %q", got, want)
	}
}
