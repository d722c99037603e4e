package llm

import (
	"regexp"
	"slices"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"
)

// thinkingBudgets are the tokens that Claude may think for an effort, in addition to the answer.
var thinkingBudgets = map[string]int64{"minimal": 1024, "low": 2048, "medium": 6000, "high": 12000, "xhigh": 16000}

// takesBudget matches the models of Claude whose thinking has a budget. Later models think as much
// as an effort suggests.
var takesBudget = regexp.MustCompile(`claude-(3-7|(opus|sonnet|haiku)-4($|[-@](0|1|5|20)))`)

// efforts are Anthropic's names of efforts.
var efforts = map[string]anthropic.OutputConfigEffort{
	"minimal": anthropic.OutputConfigEffortLow, "low": anthropic.OutputConfigEffortLow,
	"medium": anthropic.OutputConfigEffortMedium, "high": anthropic.OutputConfigEffortHigh,
	"xhigh": anthropic.OutputConfigEffortXhigh,
}

// setEffort sets the reasoning effort and the temperature. Claude accepts no temperature while it
// thinks.
func (m *anthropicModel) setEffort(p *anthropic.MessageNewParams, messages []Message) {
	effort, known := efforts[m.effort]
	budget := takesBudget.MatchString(m.name)
	switch {
	case known && !budget:
		p.OutputConfig.Effort = effort
		p.Thinking.OfAdaptive = &anthropic.ThinkingConfigAdaptiveParam{}
		return
	case known && signed(messages):
		p.Thinking = anthropic.ThinkingConfigParamOfEnabled(thinkingBudgets[m.effort])
		p.MaxTokens += thinkingBudgets[m.effort]
		return
	}
	if m.temperature != nil {
		p.Temperature = param.NewOpt(min(1, *m.temperature))
	}
}

// signed reports whether the model may think: if it made the last calls, it began with signed
// thinking. Calls of another model or of a recording have none.
func signed(messages []Message) bool {
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
