//go:build browser

package integration_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/page"
)

// stubFacade serves the page and one conversation with scripted events. Tests use it for failures,
// and for events that the shipped agent does not send.
type stubFacade struct {
	*httptest.Server

	mu      sync.Mutex
	events  []session.Event
	changed chan struct{}
	preview *session.Preview
	// ended is a channel. It is closed when the streams must end.
	ended chan struct{}
	// posted contains the headers of all requests for a new conversation.
	posted  []http.Header
	created []map[string]any // the bodies of all requests for a new conversation
	// busy is the number of requests for a new conversation that get status 503 before one
	// succeeds.
	busy int
	// answered contains the events and requests that receive() got while signedOut was false.
	answered []userEvent
	// answer returns the HTTP status for an event of the user. It may emit events, because the
	// caller does not hold the lock.
	answer func(userEvent) int
	item   map[string]any
	list   func(query url.Values) []map[string]any
	// lists contains the queries of all requests for the list.
	lists []url.Values
	// streams is the number of open event streams.
	streams int
	// If signedOut is true, receive() responds with status 401.
	signedOut bool
	// session is the response to a request for the signed-in user.
	session string
	// signIns contains the query of each sign-in at the provider. chosen contains the body of each
	// request that chooses UserSettings.
	signIns []url.Values
	chosen  []string
}

// userEvent is an event or a request of the user, with its idempotency key.
type userEvent struct {
	Action    string
	Args      map[string]any
	Message   string
	ImageURLs []string `json:"image_urls"`
	key       string
	settings  string // the header with the settings of the tab
}

func newStubFacade(t *testing.T) *stubFacade {
	t.Helper()
	f := &stubFacade{changed: make(chan struct{}), ended: make(chan struct{}),
		answer:  func(userEvent) int { return http.StatusOK },
		item:    map[string]any{"conversation_id": "c", "title": "A talk", "status": "RUNNING"},
		session: `{"user": "ada", "namespace": "parley", "settings_stored": false}`}
	mux := http.NewServeMux()
	if err := page.Register(mux); err != nil {
		t.Fatal(err)
	}
	answers := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	}
	f.people(mux)
	mux.HandleFunc("GET /api/conversations", f.page)
	mux.HandleFunc("GET /api/conversations/{id}", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		_ = json.NewEncoder(w).Encode(f.item)
	})
	mux.HandleFunc("GET /api/options/models", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode([]string{"openai/gpt-5" + r.URL.Query().Get("agent")})
	})
	answers("GET /api/options/agents", `["CodeActAgent"]`)
	answers("GET /api/conversations/c/usage", `{}`)
	answers("GET /api/usage", `{"month": "2026-02", "spent": "12.341", "unsettled": "0", "reserved": "1", "limits": [
		{"scope": "user", "period": "month", "limit": "50", "used": "13.341", "resets": "2026-03-01T00:00:00Z"},
		{"scope": "namespace", "period": "day", "limit": "7", "used": null, "resets": "2026-02-02T00:00:00Z"}], "lines": [
		{"day": "2026-02-01", "namespace": "a", "model": "cheap", "calls": 3, "input_tokens": 1, "output_tokens": 1,
		"cost": "0.341"}, {"day": "2026-02-01", "namespace": "a", "model": "<b>big</b>", "calls": 1, "input_tokens": 2,
		"output_tokens": 2, "cost": "5"}, {"day": "2026-02-02", "namespace": "b", "model": "<b>big</b>", "calls": 2,
		"input_tokens": 3, "output_tokens": 3, "cost": "7"}]}`)
	answers("GET /api/conversations/c/git/changes", `[{"status": "M", "path": "a.txt"}]`)
	answers("GET /api/conversations/c/git/diff", `{"original": "a\n", "modified": "b\n"}`)
	answers("GET /api/conversations/c/request", `{"initial_user_msg": "Line one\nLine two", "repository": "o/wrong",
		"selected_branch": "main", "git_provider": "gitlab", "image_urls": [], "suggested_task": null,
		"create_microagent": null, "conversation_instructions": null,
		"agent": null, "llm_model": "openai/gpt-5", "not_copied": ["MCP servers"]}`)
	answers("POST /api/signin", `{"user": "ada", "namespace": "parley", "settings_stored": false}`)
	mux.HandleFunc("POST /api/conversations/c/events", f.receive)
	mux.HandleFunc("POST /api/conversations/c/message", f.receive)
	mux.HandleFunc("POST /api/conversations/{id}/stop", f.receive)
	mux.HandleFunc("DELETE /api/conversations/{id}", f.receive)
	mux.HandleFunc("GET /api/conversations/c/events/stream", f.stream)
	mux.HandleFunc("GET /api/conversations/c/events", f.serveEvent)
	mux.HandleFunc("POST /api/conversations", f.create)
	mux.HandleFunc("POST /api/markdown", func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Texts []string }
		_ = json.NewDecoder(r.Body).Decode(&asked)
		for i, text := range asked.Texts {
			asked.Texts[i] = "<p>" + text + "</p>"
		}
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

func (f *stubFacade) opensTab(t *testing.T, b *browser, hash string) *browser {
	t.Helper()
	tab := newTab(b.ctx, t, f.Listener.Addr().String())
	tab.do(chromedp.EmulateViewport(1100, 800), chromedp.Navigate(f.URL+"/"+hash))
	return tab
}

// emit adds events to the conversation. It returns the ID of the last event.
func (f *stubFacade) emit(events ...session.Event) (last int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, event := range events {
		event.ID, event.Timestamp = len(f.events), session.Timestamp(time.Now())
		f.events = append(f.events, event)
		last = event.ID
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return last
}

func (f *stubFacade) show(preview session.Preview) {
	f.mu.Lock()
	f.preview = &preview
	f.mu.Unlock()
	f.emit()
}

// reset deletes all events, like a session that restarts without its journal.
func (f *stubFacade) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = nil
	close(f.ended)
	f.ended = make(chan struct{})
}

// serveEvent handles requests for a single event. It serves the event with the ID start_id. If
// there is no such event and reverse is true, it serves the last ten events in reverse order.
func (f *stubFacade) serveEvent(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, err := strconv.Atoi(r.URL.Query().Get("start_id"))
	events := []session.Event{}
	if r.URL.Query().Get("reverse") == "true" {
		events = slices.Clone(f.events[max(0, len(f.events)-10):])
		slices.Reverse(events)
	}
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
	f.streams++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.streams--
	}()
	for {
		f.mu.Lock()
		events, changed, preview := f.events, f.changed, f.preview
		f.mu.Unlock()
		for ; last+1 < len(events); last++ {
			text, _ := json.Marshal(events[last+1])
			_, _ = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", last+1, text)
		}
		if preview != nil && r.URL.Query().Get(session.PreviewsParameter) == "true" {
			text, _ := json.Marshal(preview)
			_, _ = fmt.Fprintf(w, "event: preview\ndata: %s\n\n", text)
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

func (f *stubFacade) receive(w http.ResponseWriter, r *http.Request) {
	event := userEvent{key: r.Header.Get(session.IdempotencyHeader), settings: r.Header.Get(rest.SettingsHeader)}
	_ = json.NewDecoder(r.Body).Decode(&event)
	if event.Action == "" {
		event.Action = r.Method + " " + r.URL.Path
	}
	f.mu.Lock()
	signedOut := f.signedOut
	if !signedOut {
		f.answered = append(f.answered, event)
	}
	f.mu.Unlock()
	code := http.StatusUnauthorized
	if !signedOut {
		code = f.answer(event)
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"detail": map[int]string{
		http.StatusConflict: "This question is no longer pending"}[code]})
}

func (f *stubFacade) received() []userEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.answered)
}

func (f *stubFacade) page(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.lists = append(f.lists, r.URL.Query())
	f.mu.Unlock()
	results := append([]map[string]any{}, f.list(r.URL.Query())...)
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	var next any
	if len(results) > limit {
		results, next = results[:limit], "next"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"results": results, "next_page_id": next})
}

func (f *stubFacade) create(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	f.mu.Lock()
	f.posted, f.created = append(f.posted, r.Header), append(f.created, body)
	busy := len(f.posted) <= f.busy
	f.mu.Unlock()
	if busy {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"detail": "Try again"}`)
		return
	}
	_, _ = io.WriteString(w, `{"status": "ok", "conversation_id": "c"}`)
}

func runs(id, command string) session.Event {
	return session.Event{Source: session.FromAgent, Action: session.ActionRun, Args: map[string]any{"command": command},
		ToolCall: &session.ToolCall{ID: id}}
}

func asksAbout(id string) session.Event {
	event := session.StateChange(session.StateConfirmation, "")
	event.ToolCall = &session.ToolCall{ID: id}
	return event
}

// The page must always show the command that an approval would run.
func TestThePageShowsTheToolCallThatNeedsConfirmation(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	// The call "old" was interrupted by a restart. The call "low" needs no confirmation.
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
	b.sees("document.querySelector('.confirm:not([hidden])') && !document.querySelector('.confirm code')")
	b.waitForText("The agent did not describe this action")
	f.emit(asksAbout("low"))
	b.sees("document.querySelector('.confirm:not([hidden]) code')?.textContent === 'ls \ufffdhs|live lruc'")
	b.sees("!document.body.innerText.includes('The agent did not describe this action')")
	b.checkErrors()
}

// If the request fails, the user sends it again. The page must use the same idempotency key, so
// that only one conversation is created.
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

// A session may restart without its journal. The page must then remove the events of the old
// journal.
func TestThePageRemovesTheEventsOfALostJournal(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	f.emit(session.UserMessage("Said before.", nil), runs("1", "make"), asksAbout("1"),
		session.StateChange(session.StateRunning, ""))
	b.readsOnce("Said before.")
	// If the stream ends but the journal stays the same, the page must not remove old events.
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
