//go:build browser

package integration_test

import (
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func entry(id, title, status string, attention bool) map[string]any {
	return map[string]any{"conversation_id": id, "title": title, "status": status, "needs_attention": attention,
		"message": "out of memory", "last_updated_at": "2026-01-01T12:00:00Z"}
}

// manyConversations makes 30 conversations, and returns the conversations that match the query. The
// oldest of the 30 conversations has failed.
func manyConversations(query url.Values) (found []map[string]any) {
	for i := range 30 {
		e := entry(fmt.Sprintf("c-%02d", i), fmt.Sprintf("Talk %02d", i), "STOPPED", i == 29)
		if query.Get("attention") == "true" && i != 29 || query.Get("status") == "RUNNING" ||
			!strings.Contains(strings.ToLower(e["title"].(string)), query.Get("query")) {
			continue
		}
		found = append(found, e)
	}
	return found
}

func TestThePageSearchesAllConversations(t *testing.T) {
	f := newStubFacade(t)
	f.list = manyConversations
	b := f.opens(t, "#/")
	b.sees("document.querySelector('section[aria-label=\"Needs attention\"] .title')?.textContent === 'Talk 29'")
	b.sees("document.title === '(1) Conversations – Parley' && !document.body.innerText.includes('Talk 25')")
	b.enter("[type=search]", "talk 25")
	b.waitForText("Talk 25")
	b.sees("document.querySelectorAll('.row').length === 1")
	b.press("Talk 25")
	b.sees("location.hash === '#/c/c-25'")
	b.do(chromedp.NavigateBack())
	b.sees("document.querySelector('[type=search]')?.value === 'talk 25'")
	b.sees("document.querySelectorAll('.row').length === 1")
	b.choose("[aria-label=State]", "attention")
	b.sees("(() => { const state = document.querySelector('[aria-label=State]'); if (!location.hash.includes('state')) " +
		"state.dispatchEvent(new Event('change')); return location.hash === '#/?query=talk+25&state=attention'; })()")
	b.waitForText("No conversation matches the filter.")
	b.do(chromedp.Reload())
	b.waitForText("No conversation matches the filter.")
	b.checkErrors()
}

func TestThePageCanStopDeleteAndDuplicateConversationsInTheList(t *testing.T) {
	f := newStubFacade(t)
	f.list = func(url.Values) []map[string]any {
		return []map[string]any{entry("c", "A talk", "STARTING", false)}
	}
	b := f.opens(t, "#/")
	b.waitForText("A talk")
	b.sees("(() => { window.asked = []; window.confirm = (text) => window.asked.push(text); return true; })()")
	b.press("Stop")
	f.awaitReceived(t, 1)
	b.press("Delete")
	got := f.awaitReceived(t, 2)
	if got[0].Action != "POST /api/conversations/c/stop" || got[1].Action != "DELETE /api/conversations/c" {
		t.Errorf("received %v", got)
	}
	b.sees("window.asked.length === 2 && window.asked.every((text) => text.includes('“A talk”'))")
	b.press("Duplicate")
	b.sees("document.querySelector('[name=repository]')?.value === 'o/wrong'")
	b.checkErrors()
}

// The user can copy a conversation that could not clone its repository, and correct the copy.
func TestThePageDuplicatesAFailedConversation(t *testing.T) {
	f := newStubFacade(t)
	f.item = entry("c", "Line one", "STOPPED", true)
	b := f.opens(t, "#/c/c")
	b.sees("document.querySelector('.message.user .markdown')?.innerText.trim() === 'Line one\\nLine two'")
	b.sees("document.title === '● Line one – Parley'")
	b.press("Duplicate")
	b.waitForText("Not copied: MCP servers.")
	b.sees("document.querySelector('[name=initial_user_msg]').value === 'Line one\\nLine two' && " +
		"document.querySelector('[name=selected_branch]').value === 'main' && " +
		"document.querySelector('[name=git_provider]').value === 'gitlab'")
	b.sees("(() => { const field = document.querySelector('[name=repository]'); field.focus(); field.select(); " +
		"return true; })()")
	b.types("o/right")
	// The page keeps the corrected draft while the user looks at the original.
	b.do(chromedp.NavigateBack())
	b.sees("location.hash === '#/c/c'")
	b.press("Duplicate")
	b.sees("document.querySelector('[name=repository]')?.value === 'o/right'")
	b.press("Start")
	b.sees("location.hash === '#/c/c'")
	b.checkErrors()
}

func TestThePageCreatesNoConversationWithoutAMessage(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/new")
	b.press("Start")
	b.waitForText("Write a message")
	b.sees("document.activeElement.name === 'initial_user_msg'")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.posted) > 0 {
		t.Error("an empty conversation was created")
	}
}

func TestThePageKeepsDrafts(t *testing.T) {
	f := newStubFacade(t)
	f.list = func(url.Values) []map[string]any { return []map[string]any{entry("c", "A talk", "RUNNING", false)} }
	b := f.opens(t, "#/c/c")
	f.emit(session.StateChange(session.StateAwaiting, ""))
	has := "document.querySelector('.answer textarea')?.value === 'Half a thought'"
	b.enter(".answer textarea", "Half a thought")
	b.press("Changes")
	b.waitForText("1 file changed")
	b.sees("document.querySelector('a[download=\"c.patch\"]')?.getAttribute('href') === '/api/conversations/c/git/patch'")
	b.press("Conversation")
	b.sees(has)
	b.press("Conversations")
	b.sees("document.querySelector('.row .title')?.textContent === 'A talk'")
	b.do(chromedp.NavigateBack())
	b.sees(has)
	f.mu.Lock()
	f.signedOut = true
	f.mu.Unlock()
	b.press("Send")
	b.waitForText("Session key")
	f.mu.Lock()
	f.signedOut = false
	f.mu.Unlock()
	b.enter("#key", "a-key\r")
	b.sees(has)
	b.press("Send")
	b.sees("document.querySelector('.answer textarea')?.value === ''")
	if got := f.received(); len(got) != 1 {
		t.Errorf("received %v", got)
	}
	b.press("Changes")
	b.press("Conversation")
	b.sees("document.querySelector('.answer textarea')?.value === ''")
	b.press("New")
	b.enter("[name=initial_user_msg]", "A plan")
	b.press("Conversations")
	b.press("New")
	b.sees("document.querySelector('[name=initial_user_msg]')?.value === 'A plan'")
	b.sees("sessionStorage.length === 1")
}

func TestThePageShowsLineBreaksAndRemovesColoursFromOutput(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	output, cause, second := "\x1b[1;32mok\x1b[0m\r\n 10%\rdone", 1, 3
	f.emit(session.UserMessage("Line one\nLine two", nil), runs("1", "make"),
		session.Event{Source: session.FromAgent, Observation: session.ActionRun, Cause: &cause, Content: &output,
			Extras: map[string]any{"interrupted": true}},
		runs("2", "sleep"), session.Event{Source: session.FromAgent, Observation: session.ActionRun, Cause: &second,
			Extras: map[string]any{"metadata": map[string]any{"exit_code": -1}}})
	b.waitForText("still running")
	b.sees("document.querySelector('.message.user .markdown:not(.plain)')?.innerText.trim() === 'Line one\\nLine two'")
	b.waitForText("interrupted")
	b.sees("document.querySelector('.tool pre[aria-label=Output]').textContent === 'ok\\n 10%\\ndone'")
	b.checkErrors()
}

// visibility makes the page believe that its tab became hidden or visible.
func (b *browser) visibility(state string) {
	b.t.Helper()
	b.sees("(() => { " + visibility(state) + " return true; })()")
}

func visibility(state string) string {
	return fmt.Sprintf("Object.defineProperty(document, 'visibilityState', { value: %q, configurable: true }); "+
		"document.dispatchEvent(new Event('visibilitychange'));", state)
}

// visibilityDuring changes the visibility of the page during the next request whose URL contains
// the given path. window.later lists the requests that the page sends after the change. Each item
// also has the time since the change, in milliseconds.
func (b *browser) visibilityDuring(path, state string) {
	b.t.Helper()
	b.sees(fmt.Sprintf("(() => { const real = window.fetch; const later = window.later = []; let changed = 0; "+
		"window.fetch = async (path, options) => { if (changed) later.push([path, performance.now() - changed]); "+
		"const response = await real(path, options); if (!changed && path.includes(%q)) { changed = performance.now(); %s } "+
		"return response; }; return true; })()", path, visibility(state)))
}

func TestThePageNoticesAChangeOfVisibilityDuringARequest(t *testing.T) {
	f := newStubFacade(t)
	f.emit(session.StateChange(session.StateRunning, ""))
	b := f.opens(t, "#/c/c")
	b.waitForText("Working")
	f.awaitStreams(t, 1)
	b.visibility("hidden")
	f.awaitStreams(t, 0)
	b.visibilityDuring("start_id", "hidden")
	b.visibility("visible")
	b.sees("window.later.some(([path]) => path.includes('reverse=true'))") // a hidden page polls the last events
	f.awaitStreams(t, 0)
	b.visibilityDuring("reverse=true", "visible")
	b.sees("window.later.some(([path, time]) => path.includes('/stream') && time < 9000)")
	f.awaitStreams(t, 1)
	b.checkErrors()
}

func TestThePageCountsConversationsThatNeedAttentionWhileItIsHidden(t *testing.T) {
	var fails atomic.Bool
	f := newStubFacade(t)
	f.list = func(url.Values) []map[string]any {
		return []map[string]any{entry("c", "A talk", "STOPPED", fails.Load())}
	}
	b := f.opens(t, "#/")
	b.waitForText("A talk")
	b.visibility("hidden")
	fails.Store(true)
	b.sees("document.title === '(1) Conversations – Parley'")
	b.checkErrors()
}

func (f *stubFacade) awaitStreams(t *testing.T, count int) {
	t.Helper()
	testenv.Await(t, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.streams != count {
			return fmt.Errorf("%d streams are open", f.streams)
		}
		return nil
	})
}

// A hidden page keeps no stream open, but must still notify the user.
func TestThePageNotifiesTheUserWhileItIsHidden(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	b.sees("(() => { window.notes = []; window.Notification = class { static permission = 'granted'; " +
		"constructor(title, { body }) { window.notes.push(`${title}: ${body}`); } }; return true; })()")
	f.emit(session.StateChange(session.StateRunning, ""))
	b.waitForText("Working")
	f.awaitStreams(t, 1)
	b.visibility("hidden")
	f.awaitStreams(t, 0)
	f.emit(runs("1", "make"), asksAbout("1"))
	b.sees("document.title === '● A talk – Parley' && window.notes.join() === 'A talk: Needs approval'")
	b.sees("!" + question) // a hidden page does not show new events
	b.visibility("visible")
	f.awaitStreams(t, 1)
	b.asksFor("make")
	b.sees("document.querySelectorAll('.tool').length === 1 && window.notes.length === 1")
	b.checkErrors()
}

func TestThePageAddsALineBreakOnEnterOnPhones(t *testing.T) {
	f := newStubFacade(t)
	f.emit(session.StateChange(session.StateAwaiting, ""))
	b := f.opens(t, "#/c/c")
	b.do(chromedp.EmulateViewport(400, 800, chromedp.EmulateMobile, chromedp.EmulateTouch))
	b.sees("matchMedia('(hover: none) and (pointer: coarse)').matches")
	b.enter(".answer textarea", "one\rtwo")
	b.sees("document.querySelector('.answer textarea').value === 'one\\ntwo'")
	b.press("Send")
	f.awaitReceived(t, 1)
	b.checkErrors()
}
