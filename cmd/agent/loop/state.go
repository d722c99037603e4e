// Package loop runs the agent's turns: it calls the model, executes the tool calls of its answer,
// and repeats until the model makes no more calls. The state of a session is computed only from the
// records in its log. After a crash, a new process therefore continues a turn exactly as the old
// process would have done.
package loop

import (
	"fmt"
	"maps"
	"slices"

	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

// state is the state of a session, computed from its records.
type state struct {
	cwd, environment, instructions string
	history                        []llm.Message
	// first and latest are the user's first and last message. latestAt is the index of the last
	// message in the history. If a condensation copied this message into a summary, latestAt is the
	// index of the summary.
	first, latest *llm.Message
	latestAt      int
	// windows maps models to their context windows, as learned from errors of their providers.
	// imageRefusals counts how often a provider refused images for each model.
	windows, imageRefusals map[string]int
	// notices holds the notices that the user has received.
	notices map[string]bool
	steps   []step
	// known maps the names of the instruction files in the history to their texts. learned holds new
	// instructions, which the model gets after the results of all pending calls.
	known   map[string]string
	learned []llm.Part
	// steered holds the IDs of messages that arrived during a turn.
	steered map[string]bool
	// turnOpen is set during a turn. turnID is the name that the client gave the turn. last is the
	// record that ended the last turn.
	turnOpen bool
	turnID   string
	last     turnlog.Record
	replayed int
	// allowed holds the IDs of the last answer's calls that the user has allowed. begun holds the
	// IDs of the last answer's calls that have started.
	allowed, begun map[string]bool
	stop           llm.Stop
	// emptyAnswers counts the empty answers in a row. cutAnswers counts the answers in a row that
	// reached their maximum length.
	emptyAnswers, cutAnswers int
	// used is the number of tokens that the model last reported. usedAt is the number of messages that
	// the history had at that time.
	used, usedAt int
	// shell is the script that restores the shell's state.
	shell string
	// plan is the input of the last call that set the task list.
	plan string
	// ids holds the IDs of all calls so far.
	ids map[string]bool
	seq int
}

func newState() *state {
	return &state{known: map[string]string{}, steered: map[string]bool{}, ids: map[string]bool{},
		windows: map[string]int{}, imageRefusals: map[string]int{}, notices: map[string]bool{}}
}

func (s *state) apply(r turnlog.Record) {
	s.seq += len(r.Updates)
	s.replayed = max(s.replayed, r.Replayed)
	switch r.Kind {
	case turnlog.KindSession:
		s.cwd, s.environment, s.instructions = r.Cwd, r.Environment, r.Instructions
	case turnlog.KindPrompt:
		s.prompt(r)
	case turnlog.KindAnswer:
		s.history = append(s.history, r.Answer.Message)
		s.allowed, s.begun = map[string]bool{}, map[string]bool{}
		s.stop = r.Answer.Stop
		s.beginStep(r)
		s.countAnswer(r)
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
		s.condense(r)
	case turnlog.KindRepaired:
		s.repair(r)
	case turnlog.KindWindow:
		s.windows[r.Model] = r.Window
	case turnlog.KindNotice:
		s.notices[r.Notice] = true
	case turnlog.KindFollowUp:
		s.history = append(s.history, *r.Message)
	case turnlog.KindEnd:
		s.turnOpen, s.last = false, r
	}
}

func (s *state) prompt(r turnlog.Record) {
	s.turnOpen, s.steps, s.emptyAnswers, s.cutAnswers = true, nil, 0, 0
	if r.Turn != "" {
		s.turnID = r.Turn
	}
	if r.MessageID != "" {
		s.steered[r.MessageID] = true
	}
	if len(r.Message.Parts) == 0 {
		return
	}
	message := *r.Message
	message.Parts = append(slices.Clip(message.Parts), s.learn(r)...)
	s.history = append(s.history, message)
	s.latest, s.latestAt = &message, len(s.history)-1
	if s.first == nil {
		s.first = s.latest
	}
}

// learn remembers the instructions of a record, and returns them as parts of a message.
func (s *state) learn(r turnlog.Record) (parts []llm.Part) {
	for _, file := range r.Learned {
		s.known[file.Name] = file.Text
		parts = append(parts, llm.Part{Text: file.Text})
	}
	return parts
}

func (s *state) isInstruction(part llm.Part) bool {
	return part.Text != "" && slices.Contains(slices.Collect(maps.Values(s.known)), part.Text)
}

// forget removes an instruction file from s.known if a summary has replaced the file's text. The
// model gets such a file again when it needs the file.
func (s *state) forget() {
	maps.DeleteFunc(s.known, func(_, text string) bool {
		return !hasPart(s.history, func(part llm.Part) bool { return part.Text == text })
	})
}

// latestMessage returns the user's latest message, or an empty message if there is none: the prompt
// of a session that replays a recording may be empty.
func (s *state) latestMessage() llm.Message {
	if s.latest == nil {
		return llm.Message{Role: llm.User}
	}
	return *s.latest
}

// result adds a tool result to the message that holds the results of the last answer's calls.
func (s *state) result(r turnlog.Record) {
	if r.Shell != "" {
		s.shell = r.Shell
	}
	for _, call := range s.pending() {
		if call.ID != r.CallID {
			continue
		}
		s.addToStep(call, r)
		if call.Name == tools.TasksName && !r.Result.IsError {
			s.plan = call.Input
		}
	}
	if n := len(s.history); n == 0 || s.history[n-1].Role != llm.User {
		s.history = append(s.history, llm.Message{Role: llm.User})
	}
	results := &s.history[len(s.history)-1]
	results.Parts = append(results.Parts, llm.Part{Result: r.Result})
	s.learned = append(s.learned, s.learn(r)...)
	if len(s.pending()) == 0 { // the APIs expect all results before other content
		results.Parts = append(results.Parts, s.learned...)
		s.learned = nil
	}
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

// answered reports whether the last message is the model's answer. The caller has checked that no
// call is pending.
func (s *state) answered() bool {
	return len(s.history) > 0 && s.history[len(s.history)-1].Role == llm.Assistant
}

// makeCallsValid gives each call a name that the APIs accept, and an ID that is unique in the
// session. Some servers number the calls of every answer from 0, so their IDs repeat.
func (s *state) makeCallsValid(message llm.Message) {
	taken := map[string]bool{}
	for _, call := range message.Calls() {
		call.Name = llm.MakeName(call.Name)
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
