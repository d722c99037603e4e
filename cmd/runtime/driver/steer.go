package driver

import (
	"context"
	"slices"
	"strconv"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// steer sends the agent the messages that arrive during its turn, until the turn must end. It sends
// one message at a time, and then waits until the agent reports that the message is on disk. A
// message gets a turn of its own if it arrived before the turn began, or if the agent does not
// report it. While such a message waits, steer sends no newer message, so the agent receives all
// messages in order.
func (d *Driver) steer(ctx context.Context, t task, agent *agentProcess) {
	if !agent.can.Steers() {
		return
	}
	for last := t.message; ; {
		d.await(ctx, func() bool {
			waiting := d.history.waiting
			if len(waiting) == 0 || waiting[0] <= max(last, d.history.begunAt) || d.mustStop(t.message) {
				return false
			}
			last = waiting[0]
			return true
		})
		if ctx.Err() != nil {
			return
		}
		message, err := d.event(last)
		if err != nil || !message.IsUserMessage() {
			return // the message gets a turn of its own
		}
		prompt := d.content(ctx, agent, message)
		d.archive(ctx)
		if ctx.Err() != nil {
			return // images may be missing
		}
		err = agent.conn.Notify(acp.MethodSteer, acp.PromptParams{
			SessionID: agent.session,
			Prompt:    prompt,
			Meta:      acp.Meta{acp.MetaTurn: strconv.Itoa(t.message), acp.MetaMessage: strconv.Itoa(last)},
		})
		if err != nil {
			return // the connection is closed, or the message is too long for one notification
		}
	}
}

// deliveredMessages returns the messages that reached the agent during the interrupted turn.
func (d *Driver) deliveredMessages(ctx context.Context) (blocks []acp.Content, err error) {
	d.mu.Lock()
	ids := slices.Clone(d.history.delivered)
	d.mu.Unlock()
	for _, id := range ids {
		message, err := d.event(id)
		if err != nil {
			return nil, err
		}
		blocks = append(append(blocks, explanation(sentLater)), d.content(ctx, d.agent, message)...)
	}
	return blocks, nil
}

// deliveredEvent returns the event for a message that reached the agent during a turn, or false if
// the update names no message.
func deliveredEvent(meta acp.Meta) (session.Event, bool) {
	name, _ := meta[acp.MetaMessage].(string)
	id, err := strconv.Atoi(name)
	event := session.StateChange(session.StateRunning, "")
	event.Meta = &session.EventMeta{Delivered: &id}
	return event, err == nil
}

// isDelivery reports whether an event says that a waiting message reached the agent.
func isDelivery(e *session.Event) bool { return e.Meta != nil && e.Meta.Delivered != nil }

// delivers reports whether a message became part of the current turn; d.mu is held. A message that
// reached the agent during a stopped or failed turn still waits for a turn of its own.
func (d *Driver) delivers(e *session.Event) bool {
	return slices.Contains(d.history.waiting, *e.Meta.Delivered) && !d.turnOver()
}
