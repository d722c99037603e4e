package loop

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

const (
	// defaultWindow is the assumed context window if it is unknown, in tokens.
	defaultWindow = 128_000
	// charactersPerToken is a low value, so that the estimated number of tokens is rather too high.
	charactersPerToken = 3
	tokensPerImage     = 1500
	// maxKeptExchanges limits the number of recent exchanges (an answer and its calls' results) that
	// are not summarised.
	maxKeptExchanges = 3
	// maxCondensedOutput limits each input and output of a tool in the text that the model summarises,
	// in characters.
	maxCondensedOutput = 2000
)

const summaryPrompt = `You summarise the work of a coding agent, so that it can continue without the older part of ` +
	`its conversation. Write for the agent, in plain text, without a preface:
what the user wants, with all conditions that were stated; what was done and found, with names of files, functions ` +
	`and commands; what was decided and why; what failed; what is left to do. Include everything that the rest of ` +
	`the work needs, and nothing else.`

func (s *Session) window() int { return cmp.Or(max(0, s.options.ContextWindow), defaultWindow) }

// contextFull reports whether the context is 80% full. It adds an estimate of later messages to the
// usage that the model last reported.
func (s *Session) contextFull() bool {
	return (s.state.used+estimate(s.state.history[s.state.usedAt:]))*10 > s.window()*8
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
			case part.Result != nil:
				characters += len(part.Result.Text)
				images += len(part.Result.Images)
			}
		}
	}
	return characters/charactersPerToken + images*tokensPerImage
}

// condense summarises the older part of the history, if that is enabled.
func (s *Session) condense(ctx context.Context) error {
	if !s.options.Condense {
		return &llm.Error{Kind: llm.Context, Message: "The model's context is almost full, and summarising the history " +
			"is turned off."}
	}
	keep := messagesToKeep(s.state.history, s.window()/4)
	older := s.state.history[:len(s.state.history)-keep]
	summary, err := s.ask(ctx, llm.Request{
		System:   summaryPrompt,
		Messages: []llm.Message{{Role: llm.User, Parts: []llm.Part{{Text: s.transcript(older)}}}},
	}, func() llm.Sink { return func(_, _ string) {} })
	if err != nil {
		return err
	}
	text := strings.TrimSpace(summary.Message.Text())
	if text == "" {
		return &llm.Error{Kind: llm.Context, Message: "The model's context is full, and the model gave no summary of " +
			"the history."}
	}
	return s.record(turnlog.Record{Kind: turnlog.KindCondensed, Summary: text, Keep: keep},
		acp.Update{Kind: acp.ThoughtChunk, Content: acp.Text("The context was almost full; the older part of the " +
			"conversation was summarised.")})
}

// messagesToKeep returns the number of recent messages to keep: at most half of the exchanges.
// bound limits their tokens. Only complete exchanges are kept, so results are never separated from
// their calls.
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

// transcript converts messages into a text that is short enough for a summary.
func (s *Session) transcript(messages []llm.Message) string {
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
			case part.Text != "":
				fmt.Fprintf(&b, "USER: %s\n", part.Text)
			}
		}
	}
	return "Summarise this conversation:\n\n" + tools.Cut(b.String(), s.window()/2*charactersPerToken)
}
