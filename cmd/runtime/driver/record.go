package driver

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// digestOf hashes a text. The digest is short, and it reveals nothing if the text is a secret.
func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// keyed adds the digest of the sender's idempotency key to an event, unless the key is empty.
func keyed(e session.Event, key string) session.Event {
	if key != "" {
		e.Meta = &session.EventMeta{Key: digestOf(key)}
	}
	return e
}

func (d *Driver) add(events ...session.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.record(events...)
}

// record records events; d.mu is held. For the result of a tool call, it sets Cause to the ID of
// the call's action. It truncates an event that is too large, but refuses a user's message that is
// too large.
func (d *Driver) record(events ...session.Event) error {
	for _, event := range events {
		if event.ToolCall != nil {
			event.ToolCall = &session.ToolCall{ID: d.texts.id(event.ToolCall.ID), Function: event.ToolCall.Function}
		}
		event.Meta = d.withUsage(&event)
		if event.ToolCall != nil && event.Observation != "" {
			if cause, known := d.history.actions[event.ToolCall.ID]; known {
				event.Cause = &cause
			}
		}
		written, err := d.Journal.Append(event)
		if errors.Is(err, journal.ErrTooLarge) && !event.IsUserMessage() {
			written, err = d.Journal.Append(d.texts.truncated(event))
		}
		switch {
		case errors.Is(err, journal.ErrTooLarge) && event.IsUserMessage():
			return err // the user sees the error; the session continues
		case err != nil:
			d.broken = err
			d.wake()
			return err
		}
		d.history.fold(&written[0])
	}
	d.wake()
	return nil
}

// withUsage returns the event's metadata. It adds the model usage if the usage has changed and the
// event may follow a model call.
func (d *Driver) withUsage(e *session.Event) *session.EventMeta {
	if e.Source != session.FromAgent && e.Observation != session.ObservedState && e.Observation != session.ObservedUsage {
		return e.Meta
	}
	usage := d.Model.Counted()
	if !moreUsage(usage, d.history.usage) {
		return e.Meta
	}
	meta := session.EventMeta{}
	if e.Meta != nil {
		meta = *e.Meta
	}
	meta.Usage = usage
	return &meta
}

// moreUsage reports whether the session's total usage differs from the recorded total.
func moreUsage(usage, recorded json.RawMessage) bool {
	var total, before struct {
		Session json.RawMessage `json:"session"`
	}
	_, _ = json.Unmarshal(usage, &total), json.Unmarshal(recorded, &before) // without usage, the total is empty
	return usage != nil && !bytes.Equal(total.Session, before.Session)
}

// Usage returns the model usage that earlier attempts recorded, or nil.
func Usage(events *journal.Journal) (json.RawMessage, error) {
	for id := events.Len() - 1; id >= 0; id-- {
		line, err := events.Line(id)
		if err != nil {
			return nil, err
		}
		event, err := session.ParseEvent(line)
		switch {
		case err != nil:
			return nil, err
		case event.Meta != nil && event.Meta.Usage != nil:
			return event.Meta.Usage, nil
		}
	}
	return nil, nil
}

// Failed records the failure of a session that has no driver yet.
func Failed(events *journal.Journal, reason string) error {
	failure := texts{mask: events.Mask}.observed(session.ObservedError, reason)
	_, err := events.Append(failure, session.StateChange(session.StateError, *failure.Content))
	return err
}

// Restored records that the workspace of a session without a driver was restored. notice is a text
// for the user. preface is a text at the beginning of the next prompt to the agent. outdated is set
// if the agent may have worked after the restored files were saved.
func Restored(events *journal.Journal, notice, preface string, outdated bool) error {
	restored := texts{mask: events.Mask}.observed(session.ObservedNotice, notice)
	restored.Extras = map[string]any{extraPreface: preface}
	if outdated {
		restored.Extras[extraOutdated] = true
	}
	_, err := events.Append(restored)
	return err
}
