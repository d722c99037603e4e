package scriptedmodel

import (
	"slices"
	"strings"
)

// Each rule in this file applies to only one provider. With the chat completions API, Gemini 3
// requires clients to return its thought signatures. OpenAI refuses unknown fields.

// Google accepts skipSignature in place of a signature for calls that another model made.
const skipSignature = "skip_thought_signature_validator"

func needsSignature(model string) bool { return strings.Contains(model, "gemini-3") }

// signature returns the extra_content that Gemini adds to a call.
func signature(id string) object {
	return object{"google": object{"thought_signature": "signature of " + id}}
}

// chatExtras checks the field extra_content of tool calls.
func chatExtras(model string, calls []any, i int, wrong *findings) {
	for j, c := range calls {
		call := obj(c)
		switch given := str(obj(obj(call["extra_content"])["google"])["thought_signature"]); {
		case !needsSignature(model) && has(call, "extra_content"):
			wrong.add("Unknown parameter: 'messages[%d].tool_calls[%d].extra_content'.", i, j)
		case needsSignature(model) && j == 0 && given != "signature of "+str(call["id"]) && given != skipSignature:
			wrong.add("Function call is missing a thought_signature in functionCall parts. This is required for tools to work "+
				"correctly. Function call `default_api:%s`, position %d.", str(obj(call["function"])["name"]), i)
		}
	}
}

func chatSampling(o object, wrong *findings) {
	model := str(o["model"])
	temperature, given := o["temperature"].(float64)
	reasons := strings.HasPrefix(model, "gpt-5") || strings.HasPrefix(model, "o3")
	switch {
	case given && (temperature < 0 || temperature > 2):
		wrong.add("Invalid 'temperature': decimal out of range.")
	case given && reasons && temperature != 1:
		wrong.add("Unsupported value: 'temperature' does not support %v with this model. Only the default (1) value is "+
			"supported.", temperature)
	}
	if effort := str(o["reasoning_effort"]); has(o, "reasoning_effort") && !slices.Contains([]string{"none", "minimal",
		"low", "medium", "high", "xhigh"}, effort) {
		wrong.add("Invalid value: '%s'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high' and 'xhigh'.",
			effort)
	}
}

func anthropicSampling(o object, wrong *findings) {
	temperature, given := o["temperature"].(float64)
	if given && (temperature < 0 || temperature > 1) {
		wrong.add("temperature: range: 0..1")
	}
	thinking := obj(o["thinking"])
	if str(thinking["type"]) != "enabled" {
		return
	}
	budget, _ := thinking["budget_tokens"].(float64)
	limit, _ := o["max_tokens"].(float64)
	switch {
	case budget < 1024:
		wrong.add("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
	case limit <= budget:
		wrong.add("`max_tokens` must be greater than `thinking.budget_tokens`")
	case given && temperature != 1:
		wrong.add("`temperature` may only be set to 1 when thinking is enabled")
	}
	messages := list(o["messages"])
	if n := len(messages); n > 1 && slices.ContainsFunc(list(obj(messages[n-1])["content"]), isType("tool_result")) {
		if blocks := list(obj(messages[n-2])["content"]); len(blocks) > 0 && !isType("thinking")(blocks[0]) &&
			!isType("redacted_thinking")(blocks[0]) {
			wrong.add("messages.%d.content.0.type: Expected `thinking` or `redacted_thinking`, but found `%s`. When `thinking` "+
				"is enabled, a final `assistant` message must start with a thinking block", n-2, str(obj(blocks[0])["type"]))
		}
	}
}

func isType(kind string) func(any) bool {
	return func(block any) bool { return str(obj(block)["type"]) == kind }
}
