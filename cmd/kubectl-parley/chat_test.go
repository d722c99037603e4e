package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// talk is a facade with one conversation, whose agent does what works says.
type talk struct {
	*httptest.Server
	// works is what comes of the message with this ID.
	works func(message session.Event) []session.Event

	mu      sync.Mutex
	events  []session.Event
	changed chan struct{}
	// stopped: the session does not run, and what it left is all there is.
	stopped bool
}

func newTalk(t *testing.T, key string, works func(session.Event) []session.Event) *talk {
	t.Helper()
	f := &talk{works: works, changed: make(chan struct{})}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := strings.TrimPrefix(r.URL.Path, "/api/conversations/c"); {
		case r.Header.Get(rest.KeyHeader) != key:
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(map[string]string{"detail": "Unauthorized"})
		case path == "" && f.stopped:
			_, _ = io.WriteString(w, `{"status": "STOPPED", "reason": "Failed", "message": "out of memory"}`)
		case path == "/events" && r.Method == http.MethodPost && f.stopped:
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(map[string]string{"detail": "The conversation does not run"})
		case path == "/events" && r.Method == http.MethodPost:
			f.take(r)
		case path == "/events":
			f.mu.Lock()
			defer f.mu.Unlock()
			_ = json.NewEncoder(w).Encode(map[string]any{"events": lastOf(f.events, 1)})
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

// add events, and return the last one.
func (f *talk) add(events ...session.Event) (last session.Event) {
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

func (f *talk) take(r *http.Request) {
	var asked struct{ Args struct{ Content string } }
	_ = json.NewDecoder(r.Body).Decode(&asked)
	f.add(f.works(f.add(session.UserMessage(asked.Args.Content, nil)))...)
}

func (f *talk) stream(w http.ResponseWriter, r *http.Request) {
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
		if f.stopped {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// said are the messages of users.
func (f *talk) said() (texts []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, event := range f.events {
		if event.IsUserMessage() {
			texts = append(texts, event.Text())
		}
	}
	return texts
}

// begins a turn with a message.
func begins(message session.Event) session.Event {
	event := session.StateChange(session.StateRunning, "")
	event.Meta = &session.EventMeta{Turn: &message.ID}
	return event
}

// cannotStart is a turn for which there is no agent: it does not begin.
func cannotStart(message session.Event) []session.Event {
	event := session.StateChange(session.StateError, "the agent cannot be started")
	event.Meta = &session.EventMeta{Withdrawn: &message.ID}
	return []session.Event{event}
}

func succeeds(message session.Event) []session.Event {
	return []session.Event{begins(message), session.StateChange(session.StateAwaiting, "")}
}

func fails(message session.Event) []session.Event {
	return []session.Event{begins(message), session.StateChange(session.StateError, "the model does not answer")}
}

const modelFailed = "the agent's turn failed: the model does not answer"

// failsFirst fails with the first message only.
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

func TestATalkEndsAsTheAgentsTurnDoes(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	for _, test := range []struct {
		name, in, want string
		works          func(session.Event) []session.Event
	}{
		{"a turn that succeeds", "hi\n", "", succeeds},
		{"two turns", "hi\nand more", "", succeeds},
		{"nothing to say", "", "", succeeds},
		{"a turn that fails", "hi\n", modelFailed, fails},
		{"a turn that cannot begin", "hi\n", "the agent's turn failed: the agent cannot be started", cannotStart},
		{"two turns that cannot begin", "hi\nand more\n", "the agent's turn failed: the agent cannot be started",
			cannotStart},
		{"a first turn that fails", "hi\nand more", modelFailed, failsFirst},
		{"an error that no state tells", "hi\n", "the agent's turn failed: the disk is full",
			func(message session.Event) []session.Event {
				return []session.Event{begins(message), errorOf("the disk is full"), session.StateChange(session.StateAwaiting, "")}
			}},
		{"an error after the state", "hi\n", "the agent's turn failed: the disk is full",
			func(message session.Event) []session.Event {
				return append(succeeds(message), errorOf("the disk is full"))
			}},
		{"an error after which the session is stopped", "hi\n", modelFailed, func(message session.Event) []session.Event {
			return append(fails(message), session.StateChange(session.StateStopped, ""))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newTalk(t, key, test.works)
			r := beginWith(t, strings.NewReader(test.in), kubeconfig, ns, "chat", "c", "--facade", f.URL)
			if err := r.wait(t); test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != test.want) {
				t.Errorf("it ends with %v, want %q", err, test.want)
			}
			if said := strings.Join(f.said(), "\n"); said != strings.TrimSpace(test.in) {
				t.Errorf("said is %q", said)
			}
		})
	}
}

// A message that waited is tried before the one that was sent after it.
func TestATalkEndsWithTheTurnOfItsOwnMessage(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	sent := make(chan session.Event, 1)
	f := newTalk(t, key, func(message session.Event) []session.Event { sent <- message; return nil })
	earlier := f.add(session.UserMessage("earlier", nil))
	f.add(cannotStart(earlier)...)
	r := beginWith(t, strings.NewReader("hi\n"), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	mine := <-sent
	answer := func(text string) session.Event {
		return session.Event{Source: session.FromAgent, Action: session.ActionMessage, Args: map[string]any{"content": text}}
	}
	f.add(begins(earlier), answer("to the earlier one"), session.StateChange(session.StateAwaiting, ""))
	testenv.Await(t, func() error {
		if out := r.out.String(); !strings.Contains(out, "to the earlier one") {
			return errors.New(out)
		}
		return nil
	})
	f.add(begins(mine), answer("to mine"), session.StateChange(session.StateAwaiting, ""))
	if err := r.wait(t); err != nil || !strings.HasSuffix(r.out.String(), "to mine\n") {
		t.Errorf("%v: %s", err, r.out.String())
	}
}

func TestWhatFailedBeforeIsNoOutcomeOfATalk(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	for _, test := range []struct {
		name, in, want string
		works          func(session.Event) []session.Event
	}{
		{"nothing to say", "", "", succeeds},
		{"a turn that succeeds", "hi\n", "", succeeds},
		{"a turn that fails", "hi\n", modelFailed, fails},
		{"an earlier turn that fails meanwhile", "hi\n", "", func(message session.Event) []session.Event {
			return append([]session.Event{errorOf("an old one"), session.StateChange(session.StateError, "an old one")},
				succeeds(message)...)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newTalk(t, key, test.works)
			earlier := f.add(session.UserMessage("earlier", nil))
			f.add(begins(earlier), errorOf("an old one"), session.StateChange(session.StateError, "an old one"))
			r := beginWith(t, strings.NewReader(test.in), kubeconfig, ns, "chat", "c", "--facade", f.URL)
			if err := r.wait(t); test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != test.want) {
				t.Errorf("it ends with %v, want %q", err, test.want)
			}
			if !strings.Contains(r.out.String(), "! an old one") {
				t.Errorf("what happened before is not shown: %s", r.out.String())
			}
		})
	}
}

func TestWhatFailsIsShownOnce(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	first := "the model does not answer"
	reason := first + "\nit is asleep"
	event := session.Event{Source: session.FromEnvironment, Observation: session.ObservedError, Message: first + " …",
		Content: &reason}
	turn := func(message session.Event) []session.Event {
		return []session.Event{begins(message), event, session.StateChange(session.StateError, reason)}
	}
	f := newTalk(t, key, turn)
	f.add(turn(f.add(session.UserMessage("earlier", nil)))...)
	r := beginWith(t, strings.NewReader("hi\n"), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err == nil {
		t.Error("the turn failed, and the command does not")
	}
	// Once for each of the two turns.
	for _, line := range []string{first, "it is asleep"} {
		if out := r.out.String(); strings.Count(out, line) != 2 {
			t.Errorf("%q should be shown once for each turn: %s", line, out)
		}
	}
}

func TestATurnThatIsOnlyWatchedIsATalksOutcome(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newTalk(t, key, succeeds)
	f.add(begins(f.add(session.UserMessage("earlier", nil))))
	r := beginWith(t, strings.NewReader(""), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	testenv.Await(t, func() error {
		if out := r.out.String(); !strings.Contains(out, "> earlier") {
			return errors.New(out)
		}
		return nil
	})
	f.add(session.StateChange(session.StateError, "the model does not answer"))
	if err := r.wait(t); err == nil || err.Error() != modelFailed {
		t.Errorf("it ends with %v", err)
	}
}

// runs is a call of a tool that runs a command.
func runs(id, command string) session.Event {
	return session.Event{Source: session.FromAgent, Action: session.ActionRun, Args: map[string]any{"command": command},
		ToolCall: &session.ToolCall{ID: id}}
}

// asksAbout a call of a tool.
func asksAbout(id string) session.Event {
	event := session.StateChange(session.StateConfirmation, "")
	event.ToolCall = &session.ToolCall{ID: id}
	return event
}

// Nobody confirms another command than the one that they read.
func TestTheCallThatIsAskedAboutStandsAboveTheQuestion(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newTalk(t, key, succeeds)
	done := session.Event{Source: session.FromAgent, Observation: session.ActionRun,
		ToolCall: &session.ToolCall{ID: "high"}}
	f.add(runs("high", "git push --force"), asksAbout("high"), done, runs("high", "rm -r build"), runs("low", "ls"),
		asksAbout("high"), done, asksAbout("high"),
		session.StateChange(session.StateAwaiting, ""))
	r := beginWith(t, strings.NewReader(""), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err != nil {
		t.Fatal(err)
	}
	const question, unknown = "? Do it? y or n\n", "! What it would do is not known here: it did not say. Reject it if " +
		"in doubt.\n"
	want := "  $ git push --force\n" + question + "  $ rm -r build\n  $ ls\n  $ rm -r build\n" +
		question + unknown + question
	if out := r.out.String(); out != want {
		t.Errorf("it shows\n%s, want\n%s", out, want)
	}
}

func TestAnUnknownCommandIsNoMessage(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newTalk(t, key, succeeds)
	in := " /pause\n/nosuch\n/Pause now\n/etc/hosts is empty\n// a comment\n /tmp is full\n/ \n"
	r := beginWith(t, strings.NewReader(in), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err == nil || err.Error() != "lines that were not sent: 2" {
		t.Errorf("it ends with %v", err)
	}
	if said := strings.Join(f.said(), "|"); said != "/pause|/etc/hosts is empty|// a comment|/tmp is full|/" {
		t.Errorf("said is %s", said)
	}
	for _, want := range []string{"there is no command /nosuch", "there is no command /Pause", "/pause", "/resume",
		"space"} {
		if !strings.Contains(r.errOut.String(), want) {
			t.Errorf("%q is not told: %s", want, r.errOut.String())
		}
	}
}

func TestAKeyThatIsRefusedIsTold(t *testing.T) {
	ns := operate(t)
	create(t, conversation(ns, "c"))
	keyOfAda(t, ns)
	f := newTalk(t, "another", succeeds)
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
