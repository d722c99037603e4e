package loop

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

// maxRepeats is the number of equal steps in a row after which a turn ends. A turn also ends after
// it has alternated this number of times between the same two steps.
const maxRepeats = 4

// step is an answer with tool calls and their results. The digest covers the calls and the results.
// tool is the name of the first called tool.
type step struct {
	digest, tool string
}

// beginStep adds a step for an answer with tool calls. A replayed answer clears the steps instead,
// because replayed calls never count as repetitions.
func (s *state) beginStep(r turnlog.Record) {
	if r.Replayed > 0 {
		s.steps = nil
		return
	}
	if calls := r.Answer.Message.Calls(); len(calls) > 0 {
		s.steps = append(s.steps, step{tool: calls[0].Name})
		s.steps = s.steps[max(0, len(s.steps)-2*maxRepeats):]
	}
}

// addToStep adds a result to the last step. A call that only waited for a running command never
// counts as a repetition, so addToStep makes the digest of its step unique.
func (s *state) addToStep(call *llm.Call, r turnlog.Record) {
	if len(s.steps) == 0 {
		return
	}
	last := &s.steps[len(s.steps)-1]
	text := fmt.Sprintf("%s %q %q %q", last.digest, call.Name, call.Input, r.Result.Text)
	if r.Waiting {
		text += fmt.Sprint(s.seq)
	}
	last.digest = fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
}

func (s *state) stuck() error {
	n := len(s.steps)
	repeats := func(period, steps int) bool {
		return n >= steps && slices.Equal(s.steps[n-steps:n-period], s.steps[n-steps+period:])
	}
	const advice = " Send a message to continue, for example with a hint."
	switch {
	case repeats(1, maxRepeats):
		return &llm.Error{Kind: llm.Stuck, Message: fmt.Sprintf("The agent is stuck: it repeated the same call of %s %d "+
			"times, with the same result.", s.steps[n-1].tool, maxRepeats) + advice}
	case repeats(2, 2*maxRepeats):
		return &llm.Error{Kind: llm.Stuck, Message: fmt.Sprintf("The agent is stuck: it alternated %d times between the "+
			"same two calls of %s and %s, with the same results.", maxRepeats, s.steps[n-2].tool, s.steps[n-1].tool) + advice}
	}
	return nil
}
