//go:build browser

package integration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

const printed = "document.querySelector('.tool[open] pre[aria-label=\"Output so far\"]')"

func TestThePageShowsTheOutputOfARunningCommand(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	cause := f.emit(session.StateChange(session.StateRunning, ""), runs("1", "make"))
	output := func(content string) session.Preview {
		return session.Preview{Outputs: []session.CommandOutput{{Cause: cause, Content: content}}}
	}
	f.show(output("\x1b[32mone\x1b[0m\n 10%\r\x1b[3"))
	b.sees(printed + "?.textContent === 'one\\n 10%\\n'")
	b.waitForText("running")
	// If the output is scrolled to its end, the page keeps the end visible. A long output does not
	// make the page longer.
	f.show(output(strings.Repeat("a line\n", 1000) + "<b>last</b>"))
	b.sees(printed + "?.textContent.endsWith('<b>last</b>')")
	b.sees("(() => { const e = " + printed + "; return e.scrollTop > 0 && e.clientHeight < 400 && " +
		"e.scrollHeight - e.scrollTop - e.clientHeight < 20; })()")
	// An action that the user closed stays closed.
	b.sees("(() => { document.querySelector('.tool').open = false; return true; })()")
	f.show(output("more"))
	b.sees("document.querySelector('.tool pre').textContent === 'more' && !document.querySelector('.tool').open")
	content := "the result"
	f.emit(session.Event{Source: session.FromAgent, Observation: session.ActionRun, Cause: &cause, Content: &content})
	b.sees("[...document.querySelectorAll('.tool pre')].map((e) => e.textContent).join() === 'the result'")
	f.show(output("a late preview"))
	f.show(session.Preview{})
	f.emit(session.UserMessage("Seen?", nil))
	b.waitForText("Seen?")
	b.sees("[...document.querySelectorAll('.tool pre')].map((e) => e.textContent).join() === 'the result'")
	b.checkErrors()
}

func TestThePageShowsTheRetryTimeOfAModelCall(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	const reason = "The model's provider limits the request rate. Next try at 15:04:05 UTC."
	waits := session.StateChange(session.StateRunning, reason)
	waits.Extras["retry_at"] = "2026-11-17T15:04:05Z"
	f.emit(session.StateChange(session.StateRunning, ""), waits)
	b.waitForText(reason)
	b.sees("[...document.querySelectorAll('button')].some((button) => button.textContent === 'Pause')")
	f.emit(session.StateChange(session.StateRunning, ""))
	b.sees("!document.body.innerText.includes('Next try')")
	b.checkErrors()
}

// A message that is sent during a turn waits until the agent gets it. The agent gets it in the
// middle of the turn, or as the message of the next turn.
func TestThePageShowsMessagesThatWait(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	begins := func(turn int) session.Event {
		event := session.StateChange(session.StateRunning, "")
		event.Meta = &session.EventMeta{Turn: &turn}
		return event
	}
	waiting := func(texts string) {
		t.Helper()
		b.sees("[...document.querySelectorAll('.message.user')].filter((e) => e.querySelector('.waiting'))." +
			"map((e) => e.querySelector('.markdown').textContent.trim()).join() === '" + texts + "'")
	}
	first := f.emit(session.UserMessage("First", nil))
	f.emit(begins(first))
	second := f.emit(session.UserMessage("Second", nil))
	third := f.emit(session.UserMessage("Third", nil))
	b.waitForText("Third", "waiting for the agent")
	waiting("Second,Third")
	delivered := session.StateChange(session.StateRunning, "")
	delivered.Meta = &session.EventMeta{Delivered: &second}
	f.emit(delivered)
	waiting("Third")
	f.emit(session.StateChange(session.StateAwaiting, ""), begins(third))
	waiting("")
	b.checkErrors()
}

func TestThePageShowsAnAnswerWhileItIsWritten(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	f.emit(session.StateChange(session.StateRunning, ""))
	f.show(session.Preview{Thought: "Hm."})
	b.sees("document.querySelector('.unfinished')?.innerText === 'Agent is thinking…\\nHm.'")
	f.show(session.Preview{Message: "I am <b>he"})
	b.sees("document.querySelector('.unfinished')?.innerText === 'Agent is writing…\\nI am <b>he'")
	b.sees("document.querySelector('.unfinished').getAttribute('aria-live') === 'off'")
	answer := session.UserMessage("I am here.", nil)
	answer.Source = session.FromAgent
	f.mu.Lock()
	f.preview = nil
	f.mu.Unlock()
	f.emit(answer)
	b.readsOnce("I am here.")
	b.sees("document.querySelector('.unfinished').innerText === ''")
	// The page removes an unfinished answer when the stream ends, because the session may have
	// restarted.
	f.show(session.Preview{Message: "Now"})
	b.waitForText("Agent is writing…")
	f.mu.Lock()
	f.preview = nil
	close(f.ended)
	f.ended = make(chan struct{})
	f.mu.Unlock()
	b.sees("document.querySelector('.unfinished').innerText === ''")
	// A hidden page closes its stream. When it is visible again, it shows the current preview.
	f.awaitStreams(t, 1)
	f.show(session.Preview{Message: "Again"})
	b.waitForText("Again")
	b.visibility("hidden")
	f.awaitStreams(t, 0)
	b.sees("document.querySelector('.unfinished').innerText === ''")
	b.visibility("visible")
	b.waitForText("Again")
	f.show(session.Preview{})
	b.sees("document.querySelector('.unfinished').innerText === ''")
	b.checkErrors()
}

// The previews come from a real session with the shipped agent.
func TestThePageShowsTextOfTheShippedAgentWhileItIsWritten(t *testing.T) {
	seen, pause := filepath.Join(t.TempDir(), "seen"), make(chan struct{})
	ada := newPerson(t, map[string]any{},
		says("", bash("echo one; until test -e "+seen+"; do sleep 0.1; done; echo two")),
		scriptedmodel.Step{Text: "The first half of this answer appears before its second half.", Pause: pause})
	ada.converse(t, "talk", map[string]any{"repository": repository(t), "initial_user_msg": "work"})
	b := startBrowser(t, ada.host(t))
	ada.begin(t, b, "talk")
	b.sees(printed + "?.textContent === 'one\\n'")
	if err := os.WriteFile(seen, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.sees("document.querySelector('.unfinished').innerText.includes('The first half')")
	b.sees("document.querySelector('.tool pre[aria-label=Output]').textContent.trim() === 'one\\ntwo'")
	close(pause)
	b.waitForText("Your turn")
	b.readsOnce("The first half of this answer appears before its second half.")
	b.sees("document.querySelector('.unfinished').innerText === ''")
	b.checkErrors()
}
