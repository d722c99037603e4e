package driver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

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

// A second click, a second tab or a retry must not approve an action that the user has not seen.
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
			// The protocol has no field for the reason of a rejection, so the agent receives the reason as
			// the next message.
			d.has("user: use git mv", 1)
			d.wait("the next prompt", func() bool { return strings.Contains(d.heard(), `{"type":"text","text":"use git mv"}`) })
		})
	}
}

// If an agent does not support reasons for rejections, it receives the reason in an additional
// turn.
func TestAOneShotSessionDeliversTheRejectionReasonBeforeItEnds(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm", OneShot: true, Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	reject := driver.StateRequest{State: session.StateRejected, Reason: "say use git"}
	if err := d.driver.ChangeState(reject, ""); err != nil {
		t.Fatal(err)
	}
	end := d.over()
	if _, said := d.driver.State(); said != "use git" || end == nil || end.Reason != v1alpha1.ReasonCompleted {
		t.Errorf("it ended with %+v\n%s", end, strings.Join(d.events(), "\n"))
	}
	d.has("state finished", 1)
}

// A rejection is recorded in several events. Each case kills the attempt after a different event.
func TestARejectionIsRecordedOnce(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"change_agent_state", "state user_rejected",
		"user_rejected The user rejected this action: use git mv", "user: use git mv", "state running"} {
		for _, can := range []string{"plainresume", "plainexactload"} {
			t.Run(can+" "+last, func(t *testing.T) {
				t.Parallel()
				d := newDrive(t, session.Document{FirstMessage: orders(request("k", "mv a b", once), "think hm", "hang"),
					Settings: confirming("")})
				d.can = can
				d.start().until(session.StateConfirmation)
				asked := d.question().ID
				reject := driver.StateRequest{State: session.StateRejected, Reason: "use git mv"}
				if err := d.driver.ChangeState(reject, ""); err != nil {
					t.Fatal(err)
				}
				d.has("agent: n: use git mv", 1)
				d.cut(asked + 1 + slices.Index(d.events()[asked+1:], last))
				d.start().has("agent: n: use git mv", 1)
				d.has("user: use git mv", 1)
				d.has("user_rejected The user rejected this action: use git mv", 1)
			})
		}
	}
}

// cut stops the attempt and removes all events after the given event ID from the journal.
func (d *drive) cut(last int) {
	d.t.Helper()
	d.stop()
	file := filepath.Join(d.dir, "events.jsonl")
	text, err := os.ReadFile(file)
	if err != nil {
		d.t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	if err := os.WriteFile(file, []byte(strings.Join(lines[:last+1], "")), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// The first answer is recorded, but the agent has not received it yet.
func TestASecondAnswerDoesNotReplaceTheFirstAnswer(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "ask rm", Settings: confirming("")})
	d.start().until(session.StateConfirmation)
	d.stop()
	d.doc.Repository = &session.Repository{Name: "r"}
	d.setup("exec sleep 600")
	d.start().has("run .openhands/setup.sh", 1)
	for _, c := range []struct {
		request driver.StateRequest
		want    error
	}{
		{driver.StateRequest{State: session.StateConfirmed}, nil},
		{driver.StateRequest{State: session.StateConfirmed, Remember: true}, driver.ErrAnswered},
		{driver.StateRequest{State: session.StateRejected, Reason: "no"}, driver.ErrAnswered},
		{driver.StateRequest{State: session.StateConfirmed}, nil},
	} {
		if err := d.driver.ChangeState(c.request, ""); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.request, err, c.want)
		}
	}
	d.has("change_agent_state", 1)
}

func TestAnApprovalForTheSessionLastsUntilItIsRevoked(t *testing.T) {
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

// The tests of the web page and of the kubectl plugin read the same events from covered.jsonl.
func TestEventsOfPreapprovedActionsMatchTheTestData(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("../../../api/session/testdata/covered.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	d := newDrive(t, session.Document{FirstMessage: orders("ask make", "ask make"), Settings: confirming("")}).start()
	d.until(session.StateConfirmation)
	asked := d.question().ID
	remember := driver.StateRequest{State: session.StateConfirmed, Question: &asked, Remember: true}
	if err := d.driver.ChangeState(remember, ""); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateAwaiting)
	var got strings.Builder
	if err := d.journal.Events(0, func(e *session.Event) bool {
		e.Timestamp = ""
		delete(e.Extras, "question") // no client reads the digests
		delete(e.Extras, "rule")
		line, err := json.Marshal(e)
		got.Write(append(line, '\n'))
		return err == nil
	}); err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the events are\n%s\nwant\n%s", got.String(), want)
	}
}

// The attempt is killed between the record of the answer and its delivery to the agent.
func TestARecordedAnswerIsAppliedByTheNextAttempt(t *testing.T) {
	t.Parallel()
	for remember, label := range map[bool]string{true: "this exact command", false: ""} {
		d := newDrive(t, session.Document{FirstMessage: orders("ask make", "hang"), Settings: confirming("")})
		d.can = "plainexactload"
		d.start().until(session.StateConfirmation)
		answer := session.Event{Source: session.FromUser, Action: session.ActionChangeState, Args: map[string]any{
			"agent_state": "user_confirmed", "question": d.question().ID, "remember": remember, "remembered": label}}
		d.stop()
		d.append(answer)
		d.start().has("ran make:  map[exit_code:0], of 3", 1)
		d.expect("state loading", "user: "+orders("ask make", "hang"), "state running", "run make awaiting_confirmation",
			"state awaiting_user_confirmation", "change_agent_state", "state user_confirmed", "state running",
			"ran make:  map[exit_code:0], of 3")
	}
}

func (d *drive) append(e session.Event) {
	d.t.Helper()
	events, err := journal.Open(filepath.Join(d.dir, "events.jsonl"), masking.Mask)
	if err != nil {
		d.t.Fatal(err)
	}
	_, err = events.Append(e)
	if err := errors.Join(err, events.Close()); err != nil {
		d.t.Fatal(err)
	}
}

// The settings change between two attempts, and the action then needs no approval.
func TestAQuestionEndsIfTheNextAttemptNeedsNoApproval(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]v1alpha1.UserSettingsSpec{
		"confirmation mode is off":    {},
		"the agent rates it harmless": confirming(driver.AnalyzerLLM),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, session.Document{FirstMessage: orders("ask make", "hang"), Settings: confirming("")})
			d.can = "plainexactload"
			d.start().until(session.StateConfirmation)
			d.stop()
			d.doc.Settings = settings
			d.start().has("ran make:  map[exit_code:0], of 3", 1)
			if state, _ := d.driver.State(); state != session.StateRunning {
				t.Errorf("the state is %s\n%s", state, strings.Join(d.events(), "\n"))
			}
		})
	}
}

// approvals returns the IDs of the events that approve all similar actions.
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

func TestAQuestionSaysWhatAnApprovalForTheSessionCovers(t *testing.T) {
	t.Parallel()
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
			d := newDrive(t, session.Document{FirstMessage: asks(t, call), Settings: confirming("")}).start()
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

// asks returns an order that makes the stub agent request permission for a call. The order names a
// file that contains the request, because secrets in a message would be masked.
func asks(t *testing.T, call string) string {
	t.Helper()
	const options = `"options":[{"optionId":"n","kind":"reject_once"},{"optionId":"y","kind":"allow_once"}]`
	return "request " + inFile(t, `{"toolCall":{"toolCallId":"k","title":"do",`+call+`},`+options+`}`)
}

func TestAnApprovalOfEditsCoversOnlyFilesInTheWorkspace(t *testing.T) {
	t.Parallel()
	const edits, exact = "all edits of files in the workspace", "exactly this action"
	input := func(path string) string { return `"rawInput":{"path":"` + path + `","file_text":"x"}` }
	for call, want := range map[string]any{
		input("new/dir/a.go"):                  edits,
		input("DIR/a.go"):                      edits,
		input("inner/a.go"):                    edits,
		input("file"):                          exact,
		input("link/a.go"):                     exact,
		input("DIR/link/new/dir/a"):            exact,
		input("dangling"):                      exact,
		input("link/../a.go"):                  exact,
		input("../a.go"):                       exact,
		input("sub/../../a.go"):                exact,
		input("~/.profile"):                    exact,
		input("hooks/pre-commit"):              exact,
		input(".parley/home/.gitconfig"):       exact,
		input("DIR/.parley/events.jsonl"):      exact,
		input("loop/a"):                        exact,
		input("text/a"):                        exact,
		`"rawInput":{"text":"x"}`:              exact,
		`"rawInput":{"path":["a.go"]}`:         edits,
		`"rawInput":{"path":["a.go","OUT/a"]}`: exact,
		input("a.go") + `,"locations":[{"path":"a.go"},{"path":"OUT/a"}]`:           exact,
		input("a.go") + `,"content":[{"type":"diff","path":"OUT/a","newText":"x"}]`: exact,
		`"rawInput":{"path":"a.go","file_path":"link/a.go"}`:                        exact,
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			d, outside := newDrive(t, session.Document{Settings: confirming("")}), t.TempDir()
			for _, dir := range []string{"sub", ".git/hooks"} {
				if err := os.MkdirAll(filepath.Join(d.dir, dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range []string{filepath.Join(d.dir, "text"), filepath.Join(outside, "file")} {
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for name, to := range map[string]string{"link": outside, "file": outside + "/file", "inner": "sub", "loop": "loop",
				"dangling": outside + "/none", "hooks": ".git/hooks"} {
				if err := os.Symlink(to, filepath.Join(d.dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			call = strings.NewReplacer("DIR", d.dir, "OUT", outside).Replace(call)
			d.doc.FirstMessage = asks(t, `"kind":"edit",`+call)
			d.start().until(session.StateConfirmation)
			if got := d.question().Extras["remember"]; got != want {
				t.Errorf("the question offers %v, want %v", got, want)
			}
		})
	}
}

// Symbolic links are resolved again for each question, not only when the user approves edits.
func TestAnApprovalOfEditsDoesNotCoverANewSymlinkOutOfTheWorkspace(t *testing.T) {
	t.Parallel()
	edit := func(id string) string {
		return `request {"toolCall":{"toolCallId":"` + id + `","title":"do","kind":"edit","rawInput":{"path":"sub/a"}},` +
			`"options":[{"optionId":"n","kind":"reject_once"},{"optionId":"y","kind":"allow_once"}]}`
	}
	d := newDrive(t, session.Document{Settings: confirming("")})
	sub, linked := filepath.Join(d.dir, "sub"), filepath.Join(d.dir, "linked")
	d.doc.FirstMessage = orders(edit("a"), edit("b"), "wait "+linked, edit("c"))
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	d.start().until(session.StateConfirmation)
	if err := d.driver.ChangeState(driver.StateRequest{State: session.StateConfirmed, Remember: true}, ""); err != nil {
		t.Fatal(err)
	}
	d.has("notice Approved without a question: you approved all edits of files in the workspace.", 1)
	if err := errors.Join(os.Remove(sub), os.Symlink(t.TempDir(), sub), os.WriteFile(linked, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	d.has("state awaiting_user_confirmation", 2)
	if got := d.question().Extras["remember"]; got != "exactly this action" {
		t.Errorf("the question offers %v", got)
	}
}

// The question must show all input, whatever names the input fields have.
func TestAQuestionShowsTheWholeInput(t *testing.T) {
	t.Parallel()
	for call, want := range map[string]string{
		`"kind":"delete","locations":[{"path":"/w/a"},{"path":"/w/b"}]`: `{"confirmation_state":"awaiting_confirmation",` +
			`"operation":"delete","path":"/w/a","paths":["/w/a","/w/b"],"thought":""}`,
		`"kind":"delete","rawInput":{"path":["/w/a","/w/b"]}`: `{"confirmation_state":"awaiting_confirmation",` +
			`"input":{"path":["/w/a","/w/b"]},"operation":"delete","path":"/w/a","paths":["/w/a","/w/b"],"thought":""}`,
		`"kind":"move","rawInput":{"source":"/w/a","destination":"/w/b"},"locations":[{"path":"/w/a"}]`: `{` +
			`"confirmation_state":"awaiting_confirmation","destination":"/w/b","operation":"move","path":"/w/a",` +
			`"source":"/w/a","thought":""}`,
		`"kind":"edit","rawInput":{"path":"a","operation":"delete","confirmation_state":"confirmed"}`: `{` +
			`"confirmation_state":"awaiting_confirmation","input":{"confirmation_state":"confirmed","operation":"delete",` +
			`"path":"a"},"path":"a","thought":""}`,
		`"kind":"execute","rawInput":{"command":"sh","args":["-c","rm -rf src"]}`: `{"args":["-c","rm -rf src"],` +
			`"command":"sh","confirmation_state":"awaiting_confirmation","thought":""}`,
		`"kind":"execute","rawInput":["rm","-rf","src"]`: `{"command":"do","confirmation_state":"awaiting_confirmation",` +
			`"input":["rm","-rf","src"],"thought":""}`,
		`"kind":"execute","rawInput":{"command":"y","is_input":true,"timeout":9999}`: `{"command":"y",` +
			`"confirmation_state":"awaiting_confirmation","is_input":true,"thought":"","timeout":9999}`,
		`"kind":"execute","rawInput":{"script":"rm -rf src","security_risk":"low"}`: `{"command":"do",` +
			`"confirmation_state":"awaiting_confirmation","script":"rm -rf src","security_risk":"LOW","thought":""}`,
		`"kind":"execute","rawInput":{"command":["sh","-c","echo 'a b'","a b",""],"cwd":"/","with_escalated_permissions":` +
			`true}`: `{"command":"sh -c 'echo '\\''a b'\\''' 'a b' ''","confirmation_state":"awaiting_confirmation",` +
			`"cwd":"/","thought":"","with_escalated_permissions":true}`,
		`"kind":"execute","rawInput":{"command":["rm",5]}`: `{"command":"do","confirmation_state":"awaiting_confirmation",` +
			`"input":{"command":["rm",5]},"thought":""}`,
		`"kind":"execute","rawInput":{"cmd":["rm","a"]}`: `{"command":"rm a","confirmation_state":"awaiting_confirmation",` +
			`"thought":""}`,
		`"kind":"execute","rawInput":{"command":"ls","cmd":"rm a"}`: `{"cmd":"rm a","command":"ls",` +
			`"confirmation_state":"awaiting_confirmation","thought":""}`,
		`"kind":"execute","rawInput":{"command":"ls","thought":["rm"]}`: `{"command":"ls",` +
			`"confirmation_state":"awaiting_confirmation","input":{"command":"ls","thought":["rm"]},"thought":""}`,
		`"kind":"execute","rawInput":{"command":"ls","security_risk":{"a":"rm"}}`: `{"command":"ls",` +
			`"confirmation_state":"awaiting_confirmation","input":{"command":"ls","security_risk":{"a":"rm"}},"thought":""}`,
		`"kind":"edit","rawInput":{"path":"a","changes":[{"file":"b"}]}`: `{"confirmation_state":"awaiting_confirmation",` +
			`"input":{"changes":[{"file":"b"}],"path":"a"},"path":"a","thought":""}`,
		`"kind":"read","rawInput":{"path":"a","then":"rm a"}`: `{"confirmation_state":"awaiting_confirmation","path":"a",` +
			`"then":"rm a","thought":""}`,
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, session.Document{FirstMessage: asks(t, call), Settings: confirming("")}).start()
			d.until(session.StateConfirmation)
			got := ""
			if err := d.journal.Events(0, func(e *session.Event) bool {
				if e.ToolCall != nil && e.Action != "" {
					text, _ := json.Marshal(e.Args)
					got = string(text)
				}
				return true
			}); err != nil || got != want {
				t.Errorf("the question has %s (%v), want %s", got, err, want)
			}
		})
	}
}

// An agent may announce one action and request permission for another action with the same ID.
func TestAQuestionShowsTheActionOfThePermissionRequest(t *testing.T) {
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

func TestALargeActionIsShownInFullOrMarkedAsIncomplete(t *testing.T) {
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
