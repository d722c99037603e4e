package driver_test

import (
	"testing"

	"github.com/parley-dev/parley/api/session"
)

func (d *drive) change(state session.State) {
	d.t.Helper()
	if err := d.driver.ChangeState(state); err != nil {
		d.t.Fatal(err)
	}
}

func (d *drive) message(text string) {
	d.t.Helper()
	if err := d.driver.Message(text, nil); err != nil {
		d.t.Fatal(err)
	}
}

func (d *drive) untilSaid(text string) {
	d.t.Helper()
	d.wait("the answer "+text, func() bool {
		state, said := d.driver.State()
		return said == text && state == session.StateAwaiting
	})
}

// A user who stops what is over already, such as with a second click, has the next message worked
// on.
func TestAStopOfNothingLeavesTheNextMessageAlone(t *testing.T) {
	t.Parallel()
	for _, state := range []session.State{session.StatePaused, session.StateStopped} {
		d := newDrive(t, session.Document{FirstMessage: "hang"}).start()
		d.until(session.StateRunning)
		d.change(state)
		d.until(state)
		d.change(state)
		d.message("say on")
		d.untilSaid("on")
		d.change(state)
		d.stop()
		d.start()
		d.message("say still on")
		d.untilSaid("still on")
	}
}

func TestAStopWhileTheAgentCannotBeStartedLeavesItsMessageAlone(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say first"})
	working := *d.doc.Agent
	d.doc.Agent = &session.Agent{Name: "gone", Protocol: session.ProtocolACP, Command: []string{"no-such-agent"}}
	d.start().until(session.StateError)
	d.change(session.StateStopped)
	d.stop()
	d.doc.Agent = &working
	d.start().untilSaid("first")
}
