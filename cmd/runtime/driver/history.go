package driver

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// history is the state of the session: the current turn, waiting messages, open questions. It is
// computed only from the journal's events, so it always agrees with the journal.
type history struct {
	state session.State
	// retrying is set while the agent waits before it repeats a failed model call.
	retrying bool
	// turn is the event ID of the current turn's message, or -1. begunAt is the ID of the event
	// that began the turn.
	turn, begunAt int
	// session is the ID of the last turn's ACP session. sessionTurns counts the turns in that
	// session.
	session      string
	sessionTurns int
	// turns counts the turns that have begun. instructed is set if the agent's instructions are
	// already recorded in the current turn.
	turns      int
	instructed bool
	// waiting holds the event IDs of the messages that have no turn yet, in ascending order.
	waiting []int
	// delivered holds the event IDs of the messages that reached the agent during the current turn.
	delivered []int
	// held is set if the agent could not be started for a waiting message. The driver retries the
	// start after the next message or in the next attempt.
	held     bool
	messages int
	// keys are the idempotency keys of the users' most recent events. lastKeys contains the same
	// keys in the order of the events.
	keys     map[string]bool
	lastKeys []string

	// lastSession and lastSeq are the ACP session and the sequence number of the last recorded
	// update. atSeq counts the recorded events of that update.
	lastSession    string
	lastSeq, atSeq int

	// actions maps each tool call of the turn to the ID of its action event. observed contains the
	// tool calls whose result is recorded.
	actions  map[string]int
	observed map[string]bool
	rejected map[string]bool
	// asked is the tool call that waits for the user's answer, and question is the pending question
	// about it. questions maps each tool call of the turn to the digest of its last question.
	// answers maps each tool call to the user's answer.
	asked     string
	question  question
	questions map[string]string
	answers   map[string]answer
	// approvals contains the rules that the user approved for the whole session. Each value is the
	// event ID of the user's answer.
	approvals map[string]int

	// requested is the state that the user requested. It is cleared when a turn ends. requestedAt
	// is the event ID of the request.
	requested   session.State
	requestedAt int
	// preface is a text for the agent. It is kept until the agent has certainly received it.
	// prefaced is set as soon as a turn has begun with this text.
	preface  string
	prefaced bool
	// outdated is set if the agent's memory was restored and may be older than the agent's work in
	// the current turn.
	outdated    bool
	said        string
	pullRequest string
	// usage is the last recorded model usage. model is the Revision of the last recorded
	// ModelChange.
	usage json.RawMessage
	model string
}

// question is the pending question: its event ID, and the rule under which the user may approve
// similar actions.
type question struct {
	id          int
	rule, label string
}

// answer is a user's answer. Its field question is the digest of the answered question.
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
	// extraQuestion is the field of a question's event that holds the digest of the question.
	extraQuestion = "question"
	// extraPreface is the field of a notice that holds a text for the agent's next prompt.
	extraPreface = "preface"
	// extraOutdated is a field of a notice about restored files. It is set if the agent may have
	// worked after these files were saved.
	extraOutdated = "outdated"
	// extraPullRequest is the field of a notice that holds the link to a pull request.
	extraPullRequest = "pull_request"
)

var endsTurn = map[session.State]bool{
	session.StateAwaiting: true, session.StateFinished: true, session.StateError: true, session.StatePaused: true,
	session.StateStopped: true,
}

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
		if e.Extras[extraPreface] != nil {
			h.outdated = e.Extras[extraOutdated] != nil
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

// maxKeys bounds the stored idempotency keys. It can be small, because clients retry soon.
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
			h.begunAt, h.delivered = e.ID, nil
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
		h.delivered = append(h.delivered, *e.Meta.Delivered)
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

// knows reports whether this question about a tool call is pending or was answered.
func (h *history) knows(id, question string) bool {
	return h.answers[id].question == question || h.asked == id && h.questions[id] == question
}

// begin starts the turn for a message. This message and all earlier messages are no longer waiting.
func (h *history) begin(message int, in string) {
	if in != h.session {
		h.session, h.sessionTurns = in, 0
	}
	h.turn, h.instructed, h.prefaced, h.outdated = message, false, h.preface != "", false
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
		if !h.held { // a held message has no turn that could be stopped
			h.requested, h.requestedAt = state, e.ID
		}
	}
}

// requestedEnd returns the state, paused or stopped, in which the user wants the message's turn to
// end. It returns an empty string if there is no such request. A request older than the message was
// for an earlier turn.
func (h *history) requestedEnd(message int) session.State {
	if (h.requested == session.StatePaused || h.requested == session.StateStopped) && h.requestedAt > message {
		return h.requested
	}
	return ""
}
