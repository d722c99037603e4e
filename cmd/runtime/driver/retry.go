package driver

import (
	"encoding/json"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// extraRetryAt is the field with the time of the next try, in a state change of an agent whose call
// of the model failed.
const extraRetryAt = "retry_at"

// retryState returns a state change that shows why and until when the agent waits before it calls
// the model again, or that the wait is over. The state is running in both cases, so that the user
// can still stop the agent.
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

// showsRetry reports whether the event of a retryState is recorded. It is recorded only during a
// turn without an open question, and only if a wait begins, changes or ends.
func (h *history) showsRetry(e *session.Event) bool {
	return h.state == session.StateRunning && h.turn >= 0 && (h.retrying || e.Extras[extraRetryAt] != nil)
}
