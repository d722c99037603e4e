package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/audit"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// socketCall is the value of the field Call in the audit entry of an action over a socket.
const socketCall = "SOCKET /socket.io/"

// isChange reports whether requests of a route are audited. A sign-in with the OpenID provider is
// audited although it is a GET. Rendering Markdown is not audited, because it changes nothing.
func isChange(route string) bool {
	method, path, found := strings.Cut(route, " ")
	return found && (method != http.MethodGet && path != "/api/markdown" || path == callbackPath)
}

func (s *server) auditRequest(r *http.Request, route string, answered *recorder) {
	if !isChange(route) {
		return
	}
	conversation := r.PathValue("id")
	if conversation == "" {
		conversation = answered.conversation
	}
	entry := s.entry(r, route, conversation, &answered.noted)
	entry.Action, entry.Outcome = answered.action, answered.code
	entry.RequestID = answered.Header().Get(requestIDHeader)
	s.options.Audit.Write(entry)
}

func (s *server) auditAction(r *http.Request, conversation string, action json.RawMessage, err error) {
	recorder, observed := r.Context().Value(recorderKey{}).(*recorder)
	if !observed {
		return
	}
	entry := s.entry(r, socketCall, conversation, &recorder.noted)
	entry.Action, entry.Outcome = actionOf(action), http.StatusOK
	if err != nil {
		entry.Outcome = answer.CodeOf(err)
	}
	entry.RequestID = recorder.Header().Get(requestIDHeader)
	s.options.Audit.Write(entry)
}

func (s *server) entry(r *http.Request, call, conversation string, n *noted) audit.Entry {
	entry := audit.Entry{Person: n.credential.Username, How: string(n.credential.Method), Call: call,
		Address: s.options.TrustedProxies.ClientAddress(r)}
	if n.user.Name != "" {
		entry.Settings = n.user.String()
	}
	if rest.ConversationID.MatchString(conversation) { // any other ID is arbitrary text of the client
		entry.Conversation = conversation
	}
	return entry
}

// actionOf returns the action of an event that a client sends to a session; empty for an unknown
// action. If the action changes the agent's state, the new state follows the action. The result
// contains no other text of the client.
func actionOf(event []byte) string {
	var given struct {
		Action string `json:"action"`
		Args   struct {
			State session.State `json:"agent_state"`
		} `json:"args"`
	}
	if json.Unmarshal(event, &given) != nil || !slices.Contains([]string{session.ActionMessage,
		session.ActionChangeState, session.ActionRevoke}, given.Action) {
		return ""
	}
	if given.Action == session.ActionChangeState && slices.Contains([]session.State{session.StateConfirmed,
		session.StateRejected, session.StatePaused, session.StateRunning, session.StateStopped}, given.Args.State) {
		return given.Action + " " + string(given.Args.State)
	}
	return given.Action
}
