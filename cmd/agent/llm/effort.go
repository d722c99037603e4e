package llm

import (
	"regexp"
	"slices"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"
)

// thinkingBudgets maps each reasoning effort to the number of tokens that Claude may spend on
// thinking. The answer has its own limit.
var thinkingBudgets = map[string]int64{"minimal": 1024, "low": 2048, "medium": 6000, "high": 12000, "xhigh": 16000}

// takesBudget matches the Claude models that take a thinking budget in tokens. Later models take
// the name of an effort instead.
var takesBudget = regexp.MustCompile(`claude-(3-7|(opus|sonnet|haiku)-4($|[-@](0|1|5|20)))`)

var efforts = map[string]anthropic.OutputConfigEffort{
	"minimal": anthropic.OutputConfigEffortLow, "low": anthropic.OutputConfigEffortLow,
	"medium": anthropic.OutputConfigEffortMedium, "high": anthropic.OutputConfigEffortHigh,
	"xhigh": anthropic.OutputConfigEffortXhigh,
}

// setEffort sets the reasoning effort, which enables thinking. It sets the temperature only if
// thinking stays off, because Claude rejects both together.
func (m *anthropicModel) setEffort(p *anthropic.MessageNewParams, messages []Message) {
	effort, known := efforts[m.effort]
	budget := takesBudget.MatchString(m.name)
	switch {
	case known && !budget:
		p.OutputConfig.Effort = effort
		p.Thinking.OfAdaptive = &anthropic.ThinkingConfigAdaptiveParam{}
		return
	case known && mayThink(messages):
		p.Thinking = anthropic.ThinkingConfigParamOfEnabled(thinkingBudgets[m.effort])
		p.MaxTokens += thinkingBudgets[m.effort]
		return
	}
	if m.temperature != nil {
		p.Temperature = param.NewOpt(min(1, *m.temperature))
	}
}

// mayThink reports whether a request with these messages may enable thinking. If the messages end
// with tool results, Claude accepts thinking only if the message with the tool calls begins with
// signed or redacted thinking. Messages of other models, and messages replayed from recordings,
// contain no such thinking, so mayThink returns false if tool results follow them.
func mayThink(messages []Message) bool {
	results := false
	for _, message := range slices.Backward(messages) {
		if message.Role == Assistant && len(message.Parts) > 0 {
			first := message.Parts[0].Thinking
			return !results || first != nil && (first.Signature != "" || first.Redacted != "")
		}
		results = results || slices.ContainsFunc(message.Parts, func(p Part) bool { return p.Result != nil })
	}
	return true
}
