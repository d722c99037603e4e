package loop

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

// turn() starts a turn for a prompt, or resumes an interrupted turn.
func (s *Session) turn(ctx context.Context, params acp.PromptParams) (acp.StopReason, error) {
	id, _ := params.Meta[acp.MetaTurn].(string)
	if id != "" && id == s.state.turnID {
		if !s.state.turnOpen {
			return s.lastResult()
		}
		return s.work(ctx)
	}
	if err := s.closeCalls("This call was not executed: the agent restarted and got a new message."); err != nil {
		return "", err
	}
	message := s.message(params.Prompt)
	if len(message.Parts) == 0 && len(s.options.Recording) == 0 {
		return "", &acp.Error{Code: acp.CodeInvalidParams, Message: "the prompt is empty"}
	}
	message = s.message(s.undelivered(id, params.Prompt))
	if err := s.recordPrompt(turnlog.Record{Turn: id, Message: &message}, words(params.Prompt)); err != nil {
		return "", err
	}
	return s.work(ctx)
}

// recordPrompt records a message of the user, with the instructions that its words trigger.
func (s *Session) recordPrompt(r turnlog.Record, words string, updates ...acp.Update) error {
	r.Kind = turnlog.KindPrompt
	var problems []string
	r.Learned, problems = s.triggered(words)
	if err := s.announce(problems...); err != nil {
		return err
	}
	return s.record(r, updates...)
}

// work executes the steps of the turn until it ends. The state alone determines the next step.
func (s *Session) work(ctx context.Context) (acp.StopReason, error) {
	for {
		var err error
		switch pending := s.state.pending(); {
		case ctx.Err() != nil:
			return s.cancelled()
		case len(pending) > 0:
			err = s.runNext(ctx, pending)
		case s.state.replayed < len(s.options.Recording):
			err = s.replay(ctx)
		case s.state.answered():
			var more bool
			if more, err = s.followUp(); err == nil && !more {
				return s.end()
			}
		default:
			if err = s.takeMessages(); err == nil {
				err = s.state.stuck()
			}
			if err == nil {
				err = s.askModel(ctx)
			}
		}
		if err != nil && ctx.Err() == nil {
			return "", s.endWithError(err)
		}
		if err != nil && !errors.Is(err, ctx.Err()) {
			return "", err
		}
	}
}

func (s *Session) end() (acp.StopReason, error) {
	reason := acp.EndTurn
	switch s.state.stop {
	case llm.StopLength:
		reason = acp.MaxTokens
	case llm.StopRefusal:
		reason = acp.Refusal
	}
	return reason, s.record(turnlog.Record{Kind: turnlog.KindEnd, Stop: string(reason)})
}

func (s *Session) lastResult() (acp.StopReason, error) {
	last := s.state.last
	if last.Error != "" {
		return "", failure(last.Error, last.ErrorText)
	}
	return acp.StopReason(last.Stop), nil
}

func (s *Session) cancelled() (acp.StopReason, error) {
	if err := s.closeCalls("This call was not executed: the user stopped the turn."); err != nil {
		return "", err
	}
	return acp.Cancelled, s.record(turnlog.Record{Kind: turnlog.KindEnd, Stop: string(acp.Cancelled)})
}

// endWithError ends the turn with an error of the model. The history stays, and the next prompt
// continues from it.
func (s *Session) endWithError(err error) error {
	known, ok := errors.AsType[*llm.Error](err)
	if !ok {
		return err
	}
	end := turnlog.Record{Kind: turnlog.KindEnd, Error: string(known.Kind), ErrorText: known.Message}
	if err := s.record(end); err != nil {
		return err
	}
	return failure(string(known.Kind), known.Message)
}

// closeCalls records a result for each call that has none, because the APIs reject a call without a
// result.
func (s *Session) closeCalls(reason string) error {
	for _, call := range s.state.pending() {
		text := reason
		if s.state.begun[call.ID] {
			text = interruptedByRestart
		}
		if err := s.failCall(call, text); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) askModel(ctx context.Context) error {
	_, shortened := s.instructions()
	if err := s.announce(s.tools.LeftOut(ctx), shortened); err != nil {
		return err
	}
	if s.contextFull(ctx) {
		if _, err := s.condense(ctx, false); err != nil {
			return err
		}
	}
	overflows, repairs := 0, 0
	for {
		var partial strings.Builder
		answer, err := s.ask(ctx, s.request(ctx), func() llm.Sink {
			partial.Reset()
			return func(text, thought string) {
				partial.WriteString(text)
				s.sendPieces(text, thought)
			}
		})
		if err == nil {
			return s.answer(ctx, answer, 0)
		}
		if ctx.Err() != nil {
			return errors.Join(s.recordPartial(partial.String()), ctx.Err())
		}
		failure, _ := errors.AsType[*llm.Error](err)
		switch {
		case failure == nil:
			return err
		case failure.Kind == llm.Context:
			if err := s.overflow(ctx, failure, overflows); err != nil {
				return err
			}
			overflows++
		case failure.Refused != "" && repairs < maxRepairs:
			repairs++
			if repaired, repairErr := s.repair(ctx, failure.Refused); !repaired || repairErr != nil {
				return cmp.Or(repairErr, err)
			}
		default:
			return err
		}
	}
}

// recordPartial records the text of an answer that the user cancelled. The user saw the text and
// may refer to it.
func (s *Session) recordPartial(text string) error {
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	part := llm.Message{Role: llm.Assistant, Parts: []llm.Part{{Text: text}}}
	return s.answer(context.Background(), llm.Answer{Message: part, Stop: llm.StopEnd}, 0)
}

func (s *Session) request(ctx context.Context) llm.Request {
	instructions, _ := s.instructions()
	r := llm.Request{System: systemPrompt(s.state.cwd, s.state.environment, instructions),
		Messages: s.state.history, Window: s.window()}
	for _, tool := range s.tools.Offered(ctx) {
		r.Tools = append(r.Tools, tool.Tool)
	}
	return r
}

// answer() records a message of the model, and sends its text and calls to the client.
func (s *Session) answer(ctx context.Context, answer llm.Answer, replayed int) error {
	s.state.makeCallsValid(answer.Message)
	var updates []acp.Update
	for _, part := range answer.Message.Parts {
		if part.Thinking != nil && part.Thinking.Text != "" {
			updates = append(updates, acp.Update{Kind: acp.ThoughtChunk, Content: acp.Text(part.Thinking.Text)})
		}
	}
	if text := answer.Message.Text(); text != "" {
		updates = append(updates, acp.Update{Kind: acp.MessageChunk, Content: acp.Text(text)})
	}
	for _, call := range answer.Message.Calls() {
		updates = append(updates, s.describe(ctx, call))
	}
	if answer.Used > 0 {
		updates = append(updates, acp.Update{Kind: acp.UsageUpdate, Used: &answer.Used, Size: s.window()})
	}
	return s.record(turnlog.Record{Kind: turnlog.KindAnswer, Answer: &answer, Replayed: replayed}, updates...)
}
