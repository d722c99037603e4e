package loop

import (
	"slices"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

// Steer gives the running turn a message of the user. It ignores a message for another turn.
func (s *Session) Steer(params acp.PromptParams) {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn, _ := params.Meta[acp.MetaTurn].(string)
	if s.cancel != nil && turn == s.running {
		s.steering = append(s.steering, params)
	}
}

// takeMessages records the messages that arrived during the turn, and tells the client.
func (s *Session) takeMessages() error {
	s.mu.Lock()
	waiting := s.steering
	s.steering = nil
	s.mu.Unlock()
	for _, params := range waiting {
		id, _ := params.Meta[acp.MetaMessage].(string)
		message := s.message(params.Prompt)
		if id == "" || s.state.steered[id] || len(message.Parts) == 0 {
			continue
		}
		text := words(params.Prompt)
		err := s.recordPrompt(turnlog.Record{MessageID: id, Message: &message}, text,
			acp.Update{Kind: acp.UserChunk, Content: acp.Text(text), Meta: acp.Meta{acp.MetaMessage: id}})
		if err != nil {
			return err
		}
	}
	return nil
}

// undelivered returns the blocks of a prompt that are not in the history yet. Usually, these are
// all blocks. But a turn may end after a new message is recorded and before the model answers. The
// client then sends the message again, as a prompt. In that prompt, only the blocks that the client
// added to the user's message are new.
func (s *Session) undelivered(turn string, prompt []acp.Content) []acp.Content {
	if !s.state.steered[turn] || s.state.answered() {
		return prompt
	}
	return slices.DeleteFunc(slices.Clone(prompt), func(block acp.Content) bool { return !block.IsContext() })
}
