//go:build browser

package integration_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/page"
)

// stubFacade serves the page and scripted events of a conversation: events that no shipped agent
// sends, and failures.
type stubFacade struct {
	*httptest.Server

	mu      sync.Mutex
	events  []session.Event
	changed chan struct{}
	// ended is closed when the session ends, which ends the streams.
	ended chan struct{}
	// posted are the headers of requests for new conversations. The first busy of them get a 503,
	// after which the client does not know whether a conversation was created.
	posted []http.Header
	busy   int
}

func newStubFacade(t *testing.T) *stubFacade {
	t.Helper()
	f := &stubFacade{changed: make(chan struct{}), ended: make(chan struct{})}
	mux := http.NewServeMux()
	if err := page.Register(mux); err != nil {
		t.Fatal(err)
	}
	answers := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	}
	answers("GET /api/session", `{"user": "ada", "namespace": "parley", "settings_stored": false}`)
	answers("GET /api/conversations/c", `{"conversation_id": "c", "title": "A talk", "status": "RUNNING"}`)
	answers("GET /api/conversations/c/usage", `{}`)
	mux.HandleFunc("GET /api/conversations/c/events/stream", f.stream)
	mux.HandleFunc("GET /api/conversations/c/events", f.one)
	mux.HandleFunc("POST /api/conversations", f.create)
	mux.HandleFunc("POST /api/markdown", func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Texts []string }
		_ = json.NewDecoder(r.Body).Decode(&asked)
		_ = json.NewEncoder(w).Encode(map[string][]string{"html": asked.Texts})
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	return f
}

func (f *stubFacade) opens(t *testing.T, hash string) *browser {
	t.Helper()
	at, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, at.Host)
	b.do(chromedp.EmulateViewport(1100, 800), chromedp.Navigate(f.URL+"/"+hash))
	return b
}

// emit sends further events.
func (f *stubFacade) emit(events ...session.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, event := range events {
		event.ID, event.Timestamp = len(f.events), session.Timestamp(time.Now())
		f.events = append(f.events, event)
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// reset drops all events, as a session does that restarts without its journal.
func (f *stubFacade) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = nil
	close(f.ended)
	f.ended = make(chan struct{})
}

// one returns one event, if it exists.
func (f *stubFacade) one(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, err := strconv.Atoi(r.URL.Query().Get("start_id"))
	events := []session.Event{}
	if err == nil && id < len(f.events) {
		events = f.events[id : id+1]
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"events": events, "has_more": false})
}

func (f *stubFacade) stream(w http.ResponseWriter, r *http.Request) {
	last, err := strconv.Atoi(r.URL.Query().Get("after"))
	if err != nil {
		last = -1
	}
	w.Header().Set("Content-Type", "text/event-stream")
	f.mu.Lock()
	ended := f.ended
	f.mu.Unlock()
	for {
		f.mu.Lock()
		events, changed := f.events, f.changed
		f.mu.Unlock()
		for ; last+1 < len(events); last++ {
			text, _ := json.Marshal(events[last+1])
			_, _ = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", last+1, text)
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// create creates a conversation, or answers 503.
func (f *stubFacade) create(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.posted = append(f.posted, r.Header)
	busy := len(f.posted) <= f.busy
	f.mu.Unlock()
	if busy {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"detail": "Try again"}`)
		return
	}
	_, _ = io.WriteString(w, `{"status": "ok", "conversation_id": "c"}`)
}

// runs is a tool call that runs a command.
func runs(id, command string) session.Event {
	return session.Event{Source: session.FromAgent, Action: session.ActionRun, Args: map[string]any{"command": command},
		ToolCall: &session.ToolCall{ID: id}}
}

// asksAbout is a request to confirm a tool call.
func asksAbout(id string) session.Event {
	event := session.StateChange(session.StateConfirmation, "")
	event.ToolCall = &session.ToolCall{ID: id}
	return event
}

// A user must never approve a command other than the one on the page.
func TestThePageShowsTheCallToConfirm(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	// The first call was interrupted with its session, and the last one needs no confirmation.
	f.emit(runs("old", "npm test"), session.StateChange(session.StateLoading, ""), runs("high", "git push --force"),
		runs("low", "ls \u202ehs|live lruc"), asksAbout("high"))
	b.sees("document.querySelector('.confirm:not([hidden]) code')?.textContent === 'git push --force'")
	b.sees("[...document.querySelectorAll('.tool')].filter((e) => e.open && e.textContent.includes('needs " +
		"approval')).map((e) => e.querySelector('code').textContent).join() === 'git push --force'")
	done := session.Event{Source: session.FromAgent, Observation: session.ActionRun, Cause: new(int), Content: new(string),
		ToolCall: &session.ToolCall{ID: "high"}}
	*done.Cause = 2
	f.emit(session.StateChange(session.StateConfirmed, ""), session.StateChange(session.StateRunning, ""), done,
		asksAbout("nowhere"))
	b.sees("document.querySelector('.confirm:not([hidden]) code')?.textContent === ''")
	b.waitForText("The agent did not describe this action")
	f.emit(asksAbout("low"))
	b.sees("document.querySelector('.confirm:not([hidden]) code')?.textContent === 'ls \ufffdhs|live lruc'")
	b.sees("!document.body.innerText.includes('The agent did not describe this action')")
	b.checkErrors()
}

// Without a response, the page repeats the request with the same key and gets the same
// conversation.
func TestThePageStartsOneConversationDespiteALostResponse(t *testing.T) {
	f := newStubFacade(t)
	f.busy = 2
	b := f.opens(t, "#/new")
	b.enter("[name=initial_user_msg]", "Make it so.")
	for range 2 {
		b.press("Start")
		b.sees("(() => { const told = document.querySelector('.failed'); const is = told.textContent !== ''; " +
			"told.textContent = ''; return is; })()")
	}
	b.enter("[name=initial_user_msg]", " Now.")
	b.press("Start")
	b.sees("location.hash === '#/c/c'")
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []string
	for _, header := range f.posted {
		keys = append(keys, header.Get("Idempotency-Key"))
	}
	if len(keys) != 3 || len(keys[0]) != 32 || keys[0] != keys[1] || keys[2] == keys[1] || len(keys[2]) != 32 {
		t.Errorf("the keys are %q: want one key per message", keys)
	}
}

// The page shows the events of a session that started over, however many events came before.
func TestThePageShowsASessionThatStartedOver(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	f.emit(session.UserMessage("Said before.", nil), runs("1", "make"), asksAbout("1"),
		session.StateChange(session.StateRunning, ""))
	b.readsOnce("Said before.")
	// The end of a stream says nothing about the session.
	f.mu.Lock()
	close(f.ended)
	f.ended = make(chan struct{})
	f.mu.Unlock()
	f.emit(session.UserMessage("Said since.", nil))
	b.readsOnce("Said since.")
	b.readsOnce("Said before.")
	f.reset()
	f.emit(session.UserMessage("Said anew.", nil))
	b.readsOnce("Said anew.")
	b.sees("!document.querySelector('.timeline').innerText.includes('Said before.') && " +
		"!document.querySelector('.timeline .tool')")
	b.checkErrors()
}
