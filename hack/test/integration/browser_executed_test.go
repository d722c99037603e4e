//go:build browser

package integration_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func edit(args map[string]any) scriptedmodel.Call {
	return scriptedmodel.Call{Name: "str_replace_editor", Input: scriptedmodel.Input(args)}
}

// talks starts a conversation whose agent asks for approval, and opens its page.
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

// The user approves exactly the bytes that are executed.
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
	read := func(name string) string { return ada.file(t, name) }
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

func (p *person) file(t *testing.T, name string) string {
	t.Helper()
	file := p.wants(t, 200, "GET", "/api/conversations/talk/select-file?file="+name, "")
	return decode[struct{ Code string }](t, file).Code
}

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

// An answer to a question that is not pending must approve nothing. A second tab or a retry can
// send such an answer.
func TestThePageAnswersOnlyThePendingQuestion(t *testing.T) {
	ada := newPerson(t, map[string]any{"confirmation_mode": true}, says("", bash("echo one >> file")),
		says("", bash("echo two >> file")), says("Done."))
	b := ada.talks(t, ada.host(t))
	b.asksFor("echo one >> file")
	b.approve()
	b.asksFor("echo two >> file")
	// Another client answers the first question again. It also answers a question that does not exist.
	asked := ada.questions(t, "talk")
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

// The first of two tabs approves a question, and the agent asks the next question. The second tab
// still shows the old question. An approval in the second tab must be refused, even if it is
// repeated.
func TestThePageApprovesOnlyTheQuestionThatItsTabShows(t *testing.T) {
	ada := newPerson(t, map[string]any{"confirmation_mode": true}, says("", bash("echo one >> file")),
		says("", bash("echo two >> file")), says("Done."))
	one := ada.talks(t, ada.host(t))
	slow, slowly := newSlowFacade(t, ada.url), *ada
	slowly.url = slow.URL
	two := newTab(one.ctx, t, slowly.host(t))
	slowly.begin(t, two, "talk")
	for _, tab := range []*browser{one, two} {
		tab.asksFor("echo one >> file")
		tab.sees(answerable)
	}
	slow.stream.Lock()
	one.approve()
	one.asksFor("echo two >> file")
	two.asksFor("echo one >> file")
	for clicks := 1; clicks <= 2; clicks++ {
		two.approve()
		two.sees(fmt.Sprintf("String(%s) === %q", answeredStatuses, strings.Repeat(",409", clicks)[1:]))
		two.waitForText("no longer pending")
	}
	two.asksFor("echo one >> file")
	slow.stream.Unlock()
	for _, tab := range []*browser{one, two} {
		tab.asksFor("echo two >> file")
		tab.sees(answerable)
	}
	// If the first tab repeats its approval of the first question, the facade must refuse it.
	asked := ada.questions(t, "talk")
	ada.wants(t, 409, "POST", "/api/conversations/talk/events", fmt.Sprintf(
		`{"action": "change_agent_state", "args": {"agent_state": "user_confirmed", "question": %d}}`, asked[0]))
	if answers := ada.answers(t, "talk"); len(asked) != 2 || answers != 1 {
		t.Errorf("the questions %v got %d answers", asked, answers)
	}
	two.enter(".confirm input", "One line is enough\r")
	for _, tab := range []*browser{one, two} {
		tab.waitForText("You rejected the action: One line is enough", "Your turn")
	}
	if file := ada.file(t, "file"); file != "one\none\n" {
		t.Errorf("the file is %q", file)
	}
	one.checkErrors()
}

// answeredStatuses is a JavaScript expression. It lists the HTTP statuses of the requests in which
// the page sent the user's answers.
const answeredStatuses = "performance.getEntriesByType('resource').filter((e) => e.initiatorType === 'fetch' && " +
	"e.name.endsWith('/talk/events')).map((e) => e.responseStatus)"

// slowFacade forwards requests to a facade. While its mutex is locked, it forwards no events.
type slowFacade struct {
	*httptest.Server
	stream sync.RWMutex
}

func newSlowFacade(t *testing.T, facade string) *slowFacade {
	t.Helper()
	to, err := url.Parse(facade)
	if err != nil {
		t.Fatal(err)
	}
	slow := &slowFacade{}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	proxy.ErrorLog = log.New(io.Discard, "", 0) // the page aborts its streams, which is no error
	proxy.ModifyResponse = func(r *http.Response) error {
		if strings.HasSuffix(r.Request.URL.Path, "/events/stream") {
			r.Body = slowBody{r.Body, &slow.stream}
		}
		return nil
	}
	slow.Server = httptest.NewServer(proxy)
	t.Cleanup(func() { slow.CloseClientConnections(); slow.Close() })
	return slow
}

type slowBody struct {
	io.ReadCloser
	passes *sync.RWMutex
}

func (b slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.passes.RLock()
	defer b.passes.RUnlock()
	return n, err
}

func (p *person) questions(t *testing.T, id string) (asked []int) {
	t.Helper()
	for _, e := range p.events(t, id) {
		if e.StateOf() == session.StateConfirmation {
			asked = append(asked, e.ID)
		}
	}
	return asked
}

func (p *person) answers(t *testing.T, id string) (count int) {
	t.Helper()
	for _, e := range p.events(t, id) {
		if e.Action == session.ActionChangeState {
			count++
		}
	}
	return count
}

// The page and the terminal must label the action as a deletion or a move, and show all its files.
func TestThePageShowsAllFilesOfADeletionOrMove(t *testing.T) {
	addRemover(t)
	ada := newPerson(t, map[string]any{"confirmation_mode": true, "agent": "Remover"})
	project := repository(t)
	git := exec.CommandContext(t.Context(), "sh", "-ec", "for name in a b c d; do echo $name > $name; done; git add .; "+
		"git -c user.name=T -c user.email=t@example.com commit -qm more")
	git.Dir = strings.TrimPrefix(project, "file://")
	if output, err := git.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	ada.converse(t, "talk", map[string]any{"repository": project, "initial_user_msg": "move a moved\ndelete b c"})
	ada.awaitAgent(t, "talk", session.StateConfirmation)
	b := startBrowser(t, ada.host(t))
	ada.begin(t, b, "talk")
	var dir string
	for _, e := range ada.events(t, "talk") {
		if source, _ := e.Args["source"].(string); source != "" {
			dir = strings.TrimSuffix(source, "a")
		}
	}
	if !filepath.IsAbs(dir) {
		t.Fatalf("the files are in %q", dir)
	}
	asks := func(title, word string, paths ...string) {
		t.Helper()
		b.sees(fmt.Sprintf("%s?.querySelector('[role=status]').textContent === %q", question, title))
		for _, path := range paths {
			b.sees(fmt.Sprintf("%s.textContent.includes(%q)", question, dir+path))
		}
		b.sees(fmt.Sprintf("[...document.querySelectorAll('.tool .kind')].at(-1).textContent === %q", word))
	}
	asks("Move this file?", "Move", "a", "moved")
	b.approve()
	asks("Delete this file?", "Delete", "b", "c")
	out, err := ada.plugin(t, strings.NewReader("y\n"), "chat", "talk")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, text := range []string{"  Move " + dir + "a\n", `"destination": "` + dir + `moved"`, "  Delete " + dir + "b\n",
		`"` + dir + `c"`} {
		if !strings.Contains(out, text) {
			t.Errorf("%q is missing in\n%s", text, out)
		}
	}
	if strings.Contains(out, "Edit") || strings.Contains(b.text(), "Edit") {
		t.Errorf("a deletion or move is called an edit:\n%s\n%s", out, b.text())
	}
	b.waitForText("Your turn")
	files := ada.wants(t, 200, "GET", "/api/conversations/talk/list-files", "")
	if got := decode[[]string](t, files); strings.Join(got, " ") != "d file moved" {
		t.Errorf("the files are %q", got)
	}
	if moved := ada.file(t, "moved"); moved != "a\n" {
		t.Errorf("the moved file has %q", moved)
	}
	b.checkErrors()
}

// After the user revokes the approval, the agent must ask again.
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
	b.sees("document.querySelector('.approvals').textContent.includes('Approvals in this session: 1')")
	b.do(chromedp.Click(chromedp.CSS(".approvals summary")))
	b.press("Revoke")
	b.waitForText("You revoked your approval")
	b.enter(".answer textarea", "again\r")
	b.approve()
	b.waitForText("Second.")
	b.checkErrors()
}
