package driver

import (
	"encoding/json"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// extraRetryAt is a field in a state change. It contains the time at which the agent repeats a
// failed model call.
const extraRetryAt = "retry_at"

// retryState returns a state change that says why and until when the agent waits before it repeats
// a model call. If meta holds no retry, the state change says that the wait is over. The state is
// running in both cases, so the user can still stop the agent.
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

// showsRetry reports whether to record an event that retryState returned. The event is recorded
// while the agent works on a turn, if the event begins, changes or ends a wait for a retry.
func (h *history) showsRetry(e *session.Event) bool {
	return h.state == session.StateRunning && h.turn >= 0 && (h.retrying || e.Extras[extraRetryAt] != nil)
}
