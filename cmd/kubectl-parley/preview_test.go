package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/parley-dev/parley/api/session"
)

func agentSays(text string) *session.Event {
	return &session.Event{Source: session.FromAgent, Action: session.ActionMessage, Args: map[string]any{"content": text}}
}

func result(cause int, content string) *session.Event {
	return &session.Event{Source: session.FromAgent, Observation: session.ActionRun, Cause: &cause, Content: &content}
}

func prints(cause int, content string) *session.Preview {
	return &session.Preview{Outputs: []session.CommandOutput{{Cause: cause, Content: content}}}
}

// Text that is already on the screen is not printed again, and no text is missing.
func TestChatPrintsPreviewsOnce(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a line\n", 3) + "another\n"
	for name, test := range map[string]struct {
		steps []any
		want  string
	}{
		"a message": {[]any{&session.Preview{Message: "I"}, &session.Preview{Message: "I am"}, agentSays("I am here.")},
			"I am here.\n"},
		"a preview of the whole message": {[]any{&session.Preview{Message: "Yes."}, agentSays("Yes."), &session.Preview{}},
			"Yes.\n"},
		"a message that was restarted": {[]any{&session.Preview{Message: "I am"}, &session.Preview{},
			&session.Preview{Message: "Hello"}, agentSays("Hello!")}, "I am\nHello!\n"},
		"a message that differs from its preview": {[]any{&session.Preview{Message: "I am"}, agentSays("Hello!")},
			"I am\nHello!\n"},
		"a user message during a preview": {[]any{&session.Preview{Message: "I am"}, new(session.UserMessage("Stop", nil)),
			&session.Preview{Message: "I am he"}, agentSays("I am here.")}, "I am\n> Stop\n here.\n"},
		"escape sequences": {[]any{&session.Preview{Message: "\x1b[2Ja"}, agentSays("\x1b[2Jab")}, "\ufffd[2Jab\n"},
		"output": {[]any{prints(1, "one\ntw"), prints(1, "one\ntwo\n\x1b[31mthr"), result(1, "one\ntwo\n\x1b[31mthree\n")},
			"    one\n    two\n    three\n"},
		"a preview of the whole output": {[]any{prints(1, "one\n"), result(1, "one\n")}, "    one\n"},
		"a preview of only the end of long output": {[]any{prints(1, long), prints(1, "a line\nanother\nlast\n"),
			result(1, long+"last\n")},
			"    a line\n    a line\n    a line\n    another\n    last\n" +
				"    a line\n    a line\n    a line\n    another\n    last\n"},
		"a preview that misses output": {[]any{prints(1, "one\n"), prints(1, "nine\n")}, "    one\n    …\n    nine\n"},
		"output of two commands": {[]any{prints(1, "one\n"), &session.Preview{Outputs: []session.CommandOutput{{Cause: 1,
			Content: "one\n"}, {Cause: 2, Content: "two\n"}}}, result(1, "one\n"), result(2, "two\n")}, "    one\n    two\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			c := &chat{IOStreams: genericiooptions.IOStreams{Out: &out}, historyEnd: -1, openCalls: map[string]openCall{},
				outputs: map[int]*printed{}}
			for _, step := range test.steps {
				switch step := step.(type) {
				case *session.Preview:
					c.preview(step)
				case *session.Event:
					c.show(step)
				}
			}
			if out.String() != test.want {
				t.Errorf("printed %q, want %q", out.String(), test.want)
			}
			if len(c.outputs) > 1 {
				t.Errorf("%d outputs are remembered", len(c.outputs))
			}
		})
	}
}

func TestChatPrintsNothingBetweenAQuestionAndItsAnswer(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &chat{IOStreams: genericiooptions.IOStreams{Out: &out}, question: &question{}, outputs: map[int]*printed{}}
	c.preview(&session.Preview{Message: "I am", Outputs: prints(1, "one\n").Outputs})
	if out.Len() > 0 {
		t.Errorf("printed %q", out.String())
	}
}

func TestPreviewsAreNotCountedAsEvents(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "event: preview\ndata: {\"message\":\"asked: %s\"}\n\nid: 7\ndata: {\"id\":7}\n\n",
			r.URL.Query().Get(session.PreviewsParameter))
	}))
	t.Cleanup(server.Close)
	for _, wanted := range []bool{true, false} {
		user, got, last := &facadeUser{url: server.URL}, "", -1
		if wanted {
			user.preview = func(p *session.Preview) { got += p.Message }
		}
		_, err := user.stream(t.Context(), "c", &last, func(e *session.Event) bool {
			got += fmt.Sprint(" ", e.ID)
			return false
		})
		want := map[bool]string{true: "asked: true 7", false: " 7"}[wanted]
		if err != nil || got != want || last != 7 {
			t.Errorf("previews: %t: got %q, last %d, %v", wanted, got, last, err)
		}
	}
}
