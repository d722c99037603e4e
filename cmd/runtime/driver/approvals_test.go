package driver_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
)

// question returns the event of the pending question.
func (d *drive) question() *session.Event {
	d.t.Helper()
	var found *session.Event
	err := d.journal.Events(0, func(e *session.Event) bool {
		if e.StateOf() == session.StateConfirmation {
			found = e
		}
		return true
	})
	if err != nil || found == nil {
		d.t.Fatalf("no question was asked: %v", err)
	}
	return found
}

// A second click, a second tab or a retry must not approve a question that its user has not read.
func TestAnAnswerToAnotherQuestionIsRefused(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders("ask touch a", "ask rm b"), Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	first := d.question().ID
	if err := d.answer(session.StateConfirmed, &first); err != nil {
		t.Fatal(err)
	}
	d.has("run rm b awaiting_confirmation", 1)
	d.until(session.StateConfirmation)
	for _, state := range []session.State{session.StateConfirmed, session.StateRejected} {
		if err := d.answer(state, &first); !errors.Is(err, driver.ErrOtherQuestion) {
			t.Errorf("%s for the first question again: %v", state, err)
		}
	}
	if state, _ := d.driver.State(); state != session.StateConfirmation {
		t.Errorf("the second question is not pending: %s", state)
	}
	second := d.question().ID
	if err := d.answer(session.StateRejected, &second); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateAwaiting)
	d.has("user_rejected The user rejected this action.", 1)
}

func TestTheReasonOfARejectionReachesTheAgent(t *testing.T) {
	t.Parallel()
	for can, want := range map[string]string{"plainexact": "n: use git mv", "plain": "n: use git mv"} {
		t.Run(can, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, session.Document{FirstMessage: request("k", "mv a b", once), Settings: confirming("")})
			d.can = can
			d.start().until(session.StateConfirmation)
			reject := driver.StateRequest{State: session.StateRejected, Reason: "use git mv"}
			if err := d.driver.ChangeState(reject, ""); err != nil {
				t.Fatal(err)
			}
			d.has("agent: "+want, 1)
			d.has("user_rejected The user rejected this action: use git mv", 1)
			if can == "plainexact" {
				return
			}
			// The protocol has no field for a reason, so other agents get it as the next message.
			d.has("user: use git mv", 1)
			d.wait("the next prompt", func() bool { return strings.Contains(d.heard(), `{"type":"text","text":"use git mv"}`) })
		})
	}
}

func TestAnActionIsApprovedForTheSessionUntilRevoked(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders(request("a", "make", once), request("b", "make", once),
		request("c", "make all", once)), Settings: confirming("")})
	d.can = "plainresume"
	d.start().until(session.StateConfirmation)
	asked := d.question()
	if got := asked.Extras["remember"]; got != "this exact command" {
		t.Errorf("the question offers %v", got)
	}
	remember := driver.StateRequest{State: session.StateConfirmed, Question: &asked.ID, Remember: true}
	if err := d.driver.ChangeState(remember, ""); err != nil {
		t.Fatal(err)
	}
	d.has("notice Approved without a question: you approved this exact command.", 1)
	d.has("run make all awaiting_confirmation", 1)
	d.has("state awaiting_user_confirmation", 2)
	d.change(session.StateConfirmed)
	d.until(session.StateAwaiting)

	d.stop()
	d.start()
	d.message(request("d", "make", once))
	d.has("notice Approved without a question: you approved this exact command.", 2)
	d.until(session.StateAwaiting)
	approval := d.approvals()[0]
	if err := d.driver.Revoke(approval, ""); err != nil {
		t.Fatal(err)
	}
	if err := d.driver.Revoke(approval, ""); !errors.Is(err, driver.ErrNoSuchApproval) {
		t.Errorf("revoked again: %v", err)
	}
	d.message(request("e", "make", once))
	d.until(session.StateConfirmation)
}

// approvals returns the events that approve more than one action.
func (d *drive) approvals() (ids []int) {
	d.t.Helper()
	err := d.journal.Events(0, func(e *session.Event) bool {
		if remember, _ := e.Args["remember"].(bool); remember {
			ids = append(ids, e.ID)
		}
		return true
	})
	if err != nil || len(ids) == 0 {
		d.t.Fatalf("no approval is recorded: %v", err)
	}
	return ids
}

func TestOnlyActionsThatCanBeComparedAreApprovedForTheSession(t *testing.T) {
	t.Parallel()
	const options = `"options":[{"optionId":"n","kind":"reject_once"},{"optionId":"y","kind":"allow_once"}]`
	for call, want := range map[string]any{
		`"kind":"edit","rawInput":{"path":"a.go","old_str":"x","new_str":"y"}`:      "all edits of files in the workspace",
		`"kind":"edit","rawInput":{"path":".git/hooks/pre-commit","file_text":"x"}`: "exactly this action",
		`"kind":"edit","rawInput":{"path":"/etc/passwd","file_text":"x"}`:           "exactly this action",
		`"kind":"delete","rawInput":{"path":"a.go"}`:                                "exactly this action",
		`"kind":"other","name":"fetch","rawInput":{"url":"x"}`:                      "all calls of the tool fetch",
		`"kind":"execute","rawInput":{"command":"echo hunter2"}`:                    nil,
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "request") // a message would be masked
			if err := os.WriteFile(file, fmt.Appendf(nil, `{"toolCall":{"toolCallId":"k","title":"do",%s},%s}`, call, options),
				0o600); err != nil {
				t.Fatal(err)
			}
			d := newDrive(t, session.Document{FirstMessage: "request " + file, Settings: confirming("")}).start()
			d.until(session.StateConfirmation)
			if got := d.question().Extras["remember"]; got != want {
				t.Errorf("the question offers %v, want %v", got, want)
			}
			if want != nil {
				return
			}
			remember := driver.StateRequest{State: session.StateConfirmed, Remember: true}
			if err := d.driver.ChangeState(remember, ""); !errors.Is(err, driver.ErrNotRepeatable) {
				t.Errorf("an approval for the session: %v", err)
			}
		})
	}
}

// An agent may announce one action and then ask for a different action under the same ID.
func TestTheActionInTheQuestionIsTheOneThatIsShown(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders(
		`raw {"sessionUpdate":"tool_call","toolCallId":"k","title":"run","kind":"execute","status":"pending",`+
			`"rawInput":{"command":"ls"}}`, request("k", "rm -r .", once)), Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	d.has("run ls", 1)
	d.has("run rm -r . awaiting_confirmation", 1)
}

func TestADiffSentByTheAgentIsPartOfTheQuestion(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: `request {"toolCall":{"toolCallId":"k","title":"Edit a.go",` +
		`"kind":"delete","content":[{"type":"diff","path":"a.go","oldText":"old","newText":"new"}]},` +
		`"options":[{"optionId":"n","kind":"reject_once"},{"optionId":"y","kind":"allow_once"}]}`,
		Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	var action *session.Event
	if err := d.journal.Events(0, func(e *session.Event) bool {
		if e.Action == session.ActionEdit {
			action = e
		}
		return true
	}); err != nil || action == nil {
		t.Fatal(err, action)
	}
	if got := fmt.Sprint(action.Args["changes"]); got != "[map[new_text:new old_text:old path:a.go]]" {
		t.Errorf("the action has the changes %s", got)
	}
	if action.Args["operation"] != "delete" {
		t.Errorf("the operation is %v", action.Args["operation"])
	}
}

func TestALargeActionIsShownInFullOrMarked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size       int
		incomplete any
	}{{400 << 10, nil}, {600 << 10, true}} {
		d := newDrive(t, session.Document{FirstMessage: request("k", "echo "+strings.Repeat("x", c.size), once),
			Settings: confirming("")}).start()
		d.until(session.StateConfirmation)
		if got := d.question().Extras["incomplete"]; got != c.incomplete {
			t.Errorf("with %d bytes the question says incomplete: %v", c.size, got)
		}
		if left := strings.Contains(strings.Join(d.events(), ""), "bytes left out"); left != (c.incomplete == true) {
			t.Errorf("of %d bytes some are left out: %t", c.size, left)
		}
	}
}
