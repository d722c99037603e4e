package driver

import (
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// CanLeave reports whether the session can end now without loss of work. It can end if it has no
// turn, no question and no waiting message. If the agent could not be started, waiting messages do
// not count: the driver retries the start only after the next message or in the next attempt. A
// session that accepts no messages cannot leave, because no message could restart it.
func (d *Driver) CanLeave() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.canLeave()
}

// canLeave does the same as CanLeave, but its caller holds d.mu.
func (d *Driver) canLeave() bool {
	h := d.history
	accepts := HasAgent(d.Doc) && !d.command() && (!d.Doc.OneShot || h.messages == 0)
	return accepts && !d.closed && !d.working && h.turn < 0 && h.asked == "" && (len(h.waiting) == 0 || h.held)
}

// Leave ends the session if CanLeave allows it and the condition is met. It reports whether the
// session ends. If a message arrives at the same time, either it is recorded and the session stays,
// or it gets ErrOver and the session ends.
func (d *Driver) Leave(condition func() bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.leaving: // the request is repeated
		return true
	case !d.canLeave() || !condition():
		return false
	}
	d.closed, d.leaving = true, true
	d.wake()
	return true
}

func left() *session.Termination {
	return &session.Termination{Reason: v1alpha1.ReasonIdle,
		Message: "Another session of this user was waiting for a slot"}
}
