package main

import (
	"context"
	"time"

	"github.com/parley-dev/parley/api/session"
)

// locateInterval is the delay between two checks whether a message is still being sent.
const locateInterval = 100 * time.Millisecond

// locateHistory waits until c.historyEnd is known. If no message is being sent, locateHistory sets
// historyEnd to the last event. But if a message is being sent, the last event may already belong
// to that message. The sender then calls locateMessage, which sets historyEnd.
func (c *chat) locateHistory(ctx context.Context, user *facadeUser, name string) {
	for {
		c.mu.Lock()
		if c.unconfirmed == 0 && !c.isLocated() {
			// No message is being sent, and none can be sent while c.mu is locked. All events so
			// far therefore belong to the history.
			last, err := user.lastEvent(ctx, name)
			if err != nil {
				last = -1
			}
			c.endHistoryAt(last)
		}
		c.mu.Unlock()
		select {
		case <-c.located:
			return
		case <-time.After(locateInterval):
		case <-ctx.Done():
			return
		}
	}
}

// locateMessage sets c.historyEnd after a message was sent, if historyEnd is not known yet. The
// history ends before the first message that this command sent.
func (c *chat) locateMessage(ctx context.Context, user *facadeUser, name, text string) {
	if c.isLocated() {
		return
	}
	message, err := user.lastMessage(ctx, name, text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || message < 0 {
		message = 0
	}
	c.endHistoryAt(message - 1)
}

func (c *chat) isLocated() bool {
	select {
	case <-c.located:
		return true
	default:
		return false
	}
}

// endHistoryAt sets the end of the history if it is not known yet. c.mu must be locked.
func (c *chat) endHistoryAt(event int) {
	if !c.isLocated() {
		c.historyEnd = event
		close(c.located)
	}
}

// endHistory closes historyShown. It may be called twice, because a hostile session may repeat an
// event ID.
func (c *chat) endHistory() {
	select {
	case <-c.historyShown:
	default:
		close(c.historyShown)
	}
}

// showRest shows the events after the event that ended the chat. For example, an error event may
// follow the state event that ended the turn.
func (c *chat) showRest(ctx context.Context, user *facadeUser, name string) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	last, err := user.lastEvent(ctx, name)
	if err != nil || last <= c.lastShown {
		return
	}
	_ = user.follow(ctx, name, c.lastShown, func(e *session.Event) bool {
		c.show(e)
		return e.ID >= last
	})
}
