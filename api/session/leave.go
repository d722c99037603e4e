package session

// LeavePath asks a session to make room for another session of its user. GET answers with a Leave.
// POST makes an idle session end with the reason Idle and answers with a Leave, or answers 409 if the
// session is not idle. Both require a token for AudienceLeave.
const LeavePath = "/leave"

// Leave says how long a session has been idle. A session is idle if it has no turn, no pending
// question and no queued message. Open streams do not count.
type Leave struct {
	Idle bool `json:"idle"`
	// IdleSeconds is zero if the session is not idle.
	IdleSeconds float64 `json:"idleSeconds"`
}
