package driver

import (
	"encoding/json"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// extraRetryAt holds the time of the next try, in the state of an agent whose call of the model
// failed.
const extraRetryAt = "retry_at"

// retryState returns the state of an agent that waits before it calls the model again, or no longer
// waits. Clients show a running agent, which the user can stop.
func (t *translator) retryState(meta any) session.Event {
	var retry *acp.Retry
	if encoded, err := json.Marshal(meta); err != nil || json.Unmarshal(encoded, &retry) != nil || retry == nil {
		return session.StateChange(session.StateRunning, "")
	}
	at := retry.At.UTC()
	event := session.StateChange(session.StateRunning, t.line(retry.Reason)+" Next try at "+at.Format(time.TimeOnly)+
		" UTC.")
	event.Extras[extraRetryAt] = at.Format(time.RFC3339)
	return event
}

// showsRetry reports whether a retryState is recorded: during a turn without an open question, and only if
// it changes the state.
func (h *history) showsRetry(e *session.Event) bool {
	return h.state == session.StateRunning && h.turn >= 0 && (h.retrying || e.Extras[extraRetryAt] != nil)
}
