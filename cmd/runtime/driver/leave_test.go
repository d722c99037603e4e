package driver_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
)

func inactive() bool { return true }

func (d *drive) leaves() {
	d.t.Helper()
	for range 2 { // the manager repeats a request whose answer was lost
		if !d.driver.Leave(inactive) {
			d.t.Fatal("an idle session does not leave")
		}
	}
	got := d.over()
	if got == nil || got.Reason != v1alpha1.ReasonIdle || got.Message !=
		"Another session of this user was waiting for a slot" {
		d.t.Errorf("it ended with %+v", got)
	}
	if err := d.driver.Message("late", nil, ""); !errors.Is(err, driver.ErrOver) {
		d.t.Errorf("a later message gets %v", err)
	}
}

func TestAnIdleSessionEndsWhenAnotherSessionNeedsItsSlot(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say on"}).start()
	d.untilSaid("on")
	d.wait("the end of the turn", d.driver.CanLeave)
	if d.driver.Leave(func() bool { return false }) {
		t.Error("a session with an active request leaves")
	}
	d.message("say still on")
	d.untilSaid("still on")
	d.wait("the end of the turn", d.driver.CanLeave)
	d.leaves()
}

// The agent cannot start, so the first message still waits when the session ends. The next attempt
// works on this message.
func TestASessionGivesUpItsSlotIfItsAgentCannotStart(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say on", Agent: &session.Agent{Name: "x",
		Protocol: session.ProtocolACP, Command: []string{"no-such-agent"}}}).start()
	d.until(session.StateError)
	d.wait("the end of the turn", d.driver.CanLeave)
	d.leaves()
}

func TestABusySessionKeepsItsSlot(t *testing.T) {
	t.Parallel()
	confirming, command := true, &session.Agent{Name: "x", Command: []string{"true"}}
	for name, c := range map[string]struct {
		doc   session.Document
		until session.State
	}{
		"a turn": {session.Document{FirstMessage: "hang"}, session.StateRunning},
		"a question": {session.Document{FirstMessage: "ask",
			Settings: v1alpha1.UserSettingsSpec{ConfirmationMode: &confirming}}, session.StateConfirmation},
		"no agent":        {session.Document{Agent: &session.Agent{Name: "x"}}, session.StateLoading},
		"a plain command": {session.Document{Agent: command}, session.StateAwaiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, c.doc).start()
			d.until(c.until)
			if d.driver.CanLeave() || d.driver.Leave(inactive) {
				t.Error("it leaves")
			}
		})
	}
}

func TestASessionThatAcceptsAMessageKeepsItsSlot(t *testing.T) {
	t.Parallel()
	outcomes := map[bool]int{}
	for range 100 {
		d := newDrive(t, session.Document{}).start()
		d.until(session.StateAwaiting)
		var racing sync.WaitGroup
		begin, left, refused := make(chan struct{}), false, error(nil)
		racing.Go(func() {
			<-begin
			left = d.driver.Leave(inactive)
		})
		racing.Go(func() {
			<-begin
			refused = d.driver.Message("say on", nil, "")
		})
		close(begin)
		racing.Wait()
		recorded := strings.Contains(strings.Join(d.events(), "\n"), "user: say on")
		switch {
		case left && errors.Is(refused, driver.ErrOver) && !recorded:
			d.over()
		case !left && refused == nil && recorded:
			d.untilSaid("on")
			d.stop()
		default:
			t.Fatalf("it leaves: %t; the message is recorded: %t, %v", left, recorded, refused)
		}
		outcomes[left]++
	}
	t.Logf("the session left %d times, and stayed %d times", outcomes[true], outcomes[false])
}
