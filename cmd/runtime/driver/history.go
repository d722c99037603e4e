package driver

import (
	"slices"

	"github.com/parley-dev/parley/api/session"
)

// history is what the journal says of the session: what is under way, what waits. It is folded from
// the events when the journal is opened, and then from each that is added, so that what is recorded
// and what is known are one.
type history struct {
	state session.State
	// turn that is under way: the event of its message; -1 where none is.
	turn int
	// session of the agent that the last turn was begun in, and how many turns were.
	session      string
	sessionTurns int
	// turns that have begun. instructed is whether the agent's instructions are recorded in this
	// one.
	turns      int
	instructed bool
	// waiting are the messages that no turn has taken up, by their events.
	waiting []int
	// held: the agent could not be started for what waits. The next message, or the next attempt,
	// tries again.
	held bool
	// messages of users that there have been.
	messages int
	// keys that the last events of users had.
	keys     map[string]bool
	lastKeys []string

	// lastSession of the agent, and how much of what it told is recorded: up to lastSeq, of which
	// there are atSeq events.
	lastSession    string
	lastSeq, atSeq int

	// actions are the events of the calls of tools in the turn, and observed which of them are
	// over.
	actions  map[string]int
	observed map[string]bool
	// asked is the call that waits for the user. questions are digests of what was asked last in
	// the turn, by the call, and answers what users said to them.
	asked     string
	questions map[string]string
	answers   map[string]answer

	// wish of the user for another state, which the driver has not followed yet, and the event that
	// says so.
	wish   session.State
	wished int
	// said is the last message of the agent.
	said string
}

// answer of a user to a question, by its digest.
type answer struct {
	question string
	said     session.State
}

func newHistory() *history {
	return &history{
		turn: -1, keys: map[string]bool{}, actions: map[string]int{}, observed: map[string]bool{},
		questions: map[string]string{}, answers: map[string]answer{},
	}
}

// extraQuestion is the digest of what the user is asked, in the event that asks.
const extraQuestion = "question"

// over are the states that end a turn.
var over = map[session.State]bool{
	session.StateAwaiting: true, session.StateFinished: true, session.StateError: true, session.StatePaused: true,
	session.StateStopped: true,
}

// fold an event in.
func (h *history) fold(e *session.Event) {
	if e.Meta != nil && e.Meta.Seq > 0 {
		if e.Meta.Session != h.lastSession || e.Meta.Seq != h.lastSeq {
			h.lastSession, h.lastSeq, h.atSeq = e.Meta.Session, e.Meta.Seq, 0
		}
		h.atSeq++
	}
	if e.Meta != nil && e.Meta.Key != "" {
		h.foldKey(e.Meta.Key)
	}
	switch {
	case e.Observation == session.ObservedState:
		h.foldState(e)
	case e.IsUserMessage():
		h.messages++
		h.held = false
		h.waiting = append(h.waiting, e.ID)
	case e.Action == session.ActionChangeState:
		h.foldWish(e)
	case e.Action == session.ActionSystem:
		h.instructed = true
	case e.Action == session.ActionMessage && e.Source == session.FromAgent:
		h.said = e.Text()
	}
	if e.ToolCall == nil {
		return
	}
	if e.Action != "" {
		h.actions[e.ToolCall.ID] = e.ID
	} else if e.Observation != session.ObservedState {
		h.observed[e.ToolCall.ID] = true
		if e.Observation != session.ObservedRejected {
			delete(h.answers, e.ToolCall.ID) // it was followed, and is about nothing that comes later
		}
	}
}

// mostKeys is how many are remembered: who sends something again does so soon.
const mostKeys = 1000

func (h *history) foldKey(key string) {
	h.keys[key] = true
	if h.lastKeys = append(h.lastKeys, key); len(h.lastKeys) > mostKeys {
		delete(h.keys, h.lastKeys[0])
		h.lastKeys = h.lastKeys[1:]
	}
}

func (h *history) foldState(e *session.Event) {
	h.state = e.StateOf()
	if e.Meta != nil && e.Meta.Turn != nil {
		h.begin(*e.Meta.Turn, e.Meta.Session)
	}
	switch {
	case h.state == session.StateConfirmation && e.ToolCall != nil:
		h.asked = e.ToolCall.ID
		h.questions[h.asked], _ = e.Extras[extraQuestion].(string)
	case h.state == session.StateRunning:
		h.asked = ""
	}
	if e.Meta != nil && e.Meta.Withdrawn != nil {
		h.held = true
		if h.turn >= 0 {
			h.waiting = slices.Insert(h.waiting, 0, *e.Meta.Withdrawn)
			h.turns--
			h.sessionTurns--
		}
	}
	if over[h.state] {
		h.turn, h.asked, h.wish = -1, "", ""
		clear(h.questions)
		clear(h.answers)
	}
}

// knows says whether a question about a call was answered, or waits to be.
func (h *history) knows(id, question string) bool {
	return h.answers[id].question == question || h.asked == id && h.questions[id] == question
}

// begin a turn with a message. Messages before it are taken up with it.
func (h *history) begin(message int, in string) {
	if in != h.session {
		h.session, h.sessionTurns = in, 0
	}
	h.turn, h.instructed = message, false
	h.turns++
	h.sessionTurns++
	for len(h.waiting) > 0 && h.waiting[0] <= message {
		h.waiting = h.waiting[1:]
	}
	clear(h.actions)
	clear(h.observed)
}

func (h *history) foldWish(e *session.Event) {
	text, _ := e.Args["agent_state"].(string)
	state := session.State(text)
	switch state {
	case session.StateConfirmed, session.StateRejected:
		if h.asked != "" {
			h.answers[h.asked] = answer{h.questions[h.asked], state}
		}
	case session.StatePaused, session.StateStopped, session.StateRunning:
		if !h.held { // else there is nothing under way that it could be about
			h.wish, h.wished = state, e.ID
		}
	}
}

// ends is the state that the user wants the turn of a message to end in; empty where that is none.
// What was wished before the message came is about an earlier turn, which was over by then.
func (h *history) ends(message int) session.State {
	if (h.wish == session.StatePaused || h.wish == session.StateStopped) && h.wished > message {
		return h.wish
	}
	return ""
}
