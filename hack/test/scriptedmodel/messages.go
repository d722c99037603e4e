package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// messagesWire is Anthropic's messages API.
type messagesWire struct{}

func (messagesWire) name() Wire { return Messages }

func (messagesWire) read(header http.Header, o object) (*Request, []string) {
	request, wrong := &Request{}, findings{}
	if header.Get("anthropic-version") == "" {
		wrong.add("anthropic-version: header is required")
	}
	request.Model, request.Stream = str(o["model"]), o["stream"] == true
	if request.Model == "" {
		wrong.add("model: Field required")
	}
	limit, ok := o["max_tokens"].(float64)
	if !ok || limit < 1 {
		wrong.add("max_tokens: Field required")
	}
	request.MaxTokens = int(limit)
	request.System = anthropicSystem(o["system"], &wrong)
	request.Tools = anthropicTools(o["tools"], &wrong)
	anthropicSampling(o, &wrong)
	var later string
	request.Turns, later = anthropicTurns(list(o["messages"]), &wrong)
	request.System += later
	checkImages(list(o["messages"]), request, &wrong)
	for _, turn := range request.Turns {
		if len(turn.Calls)+len(turn.Results) > 0 && len(request.Tools) == 0 {
			wrong.add("requests which include `tool_use` or `tool_result` blocks must define tools")
			break
		}
	}
	if n := strings.Count(string(encode(o)), `"cache_control":{`); n > 4 {
		wrong.add("a maximum of 4 blocks with cache_control may be provided. Found %d", n)
	}
	return request, wrong
}

func checkImages(messages []any, request *Request, wrong *findings) {
	images := 0
	for _, turn := range request.Turns {
		images += turn.Images
	}
	for i, m := range messages {
		for j, b := range list(obj(m)["content"]) {
			block := obj(b)
			for k, part := range append([]any{block}, list(block["content"])...) {
				if str(obj(part)["type"]) != "image" {
					continue
				}
				at := fmt.Sprintf("messages.%d.content.%d.image", i, j)
				if k > 0 {
					at = fmt.Sprintf("messages.%d.content.%d.tool_result.content.%d.image", i, j, k-1)
				}
				if fault := imageFault(obj(obj(part)["source"]), images); fault != "" {
					wrong.add("%s%s", at, fault)
				}
			}
		}
	}
}

func anthropicSystem(v any, wrong *findings) string {
	if isString(v) {
		return str(v)
	}
	var texts []string
	for i, block := range list(v) {
		text := str(obj(block)["text"])
		if str(obj(block)["type"]) != "text" || text == "" {
			wrong.add("system.%d: text content blocks must be non-empty", i)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "\n")
}

func anthropicTools(v any, wrong *findings) []Tool {
	var tools []Tool
	names := map[string]bool{}
	for i, t := range list(v) {
		tool := obj(t)
		name := str(tool["name"])
		if kind := str(tool["type"]); kind == "" || kind == "custom" {
			if fault := schemaFault(tool["input_schema"], "oneOf", "allOf", "anyOf"); fault != "" {
				wrong.add("tools.%d.custom.input_schema: %s", i, fault)
			}
			for key := range obj(obj(tool["input_schema"])["properties"]) {
				if !propertyKey.MatchString(key) {
					wrong.add("tools.%d.custom.input_schema.properties: Property keys should match pattern "+
						"'^[a-zA-Z0-9_.-]{1,64}$'", i)
				}
			}
			if !longToolName.MatchString(name) {
				wrong.add("tools.%d.custom.name: string should match pattern '^[a-zA-Z0-9_-]{1,128}$'", i)
			}
		}
		if names[name] {
			wrong.add("tools: tool names must be unique")
		}
		names[name] = true
		tools = append(tools, Tool{Name: name, Description: str(tool["description"]), Schema: encode(tool["input_schema"])})
	}
	return tools
}

// anthropicTurns reads the messages. It returns the text of system messages separately.
func anthropicTurns(messages []any, wrong *findings) (turns []Turn, system string) {
	if len(messages) == 0 {
		wrong.add("messages: at least one message is required")
		return nil, ""
	}
	ids := map[string]bool{}
	for i, m := range messages {
		message := obj(m)
		turn := Turn{Role: str(message["role"])}
		fromSystem := turn.Role == "system"
		if turn.Role != "user" && turn.Role != "assistant" && !fromSystem {
			wrong.add("messages.%d.role: Input should be 'user' or 'assistant'", i)
		}
		content := list(message["content"])
		if isString(message["content"]) {
			content = []any{object{"type": "text", "text": message["content"]}}
		}
		if len(content) == 0 {
			wrong.add("messages.%d: all messages must have non-empty content", i)
		}
		for j, block := range content {
			anthropicBlock(obj(block), &turn, i, j, wrong)
		}
		if fromSystem {
			system += "\n" + turn.Text
			continue
		}
		for _, call := range turn.Calls {
			if ids[call.ID] {
				wrong.add("messages.%d: `tool_use` ids must be unique", i)
			}
			ids[call.ID] = true
		}
		var before Turn
		if len(turns) > 0 {
			before = turns[len(turns)-1]
		}
		anthropicPairs(i, before, turn, wrong)
		turns = append(turns, turn)
	}
	if len(turns) == 0 || turns[0].Role != "user" {
		wrong.add("messages: first message must use the \"user\" role")
	}
	if len(turns) > 0 && turns[len(turns)-1].Role == "assistant" {
		wrong.add("this model does not support assistant message prefill: the conversation must end with a user message")
	}
	return turns, system
}

func anthropicBlock(block object, turn *Turn, i, j int, wrong *findings) {
	switch kind := str(block["type"]); kind {
	case "text":
		if strings.TrimSpace(str(block["text"])) == "" {
			wrong.add("messages.%d.content.%d: text content blocks must be non-empty", i, j)
		}
		turn.Text += str(block["text"])
	case "image":
		turn.Images++
	case "tool_use":
		if obj(block["input"]) == nil {
			wrong.add("messages.%d.content.%d.tool_use.input: Input should be a valid dictionary", i, j)
		}
		if !longToolName.MatchString(str(block["name"])) {
			wrong.add("messages.%d.content.%d.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'", i, j)
		}
		if !callID.MatchString(str(block["id"])) {
			wrong.add("messages.%d.content.%d.tool_use.id: string should match pattern '^[a-zA-Z0-9_-]+$'", i, j)
		}
		if turn.Role != "assistant" {
			wrong.add("messages.%d: `tool_use` blocks can only be in `assistant` messages", i)
		}
		turn.Calls = append(turn.Calls, Call{ID: str(block["id"]), Name: str(block["name"]), Input: encode(block["input"])})
	case "tool_result":
		if turn.Role != "user" {
			wrong.add("messages.%d: `tool_result` blocks can only be in `user` messages", i)
		}
		if j > 0 && len(turn.Results) < j {
			wrong.add("messages.%d: `tool_result` blocks must come first in the content of a message", i)
		}
		turn.Results = append(turn.Results, anthropicResult(block, turn, i, j, wrong))
	case "thinking":
		if str(block["signature"]) == "" {
			wrong.add("messages.%d.content.%d.thinking.signature: Field required", i, j)
		}
	case "tool_addition", "tool_removal":
		if turn.Role != "system" {
			wrong.add("messages.%d: `%s` blocks can only be in `system` messages", i, kind)
		}
	case "redacted_thinking", "document", "search_result", "server_tool_use", "web_search_tool_result":
	default:
		wrong.add("messages.%d.content.%d: Input tag %q found using 'type' does not match any of the expected tags", i, j,
			kind)
	}
}

func anthropicResult(block object, turn *Turn, i, j int, wrong *findings) Result {
	result := Result{ID: str(block["tool_use_id"]), IsError: block["is_error"] == true, Text: str(block["content"])}
	for k, part := range list(block["content"]) {
		switch p := obj(part); str(p["type"]) {
		case "text":
			if str(p["text"]) == "" {
				wrong.add("messages.%d.content.%d.tool_result.content.%d: text content blocks must be non-empty", i, j, k)
			}
			result.Text += str(p["text"])
		case "image":
			turn.Images++
		default:
			wrong.add("messages.%d.content.%d.tool_result.content.%d: unknown type", i, j, k)
		}
	}
	return result
}

// anthropicPairs checks that a message has exactly one result for each call of the previous
// message.
func anthropicPairs(i int, before, turn Turn, wrong *findings) {
	answered := map[string]bool{}
	for _, result := range turn.Results {
		if answered[result.ID] {
			wrong.add("messages.%d: each tool_use must have a single result, found several for %s", i, result.ID)
		}
		answered[result.ID] = true
		if !slices.ContainsFunc(before.Calls, func(c Call) bool { return c.ID == result.ID }) {
			wrong.add("messages.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s", i, result.ID)
		}
	}
	for _, call := range before.Calls {
		if !answered[call.ID] {
			wrong.add("messages.%d: `tool_use` ids were found without `tool_result` blocks immediately after: %s", i-1, call.ID)
		}
	}
}

func (a answer) anthropicBlocks() []object {
	var blocks []object
	if a.Thinking != "" {
		blocks = append(blocks, object{"type": "thinking", "thinking": a.Thinking, "signature": "c2NyaXB0ZWQ="})
	}
	if a.Text != "" {
		blocks = append(blocks, object{"type": "text", "text": a.Text})
	}
	for _, call := range a.Calls {
		blocks = append(blocks, object{"type": "tool_use", "id": call.ID, "name": call.Name, "input": call.Input})
	}
	return blocks
}

func (a answer) anthropicUsage() object {
	u := a.usage()
	return object{"input_tokens": u.Input - u.Cached, "cache_read_input_tokens": u.Cached,
		"cache_creation_input_tokens": 0, "output_tokens": u.Output}
}

func (a answer) anthropicStop() string {
	switch {
	case a.Cut:
		return "max_tokens"
	case len(a.Calls) > 0:
		return "tool_use"
	}
	return "end_turn"
}

func (messagesWire) whole(w http.ResponseWriter, a answer) {
	writeJSON(w, http.StatusOK, object{"id": "msg_scripted", "type": "message", "role": "assistant", "model": a.model,
		"content": a.anthropicBlocks(), "stop_reason": a.anthropicStop(), "stop_sequence": nil, "usage": a.anthropicUsage()})
}

func (messagesWire) stream(s *events, a answer) {
	usage := a.anthropicUsage()
	s.event("message_start", object{"type": "message_start", "message": object{"id": "msg_scripted", "type": "message",
		"role":  "assistant",
		"model": a.model, "content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": usage}})
	s.event("ping", object{"type": "ping"})
	for i, block := range a.anthropicBlocks() {
		start := maps.Clone(block)
		var deltas []object
		switch str(block["type"]) {
		case "text":
			start["text"] = ""
			for _, p := range pieces(a.Text) {
				deltas = append(deltas, object{"type": "text_delta", "text": p})
			}
		case "thinking":
			start["thinking"], start["signature"] = "", ""
			for _, p := range pieces(a.Thinking) {
				deltas = append(deltas, object{"type": "thinking_delta", "thinking": p})
			}
			deltas = append(deltas, object{"type": "signature_delta", "signature": block["signature"]})
		case "tool_use":
			start["input"] = object{}
			for _, p := range pieces(string(block["input"].(json.RawMessage))) {
				deltas = append(deltas, object{"type": "input_json_delta", "partial_json": p})
			}
		}
		s.event("content_block_start", object{"type": "content_block_start", "index": i, "content_block": start})
		for _, delta := range deltas {
			s.event("content_block_delta", object{"type": "content_block_delta", "index": i, "delta": delta})
		}
		s.event("content_block_stop", object{"type": "content_block_stop", "index": i})
	}
	s.event("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": a.anthropicStop(),
		"stop_sequence": nil}, "usage": usage})
	s.event("message_stop", object{"type": "message_stop"})
}
