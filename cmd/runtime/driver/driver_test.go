package driver_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

func orders(lines ...string) string { return strings.Join(lines, "\n") }

func TestTheSessionWaitsForTheNextMessage(t *testing.T) {
	t.Parallel()
	first := orders("think hm", "say I will look", "run ls", "say done hunter2", "noise a log")
	d := newDrive(t, session.Document{FirstMessage: first}).start()
	d.until(session.StateAwaiting)
	events := []string{
		"state loading", "user: " + strings.ReplaceAll(first, "hunter2", "***"), "state running", "think hm",
		"agent: I will look", "run ls",
		"ran ls: out map[exit_code:3], of 5", "agent: done ***", "state awaiting_user_input",
	}
	d.expect(events...)
	if err := d.driver.Message("say again", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.wait("the second answer", func() bool { return len(d.events()) == len(events)+4 })
	d.expect(append(events, "user: say again", "state running", "agent: again", "state awaiting_user_input")...)
	if got := strings.Count(d.heard(), "session/new"); got != 1 {
		t.Errorf("there were %d sessions of the agent:\n%s", got, d.heard())
	}
	// The driver calls EndTurn after it has recorded the end of a turn, so wait for the call.
	d.wait("the end of both turns", func() bool { return d.turns.heard() == "begin 1, end, begin 9, end" })
	close(d.idle)
	if got := d.over(); got == nil || got.Reason != v1alpha1.ReasonIdle {
		t.Errorf("it ended with %+v", got)
	}
	if err := d.driver.Message("late", nil, ""); !errors.Is(err, driver.ErrOver) {
		t.Errorf("a message after the end: %v", err)
	}
}

// A client that received no response sends the message again, possibly to a later attempt.
func TestAMessageWithTheSameIdempotencyKeyIsRecordedOnce(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say one"}).start()
	d.until(session.StateAwaiting)
	send := func(text, key string) {
		t.Helper()
		if err := d.driver.Message(text, nil, key); err != nil {
			t.Fatal(err)
		}
	}
	answered := func(with string) {
		t.Helper()
		d.wait("the answer "+with, func() bool {
			state, said := d.driver.State()
			return state == session.StateAwaiting &&
				said == with
		})
	}
	send("say two", "a")
	send("say two", "a")
	answered("two")
	d.stop()
	d.start()
	send("say two", "a")
	send("say three", "b")
	answered("three")
	send("say two", "")
	answered("two")
	if got := strings.Count(strings.Join(d.events(), "\n"), "user: "); got != 4 {
		t.Errorf("%d messages were recorded:\n%s", got, strings.Join(d.events(), "\n"))
	}
}

// The message's event is too large: it contains the text twice, and JSON needs six bytes for each
// "<".
func TestAnOversizedMessageIsRefusedAndTheSessionContinues(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say one"}).start()
	d.until(session.StateAwaiting)
	if err := d.driver.Message(strings.Repeat("<", 3<<19), nil, ""); !errors.Is(err, journal.ErrTooLarge) {
		t.Errorf("the error is %v", err)
	}
	if err := d.driver.Message("say two", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.wait("the answer", func() bool { _, said := d.driver.State(); return said == "two" })
}

// A notice may quote a tool server's error, which may be very long.
func TestALongNoticeIsTruncatedAndTheSessionContinues(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say one"}).start()
	d.until(session.StateAwaiting)
	d.driver.Notice("It said: " + strings.Repeat("<", 3<<20))
	if err := d.driver.Message("say two", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.wait("the answer", func() bool { _, said := d.driver.State(); return said == "two" })
}

func TestMessagesSentDuringATurnAreAnsweredAfterIt(t *testing.T) {
	t.Parallel()
	go1 := filepath.Join(t.TempDir(), "go")
	d := newDrive(t, session.Document{FirstMessage: orders("wait "+go1, "say one")}).start()
	d.until(session.StateRunning)
	for _, message := range []string{"say two", "say three"} {
		if err := d.driver.Message(message, nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(go1, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.wait("the last answer", func() bool {
		_, said := d.driver.State()
		return said == "three"
	})
	d.until(session.StateAwaiting)
	d.expect("state loading", "user: "+orders("wait "+go1, "say one"), "state running", "user: say two", "user: say three",
		"agent: one", "state awaiting_user_input", "state running", "agent: two", "state awaiting_user_input",
		"state running", "agent: three", "state awaiting_user_input")
}

// The message arrives just when the driver starts to wait.
func TestAMessageAtTheEndOfATurnIsNotMissed(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say 0"}).start()
	for n := 1; n <= 150; n++ {
		d.wait("the answer", func() bool {
			for range 10_000 { // as early as possible
				if state, said := d.driver.State(); state == session.StateAwaiting && said == strconv.Itoa(n-1) {
					return true
				}
			}
			return false
		})
		for began := time.Now(); time.Since(began) < time.Duration(n)*time.Microsecond; { // slightly later each time
			runtime.Gosched()
		}
		if err := d.driver.Message("say "+strconv.Itoa(n), nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	d.wait("the last answer", func() bool { _, said := d.driver.State(); return said == "150" })
}

func TestAOneShotSessionEndsWithItsTurn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ message, reason, says string }{
		"done":           {"say yes", v1alpha1.ReasonCompleted, "has finished"},
		"an error":       {"fail no such key", v1alpha1.ReasonFailed, "no such key"},
		"an exit":        {"die", v1alpha1.ReasonFailed, "status 3"},
		"a refusal":      {"stop refusal", v1alpha1.ReasonFailed, "refused"},
		"too many turns": {"stop max_turn_requests", v1alpha1.ReasonFailed, "limit"},
		"unknown reason": {"stop tired", v1alpha1.ReasonFailed, "tired"},
	} {
		d := newDrive(t, session.Document{FirstMessage: c.message, OneShot: true}).start()
		if got := d.over(); got == nil || got.Reason != c.reason || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: it ended with %+v", name, got)
		}
	}
}

func TestTheNextMessageRestartsAnAgentThatExited(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "die"})
	d.can = "plainload"
	d.start().until(session.StateError)
	if err := d.driver.Message("say back", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateAwaiting)
	d.expect("state loading", "user: die", "state running", "error the agent stub exited with status 3",
		"state error the agent stub exited with status 3",
		"user: say back", "state running", "agent: back", "state awaiting_user_input")
}

func TestAFailedAgentStartIsReported(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "x", Agent: &session.Agent{Name: "gone", Protocol: session.ProtocolACP,
		Command: []string{"no-such-agent"}}}).start()
	d.until(session.StateError)
	if got := d.events()[2]; !strings.Contains(got, "the agent gone cannot be started") {
		t.Errorf("it says %q", got)
	}
	d.stop()
	if got := d.log.String(); !strings.Contains(got, "turn failed") || !strings.Contains(got,
		"the agent gone cannot be started") {
		t.Errorf("the log is\n%s", got)
	}
}

func TestTheErrorContainsTheLastOutputLineOfAnExitedAgent(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"echo a warning >&2; echo no model with hunter2 >&2; echo >&2": ": no model with ***",
		"echo '" + pemSecret + "' >&2":                                 ": ***",
		"head -c 1000000 /dev/zero | tr '\\0' x >&2":                   ": " + strings.Repeat("x", 200) + " …",
		"true": "",
	} {
		d := newDrive(t, session.Document{FirstMessage: "x", Agent: &session.Agent{Name: "a", Protocol: session.ProtocolACP,
			Command: []string{"/bin/sh", "-c", script + "; exit 1"}}}).start()
		d.until(session.StateError)
		want = "the agent a cannot be started: the agent a exited with status 1" + want
		d.expect("state loading", "user: x", "error "+want, "state error "+want)
		d.stop()
		if got := d.log.String(); !strings.Contains(got, want) || strings.Contains(got, "hunter2") {
			t.Errorf("the log is\n%.2000s", got)
		}
	}
}

func TestAMessageIsRetriedAfterAFailedAgentStart(t *testing.T) {
	t.Parallel()
	for _, protocol := range []session.Protocol{session.ProtocolACP, session.ProtocolCommand} {
		d := newDrive(t, session.Document{FirstMessage: "say yes", OneShot: true})
		agent := *d.doc.Agent
		d.doc.Agent = &session.Agent{Name: "gone", Protocol: protocol, Command: []string{"no-such-agent"}}
		if got := d.start().over(); got == nil || got.Reason != v1alpha1.ReasonFailed {
			t.Errorf("it ended with %+v", got)
		}
		_ = d.journal.Close()
		d.doc.Agent = &agent
		if got := d.start().over(); got == nil || got.Reason != v1alpha1.ReasonCompleted {
			t.Errorf("with an agent it ended with %+v", got)
		}
	}
}

func TestUnknownUpdatesFromAnAgentAreRecordedUnchanged(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders(
		`raw {"sessionUpdate":"dance","content":{"type":"text","text":"la"}}`,
		`raw {"sessionUpdate":"available_commands_update","availableCommands":[]}`,
		`raw {"sessionUpdate":"plan","entries":[{"content":"a","status":"completed"},{"content":"b","status":"pending"}]}`,
		`raw {"sessionUpdate":"tool_call","toolCallId":"m","title":"search","kind":"search","status":"completed",`+
			`"rawInput":{"q":"x"},"rawOutput":"found"}`,
		`raw {"sessionUpdate":"tool_call","toolCallId":"e","title":"edit","kind":"edit","status":"completed",`+
			`"content":[{"type":"diff","path":"/f","oldText":"a","newText":"b"}]}`,
	)}).start()
	d.until(session.StateAwaiting)
	got := d.events()[3:]
	want := []string{"agent_update", "task_tracking The plan has 2 tasks, 1 of them done.", "call_tool_mcp", "mcp found",
		"edit", "edit Changed /f", "state awaiting_user_input"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the events are\n%s", strings.Join(got, "\n"))
	}
}

func TestPauseAndStopEndTheTurn(t *testing.T) {
	t.Parallel()
	for _, state := range []session.State{session.StatePaused, session.StateStopped} {
		d := newDrive(t, session.Document{FirstMessage: orders("say working", "hang")}).start()
		d.until(session.StateRunning)
		d.change(state)
		d.until(state)
		if err := d.driver.Message("say on", nil, ""); err != nil {
			t.Fatal(err)
		}
		d.until(session.StateAwaiting)
		if _, said := d.driver.State(); said != "on" {
			t.Errorf("after %s it said %q", state, said)
		}
	}
}

func TestALimitEndsTheTurnButNotTheSession(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: orders("say working", "hang")}).start()
	d.wait("work", func() bool { return strings.Contains(d.heard(), "session/prompt") })
	d.driver.Limit("0", "this was another turn's")
	d.driver.Limit("", "this was no turn's")
	d.driver.Limit("1", "the limit of 3 calls is reached")
	d.until(session.StateError)
	if err := d.driver.Message("say on", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.until(session.StateAwaiting)
	d.expect("state loading", "user: "+orders("say working", "hang"), "state running", "agent: working",
		"error the limit of 3 calls is reached",
		"state error the limit of 3 calls is reached", "user: say on", "state running", "agent: on",
		"state awaiting_user_input")
}

// If the metering ended before the turn's end was recorded, a crash in between would give the
// resumed turn its whole budget again.
func TestATurnIsMeteredUntilItsEndIsRecorded(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say yes", OneShot: true}).start()
	d.over()
	if got := d.turns.ended; len(got) != 1 || got[0] != session.StateFinished {
		t.Errorf("the metering of the turn ended while the session was %v", got)
	}
}

func TestAPlainCommandGetsOnlyTheFirstMessage(t *testing.T) {
	t.Parallel()
	shell := func(script string) *session.Agent {
		return &session.Agent{Name: "sh", Command: []string{"sh", "-c", script}}
	}
	d := newDrive(t, session.Document{FirstMessage: "hello", Agent: shell("cat; echo; echo hunter2")}).start()
	if got := d.over(); got == nil || got.Reason != v1alpha1.ReasonCompleted {
		t.Errorf("it ended with %+v", got)
	}
	d.expect("state loading", "user: hello", "state running", "agent: hello\n***\n", "state finished")
	if err := d.driver.Message("more", nil, ""); !errors.Is(err, driver.ErrNoAgent) {
		t.Errorf("a second message: %v", err)
	}
	_ = d.journal.Close()
	// After a restart, the session does not run the command again. It still serves its events.
	d.start()
	close(d.idle)
	if got := d.over(); got == nil || got.Reason != v1alpha1.ReasonIdle || len(d.events()) != 5 {
		t.Errorf("after a restart it ended with %+v\n%s", got, d.events())
	}
}

func TestAnInterruptedCommandIsNotRunAgain(t *testing.T) {
	t.Parallel()
	ran := filepath.Join(t.TempDir(), "ran")
	d := newDrive(t, session.Document{FirstMessage: "hello", Agent: &session.Agent{Name: "sh", Command: []string{"sh",
		"-c", "echo >> " + ran + "; sleep 60"}}}).start()
	d.wait("the command", func() bool { text, _ := os.ReadFile(ran); return len(text) > 0 })
	d.stop()
	if got := d.start().over(); got == nil || got.Reason != v1alpha1.ReasonFailed || !strings.Contains(got.Message,
		"interrupted") {
		t.Errorf("it ended with %+v", got)
	}
	if text, _ := os.ReadFile(ran); len(text) != 1 {
		t.Errorf("it ran %d times", len(text))
	}
}

func TestMessagesAreRefusedWithoutAnAgent(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "hello", Agent: &session.Agent{Name: "none"}}).start()
	if err := d.driver.Message("more", nil, ""); !errors.Is(err, driver.ErrNoAgent) {
		t.Errorf("a message: %v", err)
	}
	close(d.idle)
	if got := d.over(); got == nil || got.Reason != v1alpha1.ReasonIdle {
		t.Errorf("it ended with %+v", got)
	}
}

func TestTheAgentGetsItsInstructionsOnce(t *testing.T) {
	t.Parallel()
	doc := session.Document{
		FirstMessage: "say yes", Instructions: "be brief", Task: true,
		Repository:    &session.Repository{Name: "acme/site"},
		CustomSecrets: []session.CustomSecret{{Name: "DB", Description: "the database"}},
		Settings:      v1alpha1.UserSettingsSpec{Language: ptr.To("de")},
	}
	d := newDrive(t, doc).start()
	d.until(session.StateAwaiting)
	for _, want := range []string{"be brief", "acme/site", "language: de", "DB: the database",
		"whether you can solve it"} {
		if !strings.Contains(d.heard(), want) {
			t.Errorf("the agent did not get %q:\n%s", want, d.heard())
		}
	}
	if !strings.Contains(d.heard(), `"mcpServers":[{"type":"http","name":"parley","url":"http://127.0.0.1:1/mcp",`+
		`"headers":[]}]`) {
		t.Errorf("the agent did not get the tools:\n%s", d.heard())
	}
	if err := d.driver.Message("say more", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.wait("the second answer", func() bool { _, said := d.driver.State(); return said == "more" })
	if got := strings.Count(d.heard(), "be brief"); got != 1 {
		t.Errorf("the instructions were sent %d times", got)
	}
}

// A user may send a message as soon as the session serves requests. The document's FirstMessage
// must still be recorded before that message.
func TestTheFirstMessageIsRecordedBeforeAnyOther(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say first"})
	d.early = "say second"
	d.start()
	d.wait("the second answer", func() bool { _, said := d.driver.State(); return said == "second" })
	if got := strings.Join(d.events()[1:3], ", "); got != "user: say first, user: say second" {
		t.Errorf("the messages are %s", got)
	}
}
