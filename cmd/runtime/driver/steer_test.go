package driver_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

const pngHeader = "\x89PNG\r\n\x1a\n"

var pngURL = "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(pngHeader))

// takes returns an order for the stub agent: to report that it took the message with this event ID.
func takes(message int) string {
	return fmt.Sprintf(`raw {"sessionUpdate":"user_message_chunk","content":{"type":"text"},"_meta":{"parley.dev/seq":%d,`+
		`"parley.dev/message":"%d"}}`, message-2, message)
}

// steering calls working() and then sends the agent a second message, which is event 3.
func steering(t *testing.T, orders ...string) (d *drive, proceed func()) {
	t.Helper()
	d, proceed = working(t, orders...)
	d.message("say second")
	d.untilSent("3")
	return d, proceed
}

// working returns a session whose agent has received the first prompt. The agent follows the orders
// after proceed() is called.
func working(t *testing.T, orders ...string) (d *drive, proceed func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "proceed")
	d = newDrive(t, session.Document{FirstMessage: strings.Join(append([]string{"wait " + file}, orders...), "\n")})
	d.can = "plainsteers"
	d.start().wait("the prompt", func() bool { return strings.Contains(d.heard(), "session/prompt") })
	return d, func() { create(t, file) }
}

func create(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Error(err)
	}
}

func (d *drive) untilSent(message string) {
	d.t.Helper()
	d.wait("the message "+message, func() bool {
		return strings.Contains(d.heard(), `"parley.dev/message":"`+message+`"`)
	})
}

func (d *drive) prompts() int { return strings.Count(d.heard(), "session/prompt") }

func TestAMessageReachesAnAgentDuringItsTurn(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t, takes(3), "say done")
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

func TestAMessageThatTheAgentDidNotTakeGetsItsOwnTurn(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t)
	proceed()
	d.untilSaid("second")
	if d.prompts() != 2 {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

// The agent takes the message just before it gets the request to stop, and does not answer the
// message. The message then gets a turn of its own.
func TestAStopKeepsAMessageThatArrivedDuringTheTurn(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t, takes(3), "hang")
	d.change(session.StateStopped)
	proceed()
	d.untilSaid("second")
	if d.prompts() != 2 {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

func TestAMessageThatTheAgentTookIsNotRepeatedAfterARestart(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t, takes(3), "hang")
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

// After an agent has lost its memory, the next prompt must contain all messages that the agent had
// received in the interrupted turn: complete, in order, and each message once.
func TestAnAgentThatLostItsMemoryGetsTheMessagesOfItsTurnAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "proceed")
	d, proceed := working(t, takes(3), "wait "+file, takes(4), "hang")
	long := "Second. " + strings.Repeat("More words. ", 10<<10/12) + "Its end."
	if err := d.driver.Message(long, []string{pngURL}, ""); err != nil {
		t.Fatal(err)
	}
	d.message("Third.")
	proceed()
	d.untilSent("4")
	d.message("Waiting.")
	create(t, file)
	d.has("state running", 3)
	for range 2 { // the second time, the agent loses its memory before it has done anything
		d.stop()
		d.can = "plain"
		before := len(d.heard())
		d.start()
		d.wait("the whole line of the prompt", func() bool {
			_, prompt, found := strings.Cut(d.heard()[before:], "session/prompt")
			return found && strings.Contains(prompt, "\n")
		})
		_, request, _ := strings.Cut(d.heard()[before:], "continue with the message:")
		first, image := strings.Index(request, `{"type":"text","text":"wait `), strings.Index(request, `{"type":"image"`)
		second, third := strings.Index(request, `{"type":"text","text":"`+long+`"}`), strings.Index(request, `"Third."`)
		if first < 0 || second < first || image < second || third < image ||
			strings.Count(d.heard()[before:], "Second.") != 1 || strings.Contains(d.heard()[before:], "Waiting.") {
			t.Errorf("after the restart the agent got\n%s", d.heard()[before:])
		}
	}
}

func TestTheAgentTakesSeveralMessagesInATurn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "proceed")
	d, proceed := steering(t, takes(3), "wait "+file, takes(4), "say done")
	d.message("say third")
	proceed()
	d.untilSent("4")
	create(t, file)
	d.untilSaid("done")
	if d.prompts() != 1 || strings.Count(d.heard(), "_parley.dev/steer") != 2 {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

// The third message is not sent during the turn, because the agent has not taken the second
// message.
func TestAMessageGetsItsOwnTurnIfTheAgentDidNotTakeThePreviousMessage(t *testing.T) {
	t.Parallel()
	d, proceed := steering(t)
	d.message("say third")
	proceed()
	d.untilSaid("third")
	if d.prompts() != 3 || strings.Count(d.heard(), "_parley.dev/steer") != 1 {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

// If a turn ends while the image of a new message is downloaded, the download is cancelled. The
// message then gets a turn of its own, and the image is downloaded again.
func TestAMessageGetsItsImageEvenIfATurnEndsDuringTheDownload(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			<-r.Context().Done()
			return
		}
		_, _ = w.Write([]byte(pngHeader))
	}))
	t.Cleanup(host.Close)
	d, proceed := working(t)
	if err := d.driver.Message("say second", []string{host.URL}, ""); err != nil {
		t.Fatal(err)
	}
	d.wait("the download", func() bool { return asked.Load() == 1 })
	proceed()
	d.untilSaid("second")
	if events := strings.Join(d.events(), "\n"); strings.Contains(events, "Image 1") {
		t.Errorf("the events are\n%s", events)
	}
	if !strings.Contains(d.heard(), `"type":"image"`) || strings.Contains(d.heard(), "_parley.dev/steer") {
		t.Errorf("the agent got\n%s", d.heard())
	}
}

// The second message already waits when the first turn begins, and gets its own turn. The third
// message arrives during the first turn, and must not overtake the second message.
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

func TestAgentsWithoutSteeringGetMessagesAfterTheTurn(t *testing.T) {
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
