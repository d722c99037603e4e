package llm

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/respjson"
)

// These fields in answers of the chat completions API must be sent back unchanged. They contain
// signatures or signed reasoning. Google, LiteLLM and OpenRouter use different fields.
var (
	callFields    = []string{"extra_content", "provider_specific_fields"}
	messageFields = []string{"extra_content", "reasoning_details", "thinking_blocks"}
)

// Returned contains fields of a model's message or call. Later requests to the same model must send
// these fields back.
type Returned map[string]json.RawMessage

// take adds the named fields of a streamed chunk. A list is appended to the list of earlier chunks;
// any other value replaces the earlier value.
func (r *Returned) take(names []string, fields map[string]respjson.Field) {
	for _, name := range names {
		field, ok := fields[name]
		value := field.Raw()
		if !ok || value == "" || value == "null" || value == "[]" || value == "{}" {
			continue
		}
		if *r == nil {
			*r = Returned{}
		}
		(*r)[name] = joinItems((*r)[name], json.RawMessage(value))
	}
}

// joinItems appends the items of a streamed list to the earlier items. An item may arrive in
// pieces. A piece is joined with the last item if both have the same type and index, and the last
// item has no signature yet. A signature completes an item.
func joinItems(before, value json.RawMessage) json.RawMessage {
	var items, more []map[string]any
	if json.Unmarshal(before, &items) != nil || json.Unmarshal(value, &more) != nil {
		return value
	}
	for _, item := range more {
		last := len(items) - 1
		if last < 0 || items[last]["type"] != item["type"] || items[last]["index"] != item["index"] ||
			text(items[last]["signature"]) != "" {
			items = append(items, item)
			continue
		}
		for key, now := range item {
			switch key {
			case "text", "thinking", "summary", "data":
				items[last][key] = text(items[last][key]) + text(now)
			default:
				if now != nil && now != "" {
					items[last][key] = now
				}
			}
		}
	}
	joined, _ := json.Marshal(items) // cannot fail: the items come from JSON
	return joined
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func (r Returned) add(extra map[string]any) {
	for name, value := range r {
		extra[name] = value
	}
}

// unsigned is the placeholder that Google accepts instead of a signature, for a call that no Gemini
// model made.
const unsigned = `{"google":{"thought_signature":"skip_thought_signature_validator"}}`

// extraOfCall returns the extra fields of a call in a request to this model. If own is set, the
// same model made the call, and gets the call's Returned fields back. Gemini 3 requires a signature
// in the first call of a message. If that call has no extra fields, extraOfCall adds the
// placeholder from the constant unsigned.
func (m *openAIModel) extraOfCall(call *Call, first, own bool) map[string]any {
	extra := map[string]any{}
	if own {
		call.Returned.add(extra)
	}
	if first && len(extra) == 0 && strings.Contains(m.name, "gemini-3") {
		extra["extra_content"] = json.RawMessage(unsigned)
	}
	return extra
}

// cacheMark marks the end of a prefix that Claude caches. It also works if Claude is called through
// a gateway.
var cacheMark = map[string]any{"cache_control": map[string]string{"type": "ephemeral"}}

// markCache adds cache marks to the system prompt and to the last message.
func markCache(messages []openai.ChatCompletionMessageParamUnion) {
	for i, message := range messages {
		if i > 0 && i < len(messages)-1 {
			continue
		}
		switch {
		case message.OfSystem != nil:
			part := openai.ChatCompletionContentPartTextParam{Text: message.OfSystem.Content.OfString.Value}
			part.SetExtraFields(maps.Clone(cacheMark))
			message.OfSystem.Content = openai.ChatCompletionSystemMessageParamContentUnion{
				OfArrayOfContentParts: []openai.ChatCompletionContentPartTextParam{part}}
		case message.OfTool != nil:
			part := openai.ChatCompletionContentPartTextParam{Text: message.OfTool.Content.OfString.Value}
			part.SetExtraFields(maps.Clone(cacheMark))
			message.OfTool.Content = openai.ChatCompletionToolMessageParamContentUnion{
				OfArrayOfContentParts: []openai.ChatCompletionContentPartTextParam{part}}
		case message.OfUser != nil && len(message.OfUser.Content.OfArrayOfContentParts) > 0:
			parts := message.OfUser.Content.OfArrayOfContentParts
			switch last := parts[len(parts)-1]; {
			case last.OfText != nil:
				last.OfText.SetExtraFields(maps.Clone(cacheMark))
			case last.OfImageURL != nil:
				last.OfImageURL.SetExtraFields(maps.Clone(cacheMark))
			}
		}
	}
}
