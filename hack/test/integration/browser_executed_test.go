//go:build browser

package integration_test

import (
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func edit(args map[string]any) scriptedmodel.Call {
	return scriptedmodel.Call{Name: "str_replace_editor", Input: scriptedmodel.Input(args)}
}

// talks opens the page of a conversation in confirmation mode.
func (p *person) talks(t *testing.T, host string) *browser {
	t.Helper()
	p.converse(t, "talk", map[string]any{"repository": repository(t), "initial_user_msg": "work"})
	p.awaitAgent(t, "talk", session.StateConfirmation)
	b := startBrowser(t, host)
	p.begin(t, b, "talk")
	return b
}

func (p *person) host(t *testing.T) string {
	t.Helper()
	at, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	return at.Host
}

// The bytes on the page at the approval are the bytes that are executed.
func TestThePageShowsTheActionThatIsExecuted(t *testing.T) {
	const command = "printf '%s' 'two  spaces;\ttab' > out.txt; printf x >> out.txt"
	const created = "first line\n\n  indented ünïcode\nlast line without a break"
	const echoed = "to the tool: \"quoted\"\nand a line"
	tools := map[string]any{"stdio_servers": []any{map[string]any{"name": "tools", "command": toolServer(t)}}}
	ada := newPerson(t, map[string]any{"confirmation_mode": true, "mcp_config": tools}, says("", bash(command)),
		says("", edit(map[string]any{"command": "create", "path": "made.txt", "file_text": created})),
		says("", edit(map[string]any{"command": "str_replace", "path": "made.txt", "old_str": "first line\n",
			"new_str": "1st line\n"})),
		says("", scriptedmodel.Call{Name: "tools_echo", Input: scriptedmodel.Input(map[string]any{"text": echoed})}),
		says("", bash("rm file")), says("Done."))
	b := ada.talks(t, ada.host(t))
	shown := func(selector string) string {
		t.Helper()
		text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.querySelector("+jsonOf(t, selector)+
			").textContent"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	b.asksFor(command)
	approved := shown(".confirm code")
	b.approve()
	b.sees(question + "?.textContent.includes('The whole file:')")
	file := shown(".confirm .whole pre:last-of-type")
	b.approve()
	b.sees(question + "?.querySelector('.removed')")
	if got := shown(".confirm .removed") + "/" + shown(".confirm .added"); got != "1-first line/1+1st line" {
		t.Errorf("the edit on the page is %s", got)
	}
	b.approve()
	b.asksFor("tools_echo")
	call := decode[struct{ Text string }](t, shown(".confirm .whole pre:last-of-type")).Text
	b.approve()
	b.asksFor("rm file")
	b.approve()
	b.waitForText("Done.", "Your turn")
	read := func(name string) string {
		t.Helper()
		file := ada.wants(t, 200, "GET", "/api/conversations/talk/select-file?file="+name, "")
		return decode[struct{ Code string }](t, file).Code
	}
	if approved != command || read("out.txt") != "two  spaces;\ttabx" {
		t.Errorf("approved %q, executed to %q", approved, read("out.txt"))
	}
	if want := "1st line\n" + file[len("first line\n"):]; file != created || read("made.txt") != want {
		t.Errorf("approved %q, written %q", file, read("made.txt"))
	}
	if result := decode[struct{ Text string }](t, ada.result(t, session.ObservedTool)).Text; call != echoed ||
		result != echoed {
		t.Errorf("approved %q, the tool got %q", call, result)
	}
	if code, _ := ada.do(t, "GET", "/api/conversations/talk/select-file?file=file", ""); code == 200 {
		t.Error("the file was not deleted")
	}
	b.checkErrors()
}

// toolServer builds a tool server that returns its input.
func toolServer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "toolserver")
	command := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./hack/test/toolserver")
	command.Dir = testenv.Path()
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return path
}

// result returns the content of the only observation of a kind.
func (p *person) result(t *testing.T, kind string) string {
	t.Helper()
	for _, e := range p.events(t, "talk") {
		if e.Observation == kind {
			return *e.Content
		}
	}
	t.Fatalf("there is no %s", kind)
	return ""
}

// An answer from a second tab, or a retry, that names another question approves nothing.
func TestThePageAnswersOnlyThePendingQuestion(t *testing.T) {
	ada := newPerson(t, map[string]any{"confirmation_mode": true}, says("", bash("echo one >> file")),
		says("", bash("echo two >> file")), says("Done."))
	b := ada.talks(t, ada.host(t))
	b.asksFor("echo one >> file")
	b.approve()
	b.asksFor("echo two >> file")
	// Another client repeats the first answer.
	var asked []int
	for _, e := range ada.events(t, "talk") {
		if e.StateOf() == session.StateConfirmation {
			asked = append(asked, e.ID)
		}
	}
	if len(asked) != 2 {
		t.Fatalf("asked %v", asked)
	}
	for _, id := range []int{asked[0], asked[1] + 1} {
		ada.wants(t, 409, "POST", "/api/conversations/talk/events", fmt.Sprintf(
			`{"action": "change_agent_state", "args": {"agent_state": "user_confirmed", "question": %d}}`, id))
	}
	b.asksFor("echo two >> file")
	b.sees(answerable)
	b.enter(".confirm input", "One line is enough\r")
	b.waitForText("You rejected the action: One line is enough", "Your turn")
	b.checkErrors()
}

// An approval of similar actions is in the journal, and revoking it brings the questions back.
func TestThePageRevokesAnApprovalOfSimilarActions(t *testing.T) {
	step := func(text string) scriptedmodel.Step {
		return says("", edit(map[string]any{"command": "create", "path": "made.txt", "file_text": text}))
	}
	ada := newPerson(t, map[string]any{"confirmation_mode": true}, step("1"), step("2"), says("First."), step("3"),
		says("Second."))
	b := ada.talks(t, ada.host(t))
	b.sees(answerable)
	b.do(chromedp.Click(chromedp.CSS("[data-do=remember]")))
	b.waitForText("First.", "Your turn")
	b.sees("document.querySelector('.approvals').textContent.includes('Approved in this session: 1')")
	b.do(chromedp.Click(chromedp.CSS(".approvals summary")))
	b.press("Revoke")
	b.waitForText("You revoked your approval")
	b.enter(".answer textarea", "again\r")
	b.approve()
	b.waitForText("Second.")
	b.checkErrors()
}
