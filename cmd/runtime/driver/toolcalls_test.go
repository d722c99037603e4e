package driver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// ran returns a message that makes the stub agent report a finished tool call.
func ran(id, command string) string {
	return fmt.Sprintf(`raw {"sessionUpdate":"tool_call","toolCallId":%q,"title":"run","kind":"execute",`+
		`"status":"completed","rawInput":{"command":%q},"rawOutput":"done"}`, id, command)
}

// An agent may reuse the ID of a call from an earlier turn. An agent that lost its session always
// reuses IDs.
func TestAToolCallWithAReusedIDIsRecorded(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: ran("k", "one")}).start()
	d.until(session.StateAwaiting)
	d.message(ran("k", "two"))
	d.wait("the second turn", func() bool {
		return strings.Count(strings.Join(d.events(), "\n"),
			"state awaiting_user_input") == 2
	})
	d.message("die")
	d.until(session.StateError)
	d.message(ran("k", "three"))
	d.until(session.StateAwaiting)
	got := strings.Join(d.events(), "\n")
	for _, want := range []string{"run one", "ran one: done", "run two", "ran two: done", "run three", "ran three: done"} {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q is not recorded once:\n%s", want, got)
		}
	}
}

// A call's result may arrive after the end of its turn.
func TestAToolCallThatOutlivesItsTurnIsRecordedOnce(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: `raw {"sessionUpdate":"tool_call","toolCallId":"k","kind":"execute",` +
		`"status":"in_progress","rawInput":{"command":"long"}}`}).start()
	d.until(session.StateAwaiting)
	d.message(`raw {"sessionUpdate":"tool_call_update","toolCallId":"k","status":"failed","rawOutput":"stopped"}`)
	d.wait("the second turn", func() bool { return strings.Count(d.kinds(), "state awaiting_user_input") == 2 })
	if got := d.kinds(); strings.Count(got, "run long") != 1 || strings.Count(got, "observed run stopped") != 1 ||
		strings.Contains(got, "call_tool_mcp") {
		t.Errorf("the events are\n%s", got)
	}
}

// kinds returns one line for each event in the journal. Unlike events(), kinds accepts
// observations without a cause.
func (d *drive) kinds() string {
	d.t.Helper()
	var lines []string
	err := d.journal.Events(0, func(e *session.Event) bool {
		if e.Observation != "" && e.Observation != session.ObservedState && e.Content != nil {
			lines = append(lines, "observed "+e.Observation+" "+*e.Content)
		} else {
			lines = append(lines, line(e))
		}
		return true
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func TestDeeplyNestedContentIsOmitted(t *testing.T) {
	t.Parallel()
	const depth = 1000
	content := strings.Repeat(`{"type":"content","content":`, depth) + `{"type":"text","text":"deep"}` +
		strings.Repeat("}", depth)
	d := newDrive(t, session.Document{FirstMessage: `raw {"sessionUpdate":"agent_message_chunk","content":` + content +
		`}`}).start()
	d.until(session.StateAwaiting)
	if _, said := d.driver.State(); !strings.Contains(said, "left out") {
		t.Errorf("the agent said %q", said)
	}
}
