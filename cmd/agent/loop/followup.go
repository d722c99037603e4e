package loop

import (
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

const (
	// maxContinuations limits how many times in a row a turn continues an answer that reached its
	// maximum length.
	maxContinuations = 10

	continueAnswer = "Your answer reached its maximum length. Continue exactly where it stopped; do not repeat or " +
		"comment on what you have already written."
	shortenAnswer = "Your answer reached its maximum length before it contained any text or call. Think less, and " +
		"answer now."
	answerEmpty = "Your answer was empty. Continue the task, or say what you have done and what you need."
)

var errEmptyAnswers = &llm.Error{Kind: llm.Provider, Message: "The model answered twice with neither text nor a tool " +
	"call."}

// followUp asks the model to go on after an answer that is empty or reached its maximum length. It
// returns false if the turn ends instead.
func (s *Session) followUp() (bool, error) {
	text := ""
	switch {
	case s.state.stop == llm.StopLength && s.state.cutAnswers > maxContinuations:
		return false, nil
	case s.state.stop == llm.StopLength && s.state.emptyAnswers > 0:
		text = shortenAnswer
	case s.state.stop == llm.StopLength:
		text = continueAnswer
	case s.state.stop == llm.StopRefusal || s.state.emptyAnswers == 0:
		return false, nil
	case s.state.emptyAnswers == 1:
		text = answerEmpty
	default:
		return false, errEmptyAnswers
	}
	return true, s.record(turnlog.Record{Kind: turnlog.KindFollowUp,
		Message: &llm.Message{Role: llm.User, Parts: []llm.Part{{Text: text}}}})
}

func (s *state) countAnswer(r turnlog.Record) {
	if blank := len(r.Answer.Message.Calls()) == 0 && r.Answer.Message.Text() == "" && r.Replayed == 0; blank {
		s.emptyAnswers++
	} else {
		s.emptyAnswers = 0
	}
	if r.Answer.Stop == llm.StopLength {
		s.cutAnswers++
	} else {
		s.cutAnswers = 0
	}
}
