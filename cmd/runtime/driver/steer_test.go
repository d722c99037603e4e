package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// takes is the stub's report that it has a message that arrived during a turn.
func takes(message string) string {
	return `raw {"sessionUpdate":"user_message_chunk","content":{"type":"text"},"_meta":{"parley.dev/seq":1,` +
		`"parley.dev/message":"` + message + `"}}`
}

// steering starts a session in whose first turn the agent has received a second message, the event
// 3. The agent goes on with its orders when proceed is called.
func steering(t *testing.T, orders ...string) (d *drive, proceed func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "proceed")
	d = newDrive(t, session.Document{FirstMessage: strings.Join(append([]string{"wait " + file}, orders...), "\n")})
	d.can = "plainsteers"
	d.start().wait("the prompt", func() bool { return strings.Contains(d.heard(), "session/prompt") })
	d.message("say second")
	d.wait("the message", func() bool { return strings.Contains(d.heard(), "_parley.dev/steer") })
	return d, func() {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Error(err)
		}
	}
}

func (d *drive) prompts() int { return strings.Count(d.heard(), "session/prompt") }

func TestAMessageReachesAnAgentDuringItsTurn(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t, takes("3"), "say done")
	for _, want := range []string{`"parley.dev/turn":"1"`, `"parley.dev/message":"3"`, `"text":"say second"`} {
		if _, request, _ := strings.Cut(d.heard(), "_parley.dev/steer"); !strings.Contains(request, want) {
			t.Errorf("the agent got %s", request)
		}
	}
	proceed()
	d.untilSaid("done")
	d.message("say third")
	d.untilSaid("third")
	if d.prompts() != 2 || strings.Count(d.heard(), "say second") != 1 {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

func TestAMessageThatTheAgentDidNotTakeGetsATurn(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t)
	proceed()
	d.untilSaid("second")
	if d.prompts() != 2 {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

// The agent may take the message just before it gets the request to stop.
func TestAStopKeepsAMessageThatArrivedDuringTheTurn(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t, takes("3"), "hang")
	d.change(session.StateStopped)
	proceed()
	d.untilSaid("second")
	if d.prompts() != 2 {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

func TestAMessageThatTheAgentTookIsNotRepeatedAfterARestart(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t, takes("3"), "hang")
	d.message("say fourth")
	proceed()
	d.wait("the delivery", func() bool { return strings.Count(strings.Join(d.events(), "\n"), "state running") == 2 })
	d.stop()
	before := len(d.heard())
	d.start()
	d.wait("the other message", func() bool { return strings.Contains(d.heard()[before:], "say fourth") })
	if strings.Contains(d.heard()[before:], `"parley.dev/message":"3"`) {
		t.Errorf("after the restart the agent got\n%s", d.heard()[before:])
	}
}

// The transcript for an agent without memory includes messages that reached it during the turn.
func TestATranscriptContainsDeliveredMessages(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t, takes("3"), "hang")
	d.message("say waiting")
	proceed()
	d.wait("the delivery", func() bool { return strings.Count(strings.Join(d.events(), "\n"), "state running") == 2 })
	d.stop()
	d.can = "plain"
	before := len(d.heard())
	d.start()
	d.wait("the prompt", func() bool { return strings.Contains(d.heard()[before:], "session/prompt") })
	if request := d.heard()[before:]; !strings.Contains(request, "User: say second") ||
		strings.Contains(request, "say waiting") {
		t.Errorf("after the restart the agent got\n%s", request)
	}
}

// Messages that waited when the turn began get turns of their own, in order.
func TestAMessageDoesNotOvertakeEarlierMessages(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "proceed")
	d := newDrive(t, session.Document{FirstMessage: orders("wait "+file, "say first")})
	d.can, d.early = "plainsteers", "say second"
	d.start().wait("the prompt", func() bool { return d.prompts() == 1 })
	d.message("say third")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.untilSaid("third")
	if strings.Contains(d.heard(), "_parley.dev/steer") || d.prompts() != 3 {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

func TestOtherAgentsGetMessagesAfterTheTurn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "proceed")
	d := newDrive(t, session.Document{FirstMessage: orders("wait "+file, "say first")}).start()
	d.wait("the prompt", func() bool { return d.prompts() == 1 })
	d.message("say second")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.untilSaid("second")
	if strings.Contains(d.heard(), "_parley.dev") {
		t.Errorf("the agent got\n%s", d.heard())
	}
}
