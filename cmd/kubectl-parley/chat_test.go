package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// fakeFacade is a facade with one conversation, c, and a scripted agent.
type fakeFacade struct {
	*httptest.Server
	// reply returns the agent's events after a message.
	reply func(message session.Event) []session.Event

	mu      sync.Mutex
	events  []session.Event
	changed chan struct{}
	// stopped means that the session has ended, and that there are no more events. If wakes is set,
	// a message starts the session again.
	stopped atomic.Bool
	wakes   bool
	// noArchive means that the events of a stopped session cannot be read.
	noArchive bool
	// answers is a channel for the arguments of each user action that changes the agent's state or
	// revokes an approval. If stale is set, the facade refuses these actions.
	answers chan map[string]any
	stale   atomic.Bool
}

func newFakeFacade(t *testing.T, key string, reply func(session.Event) []session.Event) *fakeFacade {
	t.Helper()
	f := &fakeFacade{reply: reply, changed: make(chan struct{}), answers: make(chan map[string]any, 10)}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.String(), key) { // a proxy may log it
			t.Errorf("the key is in the URL %s", r.URL)
		}
		switch path := strings.TrimPrefix(r.URL.Path, "/api/conversations/c"); {
		case r.Header.Get(rest.KeyHeader) != key:
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(map[string]string{"detail": "Unauthorized"})
		case path == "" && f.stopped.Load():
			_, _ = io.WriteString(w, `{"status": "STOPPED", "reason": "Failed", "message": "out of memory"}`)
		case path == "":
			_, _ = io.WriteString(w, `{"status": "RUNNING"}`)
		case path == "/events" && r.Method == http.MethodPost && f.stopped.Load() && !f.wakes:
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(map[string]string{"detail": "The conversation does not run"})
		case path == "/events" && r.Method == http.MethodPost:
			f.stopped.Store(false)
			f.receive(w, r)
		case f.noArchive && f.stopped.Load():
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(map[string]string{"detail": "The conversation is not running: start it first"})
		case path == "/events":
			f.mu.Lock()
			defer f.mu.Unlock()
			limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
			events := slices.Clone(lastOf(f.events, limit))
			slices.Reverse(events)
			_ = json.NewEncoder(w).Encode(map[string]any{"events": events})
		case path == "/events/stream":
			f.stream(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	f.add(session.StateChange(session.StateLoading, ""), session.StateChange(session.StateAwaiting, ""))
	return f
}

func (f *fakeFacade) add(events ...session.Event) (last session.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, event := range events {
		event.ID = len(f.events)
		f.events = append(f.events, event)
		last = event
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return last
}

func (f *fakeFacade) receive(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Action string
		Args   map[string]any
	}
	_ = json.NewDecoder(r.Body).Decode(&request)
	switch {
	case request.Action == session.ActionMessage:
		text, _ := request.Args["content"].(string)
		f.add(f.reply(f.add(session.UserMessage(text, nil)))...)
	case f.stale.Load():
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(map[string]string{"detail": "This question is no longer pending"})
	default:
		f.answers <- request.Args
	}
}

func (f *fakeFacade) stream(w http.ResponseWriter, r *http.Request) {
	next := 0
	if last, err := strconv.Atoi(r.Header.Get("Last-Event-ID")); err == nil {
		next = last + 1
	}
	for {
		f.mu.Lock()
		events, changed := f.events[next:], f.changed
		f.mu.Unlock()
		for _, event := range events {
			text, _ := json.Marshal(event)
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
		}
		next += len(events)
		w.(http.Flusher).Flush()
		if f.stopped.Load() {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fakeFacade) userMessages() (texts []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, event := range f.events {
		if event.IsUserMessage() {
			texts = append(texts, event.Text())
		}
	}
	return texts
}

func turnBegins(message session.Event) session.Event {
	event := session.StateChange(session.StateRunning, "")
	event.Meta = &session.EventMeta{Turn: &message.ID}
	return event
}

// cannotStart returns the events for a message whose turn does not begin, because the agent cannot
// be started.
func cannotStart(message session.Event) []session.Event {
	event := session.StateChange(session.StateError, "the agent cannot be started")
	event.Meta = &session.EventMeta{Withdrawn: &message.ID}
	return []session.Event{event}
}

func succeeds(message session.Event) []session.Event {
	return []session.Event{turnBegins(message), session.StateChange(session.StateAwaiting, "")}
}

func fails(message session.Event) []session.Event {
	return []session.Event{turnBegins(message), session.StateChange(session.StateError, "the model does not answer")}
}

const modelFailed = "the agent's turn failed: the model does not answer"

// failsFirst returns a failed turn for the message hi, and successful turns for other messages.
func failsFirst(message session.Event) []session.Event {
	if message.Text() == "hi" {
		return fails(message)
	}
	return succeeds(message)
}

func errorOf(text string) session.Event {
	return session.Event{Source: session.FromEnvironment, Observation: session.ObservedError, Message: text,
		Content: &text}
}

func TestChatReturnsTheOutcomeOfTheTurn(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	for _, test := range []struct {
		name, in, want string
		reply          func(session.Event) []session.Event
	}{
		{"turn succeeds", "hi\n", "", succeeds},
		{"two turns succeed", "hi\nand more", "", succeeds},
		{"no input", "", "", succeeds},
		{"turn fails", "hi\n", modelFailed, fails},
		{"turn cannot begin", "hi\n", "the agent's turn failed: the agent cannot be started", cannotStart},
		{"two turns cannot begin", "hi\nand more\n", "the agent's turn failed: the agent cannot be started",
			cannotStart},
		{"first turn fails", "hi\nand more", modelFailed, failsFirst},
		{"error without error state", "hi\n", "the agent's turn failed: the disk is full",
			func(message session.Event) []session.Event {
				return []session.Event{turnBegins(message), errorOf("the disk is full"),
					session.StateChange(session.StateAwaiting, "")}
			}},
		{"error after the final state", "hi\n", "the agent's turn failed: the disk is full",
			func(message session.Event) []session.Event {
				return append(succeeds(message), errorOf("the disk is full"))
			}},
		{"session stops after the error", "hi\n", modelFailed, func(message session.Event) []session.Event {
			return append(fails(message), session.StateChange(session.StateStopped, ""))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFakeFacade(t, key, test.reply)
			r := runAsyncWith(t, strings.NewReader(test.in), kubeconfig, ns, "chat", "c", "--facade", f.URL)
			if err := r.wait(t); test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != test.want) {
				t.Errorf("chat returned %v, want %q", err, test.want)
			}
			if sent := strings.Join(f.userMessages(), "\n"); sent != strings.TrimSpace(test.in) {
				t.Errorf("sent messages: %q", sent)
			}
		})
	}
}

// An earlier message is still queued, so its turn runs first. The command chat must not end after
// this turn, but after the turn of its own message.
func TestChatEndsWhenTheTurnOfItsOwnMessageEnds(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	sent := make(chan session.Event, 1)
	f := newFakeFacade(t, key, func(message session.Event) []session.Event { sent <- message; return nil })
	earlier := f.add(session.UserMessage("earlier", nil))
	f.add(cannotStart(earlier)...)
	r := runAsyncWith(t, strings.NewReader("hi\n"), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	mine := <-sent
	answer := func(text string) session.Event {
		return session.Event{Source: session.FromAgent, Action: session.ActionMessage, Args: map[string]any{"content": text}}
	}
	f.add(turnBegins(earlier), answer("to the earlier one"), session.StateChange(session.StateAwaiting, ""))
	testenv.Await(t, func() error {
		if out := r.out.String(); !strings.Contains(out, "to the earlier one") {
			return errors.New(out)
		}
		return nil
	})
	f.add(turnBegins(mine), answer("to mine"), session.StateChange(session.StateAwaiting, ""))
	if err := r.wait(t); err != nil || !strings.HasSuffix(r.out.String(), "to mine\n") {
		t.Errorf("%v: %s", err, r.out.String())
	}
}

func TestChatReturnsTheOutcomeOfTheTurnThatItsMessageJoined(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, func(message session.Event) []session.Event {
		delivered := session.StateChange(session.StateRunning, "")
		delivered.Meta = &session.EventMeta{Delivered: &message.ID}
		return []session.Event{delivered, session.StateChange(session.StateError, "the model does not answer")}
	})
	f.add(turnBegins(f.add(session.UserMessage("earlier", nil))))
	r := runAsyncWith(t, strings.NewReader("hi\n"), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err == nil || err.Error() != modelFailed {
		t.Errorf("chat returned %v", err)
	}
}

func TestChatIgnoresEarlierFailures(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	for _, test := range []struct {
		name, in, want string
		reply          func(session.Event) []session.Event
	}{
		{"no input", "", "", succeeds},
		{"turn succeeds", "hi\n", "", succeeds},
		{"turn fails", "hi\n", modelFailed, fails},
		{"earlier turn fails meanwhile", "hi\n", "", func(message session.Event) []session.Event {
			return append([]session.Event{errorOf("an old one"), session.StateChange(session.StateError, "an old one")},
				succeeds(message)...)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFakeFacade(t, key, test.reply)
			earlier := f.add(session.UserMessage("earlier", nil))
			f.add(turnBegins(earlier), errorOf("an old one"), session.StateChange(session.StateError, "an old one"))
			r := runAsyncWith(t, strings.NewReader(test.in), kubeconfig, ns, "chat", "c", "--facade", f.URL)
			if err := r.wait(t); test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != test.want) {
				t.Errorf("chat returned %v, want %q", err, test.want)
			}
			if !strings.Contains(r.out.String(), "! an old one") {
				t.Errorf("earlier events are not shown: %s", r.out.String())
			}
		})
	}
}

func TestChatShowsAFailureOnce(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	first := "the model does not answer"
	reason := first + "\nit is asleep"
	event := session.Event{Source: session.FromEnvironment, Observation: session.ObservedError, Message: first + " …",
		Content: &reason}
	turn := func(message session.Event) []session.Event {
		return []session.Event{turnBegins(message), event, session.StateChange(session.StateError, reason)}
	}
	f := newFakeFacade(t, key, turn)
	f.add(turn(f.add(session.UserMessage("earlier", nil)))...)
	r := runAsyncWith(t, strings.NewReader("hi\n"), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err == nil {
		t.Error("the turn failed, but the command succeeded")
	}
	for _, line := range []string{first, "it is asleep"} {
		if out := r.out.String(); strings.Count(out, line) != 2 {
			t.Errorf("%q should be shown once for each turn: %s", line, out)
		}
	}
}

func TestChatWithoutInputReturnsTheOutcomeOfTheCurrentTurn(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	f.add(turnBegins(f.add(session.UserMessage("earlier", nil))))
	r := runAsyncWith(t, strings.NewReader(""), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	testenv.Await(t, func() error {
		if out := r.out.String(); !strings.Contains(out, "> earlier") {
			return errors.New(out)
		}
		return nil
	})
	f.add(session.StateChange(session.StateError, "the model does not answer"))
	if err := r.wait(t); err == nil || err.Error() != modelFailed {
		t.Errorf("chat returned %v", err)
	}
}

func runCall(id, command string) session.Event {
	return session.Event{Source: session.FromAgent, Action: session.ActionRun, Args: map[string]any{"command": command},
		ToolCall: &session.ToolCall{ID: id}}
}

func confirmation(id string) session.Event {
	event := session.StateChange(session.StateConfirmation, "")
	event.ToolCall = &session.ToolCall{ID: id}
	return event
}

// A user must not confirm a command that they have not read.
func TestChatPrintsTheCallAboveItsQuestion(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	done := session.Event{Source: session.FromAgent, Observation: session.ActionRun,
		ToolCall: &session.ToolCall{ID: "high"}}
	f.add(runCall("high", "git push --force"), confirmation("high"), done, runCall("high", "rm -r build"),
		runCall("low", "ls"), confirmation("high"), done, confirmation("high"),
		session.StateChange(session.StateAwaiting, ""))
	r := runAsyncWith(t, strings.NewReader(""), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err != nil {
		t.Fatal(err)
	}
	const question = "? Run this action? y, n or n REASON\n"
	const unknown = "! The agent did not describe this action. Reject it if in doubt.\n"
	want := "  $ git push --force\n" + question + "  $ rm -r build\n  $ ls\n  $ rm -r build\n" +
		question + unknown + question
	if out := r.out.String(); out != want {
		t.Errorf("output is\n%s, want\n%s", out, want)
	}
}

func TestChatDoesNotSendUnknownCommands(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	in := " /pause\n/nosuch\n/Pause now\n/etc/hosts is empty\n// a comment\n /tmp is full\n/ \n"
	r := runAsyncWith(t, strings.NewReader(in), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err == nil || err.Error() != "lines not sent: 2" {
		t.Errorf("chat returned %v", err)
	}
	if sent := strings.Join(f.userMessages(), "|"); sent != "/pause|/etc/hosts is empty|// a comment|/tmp is full|/" {
		t.Errorf("sent messages: %s", sent)
	}
	for _, want := range []string{"unknown command /nosuch", "unknown command /Pause", "/pause", "/resume",
		"space"} {
		if !strings.Contains(r.errOut.String(), want) {
			t.Errorf("%q is not printed: %s", want, r.errOut.String())
		}
	}
}

func TestARejectedKeyIsReportedWithItsSource(t *testing.T) {
	ns := startOperator(t)
	create(t, conversation(ns, "c"))
	keyOfAda(t, ns)
	f := newFakeFacade(t, "another", succeeds)
	for _, command := range []string{"chat", "diff", "open"} {
		_, _, err := run(t, ns, command, "c", "--facade", f.URL)
		if err == nil || !strings.Contains(err.Error(), "key") || !strings.Contains(err.Error(), "Secret ada-session-key") {
			t.Errorf("%s with the Secret's key: %v", command, err)
		}
	}
	t.Setenv("PARLEY_KEY", "not-the-key")
	for _, command := range []string{"chat", "diff", "open"} {
		_, _, err := run(t, ns, command, "c", "--facade", f.URL)
		if err == nil || !strings.Contains(err.Error(), "the key in $PARLEY_KEY") || strings.Contains(err.Error(),
			"not-the-key") {
			t.Errorf("%s with $PARLEY_KEY: %v", command, err)
		}
	}
}
