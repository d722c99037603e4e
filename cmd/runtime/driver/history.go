package driver

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// history is the state of the session: the current turn, waiting messages, open questions. It is
// computed from the events when the journal is opened, and updated with each new event, so that it
// always agrees with the journal.
type history struct {
	state session.State
	// retrying is set while the agent waits before it calls the model again.
	retrying bool
	// turn is the event ID of the current turn's message, or -1. begunAt is the ID of the event that
	// began the turn.
	turn, begunAt int
	// session is the agent's session of the last turn; sessionTurns counts the turns in that
	// session.
	session      string
	sessionTurns int
	// turns counts the turns that have begun. instructed is set once the agent's instructions are
	// recorded in this turn.
	turns      int
	instructed bool
	// waiting are the event IDs of messages that have no turn yet, in ascending order.
	waiting []int
	// held is set after the agent failed to start for a waiting message. The next message or the
	// next attempt retries.
	held bool
	// messages counts the users' messages.
	messages int
	// keys are the idempotency keys of the users' last events. lastKeys holds them in the order of the
	// events.
	keys     map[string]bool
	lastKeys []string

	// lastSession is the agent's session of the last recorded update. lastSeq is the sequence number
	// of that update. atSeq counts the recorded events of that update.
	lastSession    string
	lastSeq, atSeq int

	// actions maps the turn's tool calls to the IDs of their action events. observed holds the calls
	// that have a result.
	actions  map[string]int
	observed map[string]bool
	// rejected are the turn's calls that the user rejected.
	rejected map[string]bool
	// asked is the ID of the call that waits for the user's answer. question is the pending question
	// about this call. questions maps each call of the turn to the digest of the last question about
	// it. answers maps each call to the user's answer.
	asked     string
	question  question
	questions map[string]string
	answers   map[string]answer
	// approvals maps each rule that the user approved for the whole session to the ID of the event
	// with the user's answer.
	approvals map[string]int

	// requested is a state that the user requested and the driver has not reached; requestedAt is
	// the event ID of the request.
	requested   session.State
	requestedAt int
	// preface is a text for the agent. It stays until the agent has certainly received it. prefaced is
	// set when a turn has begun with this text.
	preface  string
	prefaced bool
	// said is the agent's last message.
	said string
	// pullRequest is the link of the last pull request.
	pullRequest string
	// usage is the last recorded usage of the model. model is the revision in the last recorded change
	// of the model.
	usage json.RawMessage
	model string
}

// question is the pending question: its event, and the rule for similar later actions.
type question struct {
	id          int
	rule, label string
}

// answer is a user's answer to the question with this digest.
type answer struct {
	question   string
	said       session.State
	reason     string
	remembered bool
}

func newHistory() *history {
	return &history{
		turn: -1, keys: map[string]bool{}, actions: map[string]int{}, observed: map[string]bool{},
		rejected: map[string]bool{}, questions: map[string]string{}, answers: map[string]answer{},
		approvals: map[string]int{},
	}
}

const (
	// extraQuestion is the field with the digest of the question, in the event that asks it.
	extraQuestion = "question"
	// extraPreface is the field with the text for the agent, in a notice about the workspace.
	extraPreface = "preface"
	// extraPullRequest is the field with the link, in a notice about a pull request.
	extraPullRequest = "pull_request"
)

// endsTurn are the states that end a turn.
var endsTurn = map[session.State]bool{
	session.StateAwaiting: true, session.StateFinished: true, session.StateError: true, session.StatePaused: true,
	session.StateStopped: true,
}

// fold updates the history with an event.
func (h *history) fold(e *session.Event) {
	if e.Meta != nil {
		h.foldMeta(e.Meta)
	}
	switch {
	case e.Observation == session.ObservedState:
		h.foldState(e)
	case e.Observation == session.ObservedNotice && e.Extras[extraModel] != nil:
		h.model, _ = e.Extras[extraModel].(string)
	case e.Observation == session.ObservedNotice && e.Extras[extraPullRequest] != nil:
		h.pullRequest, _ = e.Extras[extraPullRequest].(string)
	case e.Observation == session.ObservedNotice:
		if text, _ := e.Extras[extraPreface].(string); !strings.Contains(h.preface, text) {
			h.preface, h.prefaced = strings.TrimSpace(h.preface+"\n\n"+text), false
		}
	case e.IsUserMessage():
		h.messages++
		h.held = false
		h.waiting = append(h.waiting, e.ID)
	case e.Action == session.ActionChangeState:
		h.foldRequest(e)
	case e.Action == session.ActionSystem:
		h.instructed = true
	case e.Action == session.ActionMessage && e.Source == session.FromAgent:
		h.said = e.Text()
	}
	if e.ToolCall != nil {
		h.foldCall(e)
	}
	if h.prefaced && e.Source == session.FromAgent && e.Action != session.ActionSystem {
		h.preface, h.prefaced = "", false // the agent works, so it received its prompt
	}
}

func (h *history) foldMeta(meta *session.EventMeta) {
	if meta.Seq > 0 {
		if meta.Session != h.lastSession || meta.Seq != h.lastSeq {
			h.lastSession, h.lastSeq, h.atSeq = meta.Session, meta.Seq, 0
		}
		h.atSeq++
	}
	if meta.Key != "" {
		h.foldKey(meta.Key)
	}
	if meta.Usage != nil {
		h.usage = meta.Usage
	}
	if meta.Revokes != nil {
		maps.DeleteFunc(h.approvals, func(_ string, approval int) bool { return approval == *meta.Revokes })
	}
}

// foldCall updates the state of a tool call with its action or result.
func (h *history) foldCall(e *session.Event) {
	if e.Action != "" {
		h.actions[e.ToolCall.ID] = e.ID
		delete(h.observed, e.ToolCall.ID)
		delete(h.rejected, e.ToolCall.ID)
	} else if e.Observation != session.ObservedState {
		h.observed[e.ToolCall.ID] = true
		if e.Observation == session.ObservedRejected {
			h.rejected[e.ToolCall.ID] = true
		} else {
			delete(h.answers, e.ToolCall.ID) // the answer was used and does not apply to later calls
		}
	}
}

// maxKeys bounds the remembered keys. Few keys are enough, because clients retry soon.
const maxKeys = 1000

func (h *history) foldKey(key string) {
	h.keys[key] = true
	if h.lastKeys = append(h.lastKeys, key); len(h.lastKeys) > maxKeys {
		delete(h.keys, h.lastKeys[0])
		h.lastKeys = h.lastKeys[1:]
	}
}

func (h *history) foldState(e *session.Event) {
	h.state, h.retrying = e.StateOf(), e.Extras[extraRetryAt] != nil
	if e.Meta != nil && e.Meta.Turn != nil {
		if h.turn != *e.Meta.Turn { // an interrupted turn may begin again in another session
			h.begunAt = e.ID
		}
		h.begin(*e.Meta.Turn, e.Meta.Session)
	}
	switch {
	case h.state == session.StateConfirmation && e.ToolCall != nil:
		h.asked = e.ToolCall.ID
		h.questions[h.asked], _ = e.Extras[extraQuestion].(string)
		h.question = question{id: e.ID}
		h.question.rule, _ = e.Extras[extraRule].(string)
		h.question.label, _ = e.Extras[argRemember].(string)
	case h.state == session.StateRunning:
		h.asked = ""
	}
	if isDelivery(e) {
		h.waiting = slices.DeleteFunc(h.waiting, func(id int) bool { return id == *e.Meta.Delivered })
	}
	if e.Meta != nil && e.Meta.Withdrawn != nil {
		h.held = true
		if h.turn >= 0 {
			h.waiting = slices.Insert(h.waiting, 0, *e.Meta.Withdrawn)
			h.turns--
			h.sessionTurns--
		}
	}
	if endsTurn[h.state] {
		h.turn, h.asked, h.requested = -1, "", ""
		clear(h.questions)
		clear(h.answers)
	}
}

// knows reports whether a question about a call was answered or is pending.
func (h *history) knows(id, question string) bool {
	return h.answers[id].question == question || h.asked == id && h.questions[id] == question
}

// begin starts a turn with a message. Earlier waiting messages also belong to the turn.
func (h *history) begin(message int, in string) {
	if in != h.session {
		h.session, h.sessionTurns = in, 0
	}
	h.turn, h.instructed, h.prefaced = message, false, h.preface != ""
	h.turns++
	h.sessionTurns++
	for len(h.waiting) > 0 && h.waiting[0] <= message {
		h.waiting = h.waiting[1:]
	}
	clear(h.actions)
	clear(h.observed)
	clear(h.rejected)
}

func (h *history) foldRequest(e *session.Event) {
	text, _ := e.Args["agent_state"].(string)
	state := session.State(text)
	switch state {
	case session.StateConfirmed, session.StateRejected:
		if h.asked == "" {
			return
		}
		reason, _ := e.Args[argReason].(string)
		remember, _ := e.Args[argRemember].(bool)
		h.answers[h.asked] = answer{h.questions[h.asked], state, reason, remember}
		if remember && h.question.rule != "" {
			h.approvals[h.question.rule] = e.ID
		}
	case session.StatePaused, session.StateStopped, session.StateRunning:
		if state == session.StateRunning && h.state == session.StatePaused {
			h.waiting = append(h.waiting, e.ID) // the agent continues without a message
		}
		if !h.held { // otherwise there is no turn to change
			h.requested, h.requestedAt = state, e.ID
		}
	}
}

// requestedEnd is the state in which the user wants the turn of a message to end, or empty. A
// request older than the message was for an earlier turn.
func (h *history) requestedEnd(message int) session.State {
	if (h.requested == session.StatePaused || h.requested == session.StateStopped) && h.requestedAt > message {
		return h.requested
	}
	return ""
}
