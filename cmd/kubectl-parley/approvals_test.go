package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/creack/pty"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// chatter is a running chat and the user who types into it.
type chatter struct {
	*invocation
	*fakeFacade
	t  *testing.T
	in *io.PipeWriter
}

func startChat(t *testing.T, f *fakeFacade, ns string) *chatter {
	t.Helper()
	read, write := io.Pipe()
	t.Cleanup(func() { _ = write.Close() })
	return &chatter{runAsyncWith(t, read, kubeconfig, ns, "chat", "c", "--facade", f.URL), f, t, write}
}

func (c *chatter) types(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// reads() waits until the log contains the text at least the given number of times.
func (c *chatter) reads(log *testenv.Log, text string, times int) {
	c.t.Helper()
	testenv.Await(c.t, func() error {
		if count := strings.Count(log.String(), text); count < times {
			return fmt.Errorf("%q appears %d times in %s", text, count, log.String())
		}
		return nil
	})
}

func (c *chatter) noAnswer() {
	c.t.Helper()
	select {
	case args := <-c.answers:
		c.t.Errorf("sent %v", args)
	default:
	}
}

const prompt = "? Run this action?"

// asks returns the event of a question. The parameter similar describes the actions that the user
// may approve together with this action.
func asks(id, similar string) session.Event {
	event := confirmation(id)
	event.Extras["remember"] = similar
	return event
}

func TestChatAnswersOnlyTheQuestionThatWasShown(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	f.add(session.StateChange(session.StateRunning, ""))
	c := startChat(t, f, ns)
	// The agent is working and no question is pending, so this y must not answer the next question.
	c.types("y")
	c.reads(&c.errOut, "typed before the question", 1)
	f.add(runCall("1", "rm -rf src"))
	first := f.add(asks("1", ""))
	c.reads(&c.out, prompt, 1)
	c.noAnswer()
	// The next y answers the first question. The y after it is typed before the second question
	// appears, and must not answer the second question.
	c.types("y")
	if args := <-f.answers; args["agent_state"] != "user_confirmed" || args["question"] != float64(first.ID) {
		t.Errorf("sent %v", args)
	}
	c.types("y")
	c.reads(&c.errOut, "error:", 2)
	f.add(session.StateChange(session.StateRunning, ""), runCall("2", "git push --force"))
	second := f.add(asks("2", ""))
	c.reads(&c.out, prompt, 2)
	c.noAnswer()
	// The facade refuses the answer, because the question on the screen is no longer pending.
	f.stale.Store(true)
	c.types("y")
	c.reads(&c.errOut, "error:", 3)
	c.reads(&c.errOut, "This question is no longer pending", 1)
	f.stale.Store(false)
	c.types("no, use a branch")
	want := map[string]any{"agent_state": "user_rejected", "question": float64(second.ID), "reason": "use a branch"}
	if args := <-f.answers; !maps.Equal(args, want) {
		t.Errorf("sent %v, want %v", args, want)
	}
	if sent := f.userMessages(); len(sent) > 0 {
		t.Errorf("sent messages: %q", sent)
	}
}

func TestChatIgnoresKeystrokesBeforeTheQuestion(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	f.add(session.StateChange(session.StateRunning, ""), session.UserMessage("earlier", nil))
	keyboard, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(keyboard.Close(), terminal.Close()) })
	press := func(keys string) {
		t.Helper()
		if _, err := keyboard.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	c := &chatter{runAsyncWith(t, terminal, kubeconfig, ns, "chat", "c", "--facade", f.URL), f, t, nil}
	c.reads(&c.out, "> earlier", 1)
	press("y")
	f.add(runCall("1", "rm -rf src"))
	f.add(asks("1", ""))
	c.reads(&c.out, prompt, 1)
	// A line that is typed less than a second after the question does not answer it.
	press("\ny\n")
	c.reads(&c.errOut, "typed before the question", 1)
	testenv.Await(t, func() error {
		select {
		case args := <-f.answers:
			if args["agent_state"] != "user_rejected" {
				t.Errorf("sent %v", args)
			}
			return nil
		default:
			press("n\n")
			return errors.New("no answer was sent")
		}
	})
}

// The chat holds its lock while it prints a question. A line that is read meanwhile waits for the
// lock, and must not answer the question.
func TestChatTakesNoAnswerWhileItPrintsAQuestion(t *testing.T) {
	waits := regexp.MustCompile(`\(\*chat\)\.locked\(.*\n.*\n.*\(\*chat\)\.readLines`)
	in, typed := io.Pipe()
	c := &chat{IOStreams: genericiooptions.IOStreams{In: in, Out: io.Discard}}
	lines := c.readLines()
	asked := session.StateChange(session.StateConfirmation, "")
	c.locked(func() {
		if _, err := io.WriteString(typed, "y\n"); err != nil {
			t.Fatal(err)
		}
		testenv.Await(t, func() error {
			stacks := make([]byte, 1<<20)
			if stacks = stacks[:runtime.Stack(stacks, true)]; !waits.Match(stacks) {
				return fmt.Errorf("no line waits: %s", stacks)
			}
			return nil
		})
		c.updateState(&asked)
	})
	if line := <-lines; line.question != noQuestion {
		t.Errorf("the line answers question %d", line.question)
	}
}

func TestChatSendsYesAsAMessageIfNoConfirmationIsPending(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	r := runAsyncWith(t, strings.NewReader("yes\n"), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err != nil || strings.Join(f.userMessages(), "|") != "yes" {
		t.Errorf("%v: sent %q", err, f.userMessages())
	}
}

func TestApprovalsAreGrantedListedAndRevokedInAChat(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	f.add(session.StateChange(session.StateRunning, ""), runCall("1", "ls"))
	large := asks("1", "this exact command")
	large.Extras["incomplete"] = true
	asked := f.add(large)
	c := startChat(t, f, ns)
	c.reads(&c.out, `type "a" to approve this exact command in this session`, 1)
	c.reads(&c.out, "! This action is too large to show in full.", 1)
	c.types("a")
	want := map[string]any{"agent_state": "user_confirmed", "question": float64(asked.ID), "remember": true}
	if args := <-f.answers; !maps.Equal(args, want) {
		t.Errorf("sent %v, want %v", args, want)
	}
	granted := f.add(session.Event{Source: session.FromUser, Action: session.ActionChangeState, Args: map[string]any{
		"agent_state": "user_confirmed", "remember": true, "remembered": "this exact command"}},
		session.StateChange(session.StateRunning, ""))
	id := granted.ID - 1
	c.reads(&c.out, fmt.Sprintf("approved in this session: this exact command; /revoke %d", id), 1)
	c.types("/approvals")
	c.reads(&c.out, fmt.Sprintf("! %d: this exact command", id), 1)
	c.types("/revoke 999")
	c.reads(&c.errOut, "no approval has the number", 1)
	c.types(fmt.Sprintf("/revoke %d", id))
	if args := <-f.answers; !maps.Equal(args, map[string]any{"approval": float64(id)}) {
		t.Errorf("sent %v", args)
	}
	f.add(session.Event{Source: session.FromUser, Action: session.ActionRevoke, Args: map[string]any{"approval": id}})
	c.reads(&c.out, "no longer approved: this exact command", 1)
	c.types("/approvals")
	c.reads(&c.out, "nothing is approved in advance", 1)
}

func TestChatShowsThatAnEarlierApprovalCoversAnAction(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	f.add(testenv.Events(t, "../../api/session/testdata/covered.jsonl")...)
	c := startChat(t, f, ns)
	c.reads(&c.out, "  $ make\n! Approved without a question: you approved this exact command.\n", 1)
}

func TestChatShowsTheWholeActionBeforeItsApproval(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	edit := func(args map[string]any) session.Event {
		return session.Event{Source: session.FromAgent, Action: session.ActionEdit, Message: "Edit a file", Args: args}
	}
	for name, test := range map[string]struct {
		event session.Event
		want  string
	}{
		"replaced text": {edit(map[string]any{"path": "/w/a.go", "command": "str_replace", "thought": "",
			"old_str": "same\nold\n", "new_str": "same\nnew\x1b[2J\u202e\u200b\n"}),
			"  Edit /w/a.go\n    same\n  - old\n  + new\ufffd[2J\ufffd\ufffd\n"},
		"created file": {edit(map[string]any{"path": "/w/a.sh", "command": "create", "file_text": "one\n\nthree\n"}),
			"  Create /w/a.sh\n  + one\n  + \n  + three\n"},
		"inserted text": {edit(map[string]any{"path": "/w/a", "command": "insert", "insert_line": 3, "new_str": "x"}),
			"  Edit /w/a, after line 3\n  + x\n"},
		"deletion": {edit(map[string]any{"path": "/w/src", "operation": "delete", "recursive": true}),
			"  Delete /w/src\n  {\n    \"recursive\": true\n  }\n"},
		"deletion with the arguments of an edit": {edit(map[string]any{"path": "/w/a", "operation": "delete",
			"command": "create", "file_text": ""}),
			"  Delete /w/a\n  {\n    \"command\": \"create\",\n    \"file_text\": \"\"\n  }\n"},
		"deletion of several files": {edit(map[string]any{"path": "/w/a", "operation": "delete",
			"paths": []any{"/w/a", "/w/b"}}),
			"  Delete /w/a\n  {\n    \"paths\": [\n      \"/w/a\",\n      \"/w/b\"\n    ]\n  }\n"},
		"move": {edit(map[string]any{"path": "/w/a", "operation": "move", "to": "/w/<b>"}),
			"  Move /w/a\n  {\n    \"to\": \"/w/<b>\"\n  }\n"},
		"changes to two files": {edit(map[string]any{"path": "/w/a", "changes": []any{
			map[string]any{"path": "/w/a", "old_text": "1\n2\n3\n4\n5\n", "new_text": "1\n2\n3\n4\nfive"},
			map[string]any{"path": "/w/b", "old_text": nil, "new_text": "new"}}}),
			"  Edit /w/a\n  Changes to /w/a\n    2\n    3\n    4\n  - 5\n  + five\n  (line break at the end removed)\n" +
				"  New file /w/b\n  + new\n"},
		"tool": {session.Event{Source: session.FromAgent, Action: session.ActionTool, Message: "fetch",
			Args: map[string]any{"name": "fetch", "thought": "", "arguments": map[string]any{"url": "https://a/?b&c"}}},
			"  Tool fetch\n  {\n    \"url\": \"https://a/?b&c\"\n  }\n"},
		"command with other arguments": {session.Event{Source: session.FromAgent, Action: session.ActionRun,
			Args: map[string]any{"command": "y", "is_input": true}}, "  $ y\n  {\n    \"is_input\": true\n  }\n"},
		"command": {runCall("", "echo one\nrm -r two\r\n"), "  $ echo one\n  rm -r two"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeFacade(t, key, succeeds)
			test.event.ToolCall = &session.ToolCall{ID: "1"}
			f.add(test.event, confirmation("1"))
			c := startChat(t, f, ns)
			c.reads(&c.out, prompt, 1)
			if out := c.out.String(); !strings.Contains(out, test.want) {
				t.Errorf("output is\n%s, want\n%s", out, test.want)
			}
		})
	}
}

func TestChatPrintsOutputWithoutColours(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	output := "\x1b[1;32mok\x1b[0m \x1b]8;;https://example.com\x1b\\link\x1b]8;;\x07\r\n 10%\r 90%\rdone\nraw \x07bell"
	f.add(session.Event{Source: session.FromAgent, Observation: session.ActionRun, Content: &output,
		Extras: map[string]any{"interrupted": true}}, session.StateChange(session.StateAwaiting, ""))
	r := runAsyncWith(t, strings.NewReader(""), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := errors.Join(r.wait(t)); err != nil {
		t.Fatal(err)
	}
	want := "    ok link\n     10%\n     90%\n    done\n    raw \ufffdbell\n    (interrupted)\n"
	if r.out.String() != want {
		t.Errorf("output is %q, want %q", r.out.String(), want)
	}
}
