// Package loop is the agent's work on a message: it asks the model, does what the model calls for,
// and asks again, until the model has nothing more to do. All that it knows is in the session's
// log; its state is nothing but the records, read one after the other. So a turn goes on in a new
// process by the same steps as in the old one.
package loop

import (
	"fmt"

	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

// state is what the records of a session come to.
type state struct {
	cwd, instructions string
	history           []llm.Message
	// first is the first message of the user, latest the index of the last one in the history.
	first  *llm.Message
	latest int
	// triggered are the instructions that words of messages called for.
	triggered map[string]bool
	// turn says that a turn is under way, turnID how the client calls it, and last how the last one
	// ended.
	turn   bool
	turnID string
	last   turnlog.Record
	// replayed is how many events of the recording are done.
	replayed int
	// allowed and begun are of the calls of the last answer.
	allowed, begun map[string]bool
	stop           llm.Stop
	// used is what the model last reported, when the history had usedAt messages.
	used, usedAt int
	// shell is the script that restores the shell.
	shell string
	// plan is the input of the last call that set the list of tasks.
	plan string
	// ids are those of all calls so far.
	ids map[string]bool
	seq int
}

func newState() *state {
	return &state{triggered: map[string]bool{}, ids: map[string]bool{}}
}

// apply adds a record.
func (s *state) apply(r turnlog.Record) {
	s.seq += len(r.Updates)
	s.replayed = max(s.replayed, r.Replayed)
	switch r.Kind {
	case turnlog.KindSession:
		s.cwd, s.instructions = r.Cwd, r.Instructions
	case turnlog.KindPrompt:
		s.prompt(r)
	case turnlog.KindAnswer:
		s.history = append(s.history, r.Answer.Message)
		s.allowed, s.begun = map[string]bool{}, map[string]bool{}
		s.stop = r.Answer.Stop
		if r.Answer.Used > 0 {
			s.used, s.usedAt = r.Answer.Used, len(s.history)
		}
		for _, call := range r.Answer.Message.Calls() {
			s.ids[call.ID] = true
		}
	case turnlog.KindAllowed:
		s.allowed[r.CallID] = true
	case turnlog.KindBegun:
		s.begun[r.CallID] = true
	case turnlog.KindResult:
		s.result(r)
	case turnlog.KindCondensed:
		s.condense(r.Summary, r.Keep)
	case turnlog.KindEnd:
		s.turn, s.last = false, r
	}
}

func (s *state) prompt(r turnlog.Record) {
	s.turn = true
	if r.Turn != "" {
		s.turnID = r.Turn
	}
	for _, name := range r.Triggered {
		s.triggered[name] = true
	}
	if len(r.Message.Parts) == 0 {
		return
	}
	s.history = append(s.history, *r.Message)
	s.latest = len(s.history) - 1
	if s.first == nil {
		s.first = r.Message
	}
}

// result adds one to the message that holds the results of the last answer.
func (s *state) result(r turnlog.Record) {
	if r.Shell != "" {
		s.shell = r.Shell
	}
	for _, call := range s.pending() {
		if call.ID == r.CallID && call.Name == tools.TasksName && !r.Result.IsError {
			s.plan = call.Input
		}
	}
	part := llm.Part{Result: r.Result}
	if n := len(s.history); n > 0 && s.history[n-1].Role == llm.User {
		s.history[n-1].Parts = append(s.history[n-1].Parts, part)
		return
	}
	s.history = append(s.history, llm.Message{Role: llm.User, Parts: []llm.Part{part}})
}

// pending returns the calls of the last answer that have no result.
func (s *state) pending() []*llm.Call {
	answered := map[string]bool{}
	for i := len(s.history) - 1; i >= 0; i-- {
		message := s.history[i]
		if message.Role == llm.Assistant {
			var pending []*llm.Call
			for _, call := range message.Calls() {
				if !answered[call.ID] {
					pending = append(pending, call)
				}
			}
			return pending
		}
		for _, part := range message.Parts {
			if part.Result != nil {
				answered[part.Result.CallID] = true
			}
		}
	}
	return nil
}

// answered says that the model spoke last and called for nothing.
func (s *state) answered() bool {
	return len(s.history) > 0 && s.history[len(s.history)-1].Role == llm.Assistant
}

// unique gives calls ids that no other call of the session has. Some servers number the calls of
// each answer from 0.
func (s *state) unique(message llm.Message) {
	taken := map[string]bool{}
	for _, call := range message.Calls() {
		id := call.ID
		if id == "" {
			id = "call"
		}
		for n := 2; s.ids[call.ID] || taken[call.ID] || call.ID == ""; n++ {
			call.ID = fmt.Sprintf("%s_%d", id, n)
		}
		taken[call.ID] = true
	}
}

const summaryHeading = "The older part of this conversation was summarised to save room. The summary:\n\n"

// condense replaces all but the last messages by the first message, the latest one and a summary.
func (s *state) condense(summary string, keep int) {
	cut := len(s.history) - keep
	head := llm.Message{Role: llm.User}
	if s.first != nil {
		head.Parts = append(head.Parts, s.first.Parts...)
	}
	switch {
	case s.latest >= cut:
		s.latest -= cut - 1
	case s.latest > 0:
		head.Parts = append(head.Parts, s.history[s.latest].Parts...)
		s.latest = 0
	}
	head.Parts = append(head.Parts, llm.Part{Text: summaryHeading + summary})
	s.history = append([]llm.Message{head}, s.history[cut:]...)
	s.used, s.usedAt = 0, 0
}
