//go:build browser

package integration_test

import (
	"net/http"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// The facade answers the first message with status 503. The user then sends the message again.
func TestThePageWakesAStoppedConversation(t *testing.T) {
	f := newStubFacade(t)
	f.item = map[string]any{"conversation_id": "c", "title": "A talk", "status": "STOPPED", "reason": "Idle",
		"message": "Ended to make room"}
	answers := make(chan int)
	f.answer = func(userEvent) int { return <-answers }
	f.emit(session.UserMessage("Before.", nil), session.StateChange(session.StateAwaiting, ""))
	b := f.opens(t, "#/c/c")
	b.waitForText("Before.", "Idle: Ended to make room")
	b.sees("document.querySelector('.answer textarea').placeholder.startsWith('Send a message to resume.')")
	waking := "document.querySelector('.answers > .hint:not([hidden])')?.textContent === 'Waking up…'"
	b.sees("!(" + waking + ")")
	b.enter(".answer textarea", "Go on")
	b.press("Send")
	b.sees(waking)
	answers <- http.StatusServiceUnavailable
	b.sees("!(" + waking + ") && document.querySelector('.answer textarea').value === 'Go on'")
	b.press("Send")
	b.sees(waking)
	f.mu.Lock()
	f.item = map[string]any{"conversation_id": "c", "title": "A talk", "status": "RUNNING"}
	f.mu.Unlock()
	answers <- http.StatusOK
	b.sees("document.querySelector('.answer textarea').value === ''")
	b.sees("document.querySelector('.answer textarea').placeholder.startsWith('Reply')")
	if got := f.received(); len(got) != 2 || got[0].key == "" || got[0].key != got[1].key || got[1].Message != "Go on" {
		t.Errorf("the page sent %+v", got)
	}
}
