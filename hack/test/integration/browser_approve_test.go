//go:build browser

package integration_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const (
	question = "document.querySelector('.confirm:not([hidden])')"
	// answerable is true if the question's buttons are enabled. The page enables them after one
	// second.
	answerable = question + "?.querySelector('fieldset:enabled')"
	focused    = "document.activeElement"
	composer   = "document.querySelector('.answer textarea')"
)

func (b *browser) approve() {
	b.t.Helper()
	b.sees(answerable)
	b.press("Approve")
}

func (b *browser) asksFor(command string) {
	b.t.Helper()
	b.sees(fmt.Sprintf("%s?.querySelector('code')?.textContent === %q", question, command))
}

func (b *browser) types(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

func (f *stubFacade) awaitReceived(t *testing.T, count int) []userEvent {
	t.Helper()
	testenv.Await(t, func() error {
		if got := f.received(); len(got) < count {
			return fmt.Errorf("received %v", got)
		}
		return nil
	})
	return f.received()
}

// asksNext returns a function for stubFacade.answer. After each approval, the function emits a
// question about the next command.
func (f *stubFacade) asksNext(commands ...string) func(userEvent) int {
	return func(userEvent) int {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(commands) > 0 {
			id := "next-" + commands[0]
			go f.emit(session.StateChange(session.StateConfirmed, ""), session.StateChange(session.StateRunning, ""),
				runs(id, commands[0]), asksAbout(id))
			commands = commands[1:]
		}
		return http.StatusOK
	}
}

// A user who is typing when a question arrives must not answer it by accident.
func TestThePageNeverMovesTheFocusToAQuestion(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	f.emit(session.StateChange(session.StateRunning, ""))
	b.do(chromedp.WaitVisible(chromedp.CSS(".answer textarea")), chromedp.Focus(chromedp.CSS(".answer textarea")))
	f.emit(runs("1", "rm -rf src"), asksAbout("1"))
	b.asksFor("rm -rf src")
	b.types(" no wait\r")
	b.sees(focused + " === " + composer)
	if got := f.awaitReceived(t, 1); got[0].Action != "POST /api/conversations/c/message" {
		t.Errorf("received %v", got)
	}
	// If the focus is in the message box or on no element, keys must not answer the question, even if
	// the question's buttons are enabled.
	b.sees(answerable)
	b.types(" y\r")
	f.awaitReceived(t, 2)
	b.sees(composer + ".value === ''")
	b.sees("(() => { " + focused + ".blur(); return " + focused + " === document.body; })()")
	b.types(" \r y")
	f.emit(asksAbout("1"))
	b.sees(question + " && !" + answerable)
	b.types(" \r y")
	b.sees(answerable)
	b.sees(focused + " === document.body")
	if got := f.received(); slices.ContainsFunc(got, func(e userEvent) bool { return e.Action == "change_agent_state" }) {
		t.Errorf("received %v", got)
	}
	b.checkErrors()
}

// A repeated click or key for one question must not answer the next question.
func TestThePageApprovesOnlyOneQuestionDespiteRepeatedInput(t *testing.T) {
	for name, answer := range map[string]func(*browser){
		"double click": func(b *browser) {
			place := chromedp.Evaluate[[]float64]("(({ x, y, width, height }) => [x + width / 2, y + height / 2])" +
				"(document.querySelector('[data-do=approve]').getBoundingClientRect())")
			at, err := chromedp.Run(b.ctx, place)
			if err != nil {
				b.t.Fatal(err)
			}
			for range 2 {
				b.do(chromedp.MouseClickXY(at[0], at[1]))
				time.Sleep(250 * time.Millisecond) // like a person's pause between two clicks
			}
		},
		"keyboard": func(b *browser) {
			b.do(chromedp.Focus(chromedp.CSS("[data-do=approve]")))
			for range 3 {
				b.types(kb.Enter)
				b.types(" ")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newStubFacade(t)
			f.answer = f.asksNext("git push --force")
			b := f.opens(t, "#/c/c")
			first := f.emit(session.StateChange(session.StateRunning, ""), runs("1", "ls"), asksAbout("1"))
			b.asksFor("ls")
			b.sees(answerable)
			answer(b)
			b.asksFor("git push --force")
			b.sees(answerable)
			got := f.received()
			if len(got) != 1 || got[0].Args["agent_state"] != "user_confirmed" || got[0].Args["question"] != float64(first) {
				t.Errorf("received %v", got)
			}
			// The user can still approve the next question.
			b.approve()
			if got := f.awaitReceived(t, 2); got[1].Args["question"] == got[0].Args["question"] || got[1].key == got[0].key {
				t.Errorf("received %v", got)
			}
			b.checkErrors()
		})
	}
}

// The tab shows a question that another tab has answered. An approval in this tab must be refused.
func TestThePageReportsThatAQuestionIsNoLongerPending(t *testing.T) {
	f := newStubFacade(t)
	pending := 0
	f.answer = func(e userEvent) int {
		if e.Args["question"] != float64(pending) {
			return http.StatusConflict
		}
		return http.StatusOK
	}
	old := f.emit(session.StateChange(session.StateRunning, ""), runs("1", "ls"), asksAbout("1"))
	b := f.opens(t, "#/c/c")
	b.asksFor("ls")
	pending = old + 7 // as if another tab had answered
	b.approve()
	b.waitForText("This question is no longer pending")
	b.sees("!document.querySelector('.notice.error')")
	if got := f.received(); len(got) != 1 || got[0].Args["question"] != float64(old) {
		t.Errorf("received %v", got)
	}
}

// After a failed request, the user approves again. The page must send the same idempotency key.
func TestThePageRepeatsAnAnswerWithTheSameIdempotencyKey(t *testing.T) {
	f := newStubFacade(t)
	f.answer = func(userEvent) int { return http.StatusServiceUnavailable }
	f.emit(session.StateChange(session.StateRunning, ""), runs("1", "ls"), asksAbout("1"))
	b := f.opens(t, "#/c/c")
	b.asksFor("ls")
	b.approve()
	f.awaitReceived(t, 1)
	b.sees(answerable)
	b.approve()
	got := f.awaitReceived(t, 2)
	if !maps.Equal(got[0].Args, got[1].Args) || got[0].key != got[1].key || len(got[0].key) != 32 {
		t.Errorf("received %v", got)
	}
}

func edits(id string, args map[string]any) session.Event {
	return session.Event{Source: session.FromAgent, Action: session.ActionEdit, Args: args,
		ToolCall: &session.ToolCall{ID: id}}
}

// These characters are invisible or look like a space.
const invisible = "\u200b\u202e\u2028\u00ad\u034f\u115f\u180e\u2800\u3164\ufe0f\uffa0\ufffb\U000e0041\U000e0101"

func TestThePageShowsTheWholeActionBeforeItsApproval(t *testing.T) {
	long := strings.Repeat("echo padding;\n", 300) + strings.Repeat("x", 4000) + " ; rm -rf /"
	lines := strings.Repeat("line\n", 400)
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	for i, test := range []struct {
		event session.Event
		title string
		texts []string
	}{
		{runs("0", long), "Run this command?", []string{long, "Scroll to read all of it."}},
		{runs("1", "echo \x1b[8mhidden"+invisible), "Run this command?",
			[]string{"echo \ufffd[8mhidden" + strings.Repeat("\ufffd", utf8.RuneCountInString(invisible))}},
		{edits("2", map[string]any{"path": "/w/a.go", "command": "str_replace", "old_str": "old\n", "new_str": "new\n"}),
			"Make this edit?", []string{"/w/a.go", "-old", "+new"}},
		{edits("3", map[string]any{"path": "/w/new.sh", "command": "create", "file_text": lines + "the end"}),
			"Make this edit?", []string{"/w/new.sh", lines + "the end"}},
		{edits("4", map[string]any{"path": "/w/a", "command": "insert", "insert_line": 3, "new_str": "more"}),
			"Make this edit?", []string{"after line 3", "more"}},
		{edits("5", map[string]any{"path": "/w/a", "changes": []any{
			map[string]any{"path": "/w/a", "old_text": "1\n", "new_text": "2"},
			map[string]any{"path": "/w/b", "old_text": nil, "new_text": "fresh"}}}),
			"Make this edit?", []string{"-1", "+2", "Newline at end of file removed", "New file /w/b", "fresh"}},
		{edits("6", map[string]any{"path": "/w/src", "operation": "delete", "recursive": true}),
			"Delete this file?", []string{"/w/src", `"recursive": true`}},
		{edits("7", map[string]any{"path": "/w/a", "operation": "move", "to": "/w/b"}),
			"Move this file?", []string{"/w/a", `"to": "/w/b"`}},
		{session.Event{Source: session.FromAgent, Action: session.ActionTool, ToolCall: &session.ToolCall{ID: "8"},
			Args: map[string]any{"name": "fetch", "arguments": map[string]any{"url": "https://example.com/?a&b"}}},
			"Call this tool?", []string{"fetch", `"url": "https://example.com/?a&b"`}},
		{session.Event{Source: session.FromAgent, Action: session.ActionRun, ToolCall: &session.ToolCall{ID: "9"},
			Args: map[string]any{"command": "y", "is_input": true, "cwd": "/"}},
			"Run this command?", []string{"y", `"is_input": true`, `"cwd": "/"`}},
		{edits("10", map[string]any{"path": "/w/a", "command": "create", "file_text": map[string]any{"sh": "rm a"}}),
			"Make this edit?", []string{"/w/a", `"sh": "rm a"`}},
	} {
		f.emit(test.event, asksAbout(fmt.Sprint(i)))
		b.sees(fmt.Sprintf("%s?.querySelector('[role=status]').textContent === %q", question, test.title))
		for _, text := range test.texts {
			b.sees(fmt.Sprintf("%s.textContent.includes(%s)", question, jsonOf(t, text)))
		}
		// The user can scroll to the end, and all lines wrap.
		b.sees("(() => { const whole = " + question + ".querySelector('.whole'); whole.scrollTop = whole.scrollHeight; " +
			"const last = [...whole.querySelectorAll('pre, td')].at(-1).getBoundingClientRect(); " +
			"const end = whole.getBoundingClientRect().bottom; " +
			"window.sizes = [whole.scrollWidth - whole.clientWidth, last.bottom - end, " +
			"document.querySelector('[data-do=approve]').getBoundingClientRect().bottom - innerHeight]; " +
			"return window.sizes.every((size) => size <= 1); })()")
	}
	b.checkErrors()
}

func TestThePageSendsRejectionReasonsAndListsApprovals(t *testing.T) {
	f := newStubFacade(t)
	f.emit(session.StateChange(session.StateRunning, ""))
	b := f.opens(t, "#/c/c")
	f.emit(runs("1", "git push"), asksAbout("1"))
	b.asksFor("git push")
	b.sees(answerable)
	b.sees("!document.querySelector('[data-do=remember]')")
	b.enter(".confirm input", "Use a branch\r")
	got := f.awaitReceived(t, 1)
	if got[0].Args["agent_state"] != "user_rejected" || got[0].Args["reason"] != "Use a branch" {
		t.Errorf("received %v", got)
	}
	f.emit(session.Event{Source: session.FromUser, Action: session.ActionChangeState, Args: map[string]any{
		"agent_state": "user_rejected", "reason": "Use a branch"}}, session.StateChange(session.StateRunning, ""))
	b.waitForText("You rejected the action: Use a branch")

	similar := asksAbout("2")
	similar.Extras["remember"], similar.Extras["incomplete"] = "all edits of files", true
	f.emit(edits("2", map[string]any{"path": "/w/a", "command": "create", "file_text": "x"}), similar)
	b.sees(answerable)
	b.waitForText("This action is too large to show in full.")
	b.press("Approve all edits of files in this session")
	if got = f.awaitReceived(t, 2); got[1].Args["remember"] != true || got[1].Args["agent_state"] != "user_confirmed" {
		t.Errorf("received %v", got)
	}
	granted := f.emit(session.Event{Source: session.FromUser, Action: session.ActionChangeState, Args: map[string]any{
		"agent_state": "user_confirmed", "remember": true, "remembered": "all edits of files"}})
	f.emit(session.StateChange(session.StateRunning, ""))
	b.waitForText("You approved all edits of files in this session")
	b.press("Approvals in this session: 1")
	b.press("Revoke")
	if got = f.awaitReceived(t, 3); got[2].Action != "revoke_approval" || got[2].Args["approval"] != float64(granted) {
		t.Errorf("received %v", got)
	}
	f.emit(session.Event{Source: session.FromUser, Action: "revoke_approval", Args: map[string]any{"approval": granted}})
	b.waitForText("You revoked your approval of all edits of files")
	b.sees("document.querySelector('.approvals').hidden")
	// An approval from the agent itself must not be listed.
	f.emit(session.Event{Source: session.FromAgent, Action: session.ActionChangeState, Args: map[string]any{
		"agent_state": "user_confirmed", "remember": true, "remembered": "everything"}})
	b.waitForText("You approved everything in this session")
	b.sees("document.querySelector('.approvals').hidden")
	b.checkErrors()
}

func TestThePageShowsThatAnApprovalCoversAnAction(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	const last = "[...document.querySelectorAll('.tool')].at(-1)"
	const covered = last + "?.textContent.includes('Covered by your approval of this exact command')"
	for _, event := range testenv.Events(t, "../../../api/session/testdata/covered.jsonl") {
		f.emit(event)
		if event.Meta != nil && event.Meta.ApprovedBy != nil {
			b.sees(covered + " && " + last + ".querySelector('.status').textContent === 'running'")
		}
	}
	b.sees(covered + " && " + last + ".querySelector('.status').textContent === 'done'")
	b.checkErrors()
}
