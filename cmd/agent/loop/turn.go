package loop

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

// brokenRetries is how often an answer is asked for again that broke off.
const brokenRetries = 2

// turn works on a prompt, or goes on with the turn that was under way.
func (s *Session) turn(ctx context.Context, params acp.PromptParams) (acp.StopReason, error) {
	id, _ := params.Meta[acp.MetaTurn].(string)
	if id != "" && id == s.state.turnID {
		if !s.state.turn {
			return s.ended()
		}
		return s.work(ctx)
	}
	if err := s.closeCalls("This call was not done: the agent was restarted, and the user wrote anew."); err != nil {
		return "", err
	}
	message, triggered := s.message(params.Prompt)
	if len(message.Parts) == 0 && len(s.options.Recording) == 0 {
		return "", &acp.Error{Code: acp.CodeInvalidParams, Message: "the prompt is empty"}
	}
	if err := s.record(turnlog.Record{Kind: turnlog.KindPrompt, Turn: id, Message: &message,
		Triggered: triggered}); err != nil {
		return "", err
	}
	return s.work(ctx)
}

// work takes one step after the other until the turn is over. Which step comes next follows from
// the state alone.
func (s *Session) work(ctx context.Context) (acp.StopReason, error) {
	for {
		var err error
		switch pending := s.state.pending(); {
		case ctx.Err() != nil:
			return s.cancelled()
		case len(pending) > 0:
			err = s.call(ctx, pending)
		case s.state.replayed < len(s.options.Recording):
			err = s.replay(ctx)
		case s.state.answered():
			return s.end()
		default:
			err = s.ask(ctx)
		}
		if err != nil && ctx.Err() == nil {
			return "", s.failed(err)
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

// ended tells again how the last turn ended.
func (s *Session) ended() (acp.StopReason, error) {
	last := s.state.last
	if last.Error != "" {
		return "", failure(last.Error, last.Says)
	}
	return acp.StopReason(last.Stop), nil
}

func (s *Session) cancelled() (acp.StopReason, error) {
	if err := s.closeCalls("This call was not done: the user stopped the turn."); err != nil {
		return "", err
	}
	return acp.Cancelled, s.record(turnlog.Record{Kind: turnlog.KindEnd, Stop: string(acp.Cancelled)})
}

// failed ends the turn with an error of the model. What the session knows stays, and the next
// prompt goes on from it.
func (s *Session) failed(err error) error {
	known, ok := errors.AsType[*llm.Error](err)
	if !ok {
		return err
	}
	if err := s.record(turnlog.Record{Kind: turnlog.KindEnd, Error: string(known.Kind), Says: known.Message}); err != nil {
		return err
	}
	return failure(string(known.Kind), known.Message)
}

// closeCalls gives a result to each call that has none, because no wire takes a history without.
func (s *Session) closeCalls(why string) error {
	for _, call := range s.state.pending() {
		text := why
		if s.state.begun[call.ID] {
			text = interruptedByRestart
		}
		if err := s.refuse(call, text); err != nil {
			return err
		}
	}
	return nil
}

// ask asks the model for the next message.
func (s *Session) ask(ctx context.Context) error {
	if s.full() {
		if err := s.makeRoom(ctx); err != nil {
			return err
		}
	}
	condensed := false
	for attempt := 0; ; attempt++ {
		said := &listener{Session: s}
		answer, err := s.options.Model.Answer(ctx, s.request(ctx), said)
		if err == nil {
			return s.answer(ctx, answer, 0)
		}
		if ctx.Err() != nil {
			return errors.Join(s.keepPart(said), ctx.Err())
		}
		failure, _ := errors.AsType[*llm.Error](err)
		switch {
		case failure == nil:
			return err
		case failure.Kind == llm.Context && s.options.Condense && !condensed:
			condensed = true
			if err := s.makeRoom(ctx); err != nil {
				return err
			}
		case failure.Broken && attempt < brokenRetries:
			select {
			case <-time.After(time.Second << attempt):
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			return err
		}
	}
}

// listener keeps what was said of an answer, for the case that it is not finished.
type listener struct {
	*Session
	text strings.Builder
}

func (l *listener) Text(piece string) {
	l.text.WriteString(piece)
	l.Session.Text(piece)
}

// keepPart keeps what the model had said when the user stopped it: the user saw it and may refer to
// it.
func (s *Session) keepPart(said *listener) error {
	text := strings.TrimSpace(said.text.String())
	if text == "" {
		return nil
	}
	part := llm.Message{Role: llm.Assistant, Parts: []llm.Part{{Text: text}}}
	return s.answer(context.Background(), llm.Answer{Message: part, Stop: llm.StopEnd}, 0)
}

func (s *Session) request(ctx context.Context) llm.Request {
	r := llm.Request{System: systemPrompt(s.state.cwd, s.state.instructions), Messages: s.state.history}
	for _, tool := range s.tools.Offered(ctx) {
		r.Tools = append(r.Tools, tool.Tool)
	}
	return r
}

// answer records a message of the model, and tells the client what it says and what it calls for.
func (s *Session) answer(ctx context.Context, answer llm.Answer, replayed int) error {
	s.state.unique(answer.Message)
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
