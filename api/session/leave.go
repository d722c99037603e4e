package session

// LeavePath asks a session to make room for another session of its user. GET and POST answer with a
// Leave, and require a token for AudienceLeave. POST ends an idle session with the reason Idle. If
// the session is not idle, POST answers with the status 409.
const LeavePath = "/leave"

// Leave says how long a session has been idle. A session is idle if it has no turn, no pending
// question and no queued message. Open streams do not count.
type Leave struct {
	Idle bool `json:"idle"`
	// IdleSeconds is zero if the session is not idle.
	IdleSeconds float64 `json:"idleSeconds"`
}
