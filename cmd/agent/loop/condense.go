package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

const (
	// defaultWindow is the context window, in tokens, that the agent assumes if the model's window
	// is unknown.
	defaultWindow = 128_000
	// smallestWindow is the smallest window, in tokens, that the agent assumes after a refused
	// request if the provider does not name the window.
	smallestWindow = 4000
	// charactersPerToken is low, so that the estimated number of tokens is more often too high than
	// too low.
	charactersPerToken = 3
	tokensPerImage     = 1500
	// maxKeptExchanges limits the number of recent exchanges (an answer and its calls' results) that
	// are not summarised.
	maxKeptExchanges = 3
	// maxCondensedOutput is the maximum number of characters of each tool input and each tool output
	// in the text that the model summarises.
	maxCondensedOutput = 2000
	// maxWords is the maximum number of words that the agent asks the model to write in a summary.
	maxWords = 2000
	// minSaved is the minimum estimated saving of a summary, in tokens, after the provider has
	// refused a request as too long. It is small, because the real saving may be much higher than
	// the estimate.
	minSaved = 200
	// maxOverflows limits how many times the agent summarises the history for one request that the
	// provider refuses as too long. maxSummaries limits the tries to get one summary from the
	// model.
	maxOverflows, maxSummaries = 3, 3
)

const summaryPrompt = `You summarise the work of a coding agent, so that it can continue without the older part of ` +
	`its conversation. Write for the agent, in plain text, without a preface:
what the user wants, with all conditions that were stated; what was done and found, with names of files, functions ` +
	`and commands; what was decided and why; what failed; what is left to do. Include everything that the rest of ` +
	`the work needs, and nothing else.`

// window returns the model's context window. It prefers the window learned from provider errors,
// then the window in the settings, then the default.
func (s *Session) window() int {
	return cmp.Or(s.state.windows[s.options.ModelName], max(0, s.options.ContextWindow), defaultWindow)
}

func (s *Session) contextFull(ctx context.Context) bool { return s.size(ctx)*10 > s.window()*8 }

// size returns the size of the next request in tokens. It adds an estimate of the new messages to
// the usage that the model last reported.
func (s *Session) size(ctx context.Context) int {
	if s.state.used > 0 {
		return s.state.used + estimate(s.state.history[s.state.usedAt:])
	}
	return s.overhead(ctx) + estimate(s.state.history)
}

// overhead estimates the tokens of the system prompt and the tools, which are part of every
// request.
func (s *Session) overhead(ctx context.Context) int {
	r := s.request(ctx)
	encoded, _ := json.Marshal(r.Tools) // cannot fail: schemas come from JSON or from this program
	return (len(r.System) + len(encoded)) / charactersPerToken
}

func estimate(messages []llm.Message) int {
	characters, images := 0, 0
	for _, message := range messages {
		for _, part := range message.Parts {
			characters += len(part.Text)
			switch {
			case part.Image != nil:
				images++
			case part.Call != nil:
				characters += len(part.Call.Name) + len(part.Call.Input)
			case part.Thinking != nil:
				characters += len(part.Thinking.Text)
			case part.Result != nil:
				characters += len(part.Result.Text)
				images += len(part.Result.Images)
			}
		}
	}
	return characters/charactersPerToken + images*tokensPerImage
}

// overflow handles the provider's error for a request that is too long. If the request has too many
// bytes, overflow removes older images. If it has too many tokens, or no older images, overflow
// summarises the history. It also records the context window, which it learns from the error. The
// parameter times is the number of earlier overflows of the same request.
func (s *Session) overflow(ctx context.Context, failure *llm.Error, times int) error {
	if failure.TooLarge {
		if removed, err := s.removeOlderImages(); removed || err != nil {
			return err
		}
	}
	window := cmp.Or(failure.Window, min(s.window(), max(smallestWindow, s.size(ctx)/4*3)))
	if window != s.window() && !failure.TooLarge {
		learned := turnlog.Record{Kind: turnlog.KindWindow, Model: s.options.ModelName, Window: window}
		if err := s.record(learned); err != nil || !s.contextFull(ctx) {
			return err // the answer's token limit depends on the window, so the request may fit now
		}
	}
	if !s.options.Condense {
		return failure
	}
	if times < maxOverflows {
		if condensed, err := s.condense(ctx, true); condensed || err != nil {
			return err
		}
	}
	return &llm.Error{Kind: llm.Context, Message: fmt.Sprintf("The conversation does not fit into the model's context of "+
		"%d tokens, and summarising its older part does not help: the latest message alone needs about %d tokens, "+
		"and instructions and tools need about %d. Send a shorter message, use fewer tools, or choose a model with a "+
		"larger context.",
		s.window(), estimate([]llm.Message{s.state.latestMessage()}), s.overhead(ctx))}
}

// condense summarises the older part of the history if this saves an eighth of the window. If force
// is set, a saving of minSaved tokens is enough.
func (s *Session) condense(ctx context.Context, force bool) (condensed bool, err error) {
	if !s.options.Condense {
		return false, &llm.Error{Kind: llm.Context, Message: "The model's context is almost full, and summarising the " +
			"history is turned off."}
	}
	r := s.planCondensation(ctx)
	older := s.state.history[:len(s.state.history)-r.Keep]
	progress := s.window() / 8
	if force {
		progress = minSaved
	}
	if s.saved(r, older) < progress {
		return false, nil
	}
	if r.Summary, err = s.summarise(ctx, older); err != nil {
		return false, err
	}
	return true, s.record(r, notice("The context was almost full; the older part of the conversation was summarised."))
}

// maxSummary is the maximum size of a summary in tokens.
func (s *Session) maxSummary() int { return s.window() / 8 }

// planCondensation returns the record of a condensation, without the summary. It lowers the token
// limit for recent messages until 40% of the context is free. If no limit frees enough, the
// condensation keeps no recent messages.
func (s *Session) planCondensation(ctx context.Context) turnlog.Record {
	window, history := s.window(), s.state.history
	r := turnlog.Record{Kind: turnlog.KindCondensed, MaxFirst: window / 16 * charactersPerToken}
	fixed := s.overhead(ctx) + s.maxSummary() + estimate(s.state.head(r))
	for _, bound := range []int{window / 4, window / 8, window / 16} {
		r.Keep = messagesToKeep(history, bound)
		if fixed+estimate(history[len(history)-r.Keep:]) <= window/10*6 {
			return r
		}
	}
	r.Keep = 0
	return r
}

// saved estimates how many tokens a condensation saves: the size of the older messages, minus the
// size of the summary, minus the size of the user messages that the condensation keeps. The summary
// does not exist yet. Its assumed size is a quarter of the older messages, at most maxSummary.
func (s *Session) saved(r turnlog.Record, older []llm.Message) int {
	stays := estimate(s.state.head(r))
	if s.state.latestAt >= len(older) {
		stays -= estimate([]llm.Message{s.state.latestMessage()})
	}
	return estimate(older) - stays - min(s.maxSummary(), estimate(older)/4)
}

// summarise asks the model for a summary of the older messages. If the provider refuses this
// request as too long, summarise tries again with a shorter transcript.
func (s *Session) summarise(ctx context.Context, older []llm.Message) (string, error) {
	latest := s.state.latestMessage().Text()
	limit := max(s.window()/8, s.window()/2-len(latest)/charactersPerToken) * charactersPerToken
	for attempt := 1; ; attempt++ {
		summary, err := s.ask(ctx, llm.Request{System: summaryPrompt, Window: s.window(),
			Messages: []llm.Message{{Role: llm.User, Parts: []llm.Part{
				{Text: fmt.Sprintf("Summarise this conversation, in at most %d words:\n\n%s", min(maxWords, s.maxSummary()/2),
					s.transcript(older, limit))},
				{Text: "The agent keeps the user's latest message, so do not repeat it:\n\n" + latest},
			}}}}, func() llm.Sink { return func(_, _ string) {} })
		failure, _ := errors.AsType[*llm.Error](err)
		if failure != nil && failure.Kind == llm.Context && attempt < maxSummaries {
			limit /= 2
			continue
		}
		if err != nil {
			return "", err
		}
		text := strings.TrimSpace(summary.Message.Text())
		if text == "" {
			return "", &llm.Error{Kind: llm.Context, Message: "The model's context is full, and the model gave no summary of " +
				"the history."}
		}
		return tools.Cut(text, s.maxSummary()*charactersPerToken), nil
	}
}

// messagesToKeep returns how many recent messages a condensation keeps. The parameter bound limits
// the tokens of these messages. A condensation keeps at most half of the exchanges. It keeps only
// complete exchanges, so that results stay with their calls.
func messagesToKeep(history []llm.Message, bound int) int {
	var starts []int
	for i := len(history) - 1; i > 0; i-- {
		if history[i].Role == llm.Assistant || history[i].Parts[0].Result == nil {
			starts = append(starts, i)
		}
	}
	keep := 0
	for n, start := range starts {
		if n >= min(maxKeptExchanges, len(starts)/2) || estimate(history[start:]) > bound {
			break
		}
		keep = len(history) - start
	}
	return keep
}

// transcript converts messages into a text of at most limit characters. It leaves out the user's
// latest message.
func (s *Session) transcript(messages []llm.Message, limit int) string {
	var b strings.Builder
	for _, message := range messages {
		for _, part := range message.Parts {
			switch {
			case part.Call != nil:
				fmt.Fprintf(&b, "AGENT CALLS %s: %s\n", part.Call.Name, tools.Cut(part.Call.Input, maxCondensedOutput))
			case part.Result != nil:
				fmt.Fprintf(&b, "RESULT: %s\n", tools.Cut(part.Result.Text, maxCondensedOutput))
			case part.Image != nil:
				b.WriteString("[an image]\n")
			case part.Text != "" && message.Role == llm.Assistant:
				fmt.Fprintf(&b, "AGENT: %s\n", part.Text)
			case part.Text != "" && !s.state.isLatest(part) && !s.state.isInstruction(part):
				fmt.Fprintf(&b, "USER: %s\n", part.Text)
			}
		}
	}
	return tools.Cut(b.String(), limit)
}

func (s *state) isLatest(part llm.Part) bool {
	for _, p := range s.latestMessage().Parts {
		if reflect.DeepEqual(p, part) {
			return true
		}
	}
	return false
}

const summaryHeading = "The older part of this conversation was summarised to save space. The summary:\n\n"

// head returns one message with the user's texts that a condensation keeps: the beginning and the
// end of the first message, and the whole latest message.
func (s *state) head(r turnlog.Record) []llm.Message {
	head := llm.Message{Role: llm.User}
	switch {
	case s.first == nil || s.first == s.latest:
	case r.MaxFirst == 0: // written by an earlier version
		head.Parts = append(head.Parts, s.first.Parts...)
	default:
		head.Parts = append(head.Parts, llm.Part{Text: tools.Cut(s.first.Text(), r.MaxFirst)})
	}
	head.Parts = append(head.Parts, s.latestMessage().Parts...)
	return []llm.Message{head}
}

// condense keeps the last r.Keep messages. It replaces all earlier messages with the user's first
// and latest messages and the summary.
func (s *state) condense(r turnlog.Record) {
	cut := len(s.history) - r.Keep
	head := s.head(r)[0]
	if s.latestAt >= cut {
		head.Parts = head.Parts[:len(head.Parts)-len(s.latestMessage().Parts)]
	}
	s.latestAt = max(0, s.latestAt-cut+1)
	head.Parts = append(head.Parts, llm.Part{Text: summaryHeading + r.Summary})
	s.history = append([]llm.Message{head}, s.history[cut:]...)
	s.used, s.usedAt = 0, 0
	s.forget()
}
