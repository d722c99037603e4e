package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// chatWire is OpenAI's chat completions API.
type chatWire struct{}

func (chatWire) name() Wire { return ChatCompletions }

func (chatWire) read(_ http.Header, o object) (*Request, []string) {
	request, wrong := &Request{}, findings{}
	request.Model, request.Stream = str(o["model"]), o["stream"] == true
	if request.Model == "" {
		wrong.add("you must provide a model parameter")
	}
	if has(o, "stream_options") && !request.Stream {
		wrong.add("the 'stream_options' parameter is only allowed when 'stream' is enabled")
	}
	if has(o, "tools") && len(list(o["tools"])) == 0 {
		wrong.add("[] is too short - 'tools'")
	}
	if n := len(list(o["tools"])); n > maxTools {
		wrong.add("Invalid 'tools': array too long. Expected an array with maximum length %d, but got an array with length "+
			"%d instead.", maxTools, n)
	}
	limit, _ := o["max_completion_tokens"].(float64)
	request.MaxTokens = int(limit)
	for i, t := range list(o["tools"]) {
		tool := obj(t)
		if kind := str(tool["type"]); kind != "function" && kind != "custom" {
			wrong.add("tools[%d].type: invalid value", i)
		}
		request.Tools = append(request.Tools, openAITool(fmt.Sprintf("tools[%d].function", i), obj(tool[str(tool["type"])]),
			&wrong))
	}
	chatSampling(o, &wrong)
	messages := list(o["messages"])
	if len(messages) == 0 {
		wrong.add("[] is too short - 'messages'")
	}
	waiting := map[string]bool{}
	for i, m := range messages {
		chatMessage(request, obj(m), i, waiting, &wrong)
	}
	missing(waiting, &wrong)
	return request, wrong
}

func openAITool(at string, f object, wrong *findings) Tool {
	name := str(f["name"])
	if !shortToolName.MatchString(name) {
		wrong.add("invalid '%s.name': string does not match pattern '^[a-zA-Z0-9_-]{1,64}$'", at)
	}
	if has(f, "parameters") {
		if fault := schemaFault(f["parameters"], "oneOf", "anyOf", "allOf", "enum", "not"); fault != "" {
			wrong.add("invalid schema for function '%s': %s", name, fault)
		}
	}
	return Tool{Name: name, Description: str(f["description"]), Schema: encode(f["parameters"])}
}

func missing(waiting map[string]bool, wrong *findings) {
	for id := range waiting {
		wrong.add("an assistant message with 'tool_calls' must be followed by tool messages responding to each "+
			"'tool_call_id'. "+
			"The following tool_call_ids did not have response messages: %s", id)
	}
	clear(waiting)
}

// chatMessage reads a message. The map waiting contains the IDs of tool calls without a result.
func chatMessage(request *Request, message object, i int, waiting map[string]bool, wrong *findings) {
	turn := Turn{Role: str(message["role"])}
	if turn.Role != "tool" {
		missing(waiting, wrong)
	}
	calls := list(message["tool_calls"])
	chatContent(message["content"], &turn, i, len(calls) > 0, wrong)
	switch turn.Role {
	case "system", "developer":
		request.System += turn.Text
		return
	case "user":
	case "assistant":
		if has(message, "tool_calls") && len(calls) == 0 {
			wrong.add("[] is too short - 'messages.%d.tool_calls'", i)
		}
		chatExtras(request.Model, calls, i, wrong)
		for j, c := range calls {
			call, f := obj(c), obj(obj(c)["function"])
			id := str(call["id"])
			if id == "" || str(call["type"]) != "function" || !isString(f["arguments"]) ||
				!shortToolName.MatchString(str(f["name"])) {
				wrong.add("invalid 'messages[%d].tool_calls[%d]': id, type, function.name and function.arguments are required", i,
					j)
			}
			if waiting[id] {
				wrong.add("duplicate value for 'tool_call_id' of '%s' in messages[%d]", id, i)
			}
			waiting[id] = true
			turn.Calls = append(turn.Calls, Call{ID: id, Name: str(f["name"]), Input: json.RawMessage(str(f["arguments"]))})
		}
	case "tool":
		id := str(message["tool_call_id"])
		if !waiting[id] {
			wrong.add("messages with role 'tool' must be a response to a preceding message with 'tool_calls': messages[%d], %q",
				i, id)
		}
		delete(waiting, id)
		turn.Results = []Result{{ID: id, Text: turn.Text}}
		turn.Text = ""
	default:
		wrong.add("invalid value for 'messages[%d].role': %q", i, turn.Role)
	}
	request.Turns = append(request.Turns, turn)
}

func chatContent(content any, turn *Turn, i int, mayLack bool, wrong *findings) {
	switch c := content.(type) {
	case string:
		turn.Text = c
	case []any:
		if len(c) == 0 {
			wrong.add("[] is too short - 'messages.%d.content'", i)
		}
		for j, p := range c {
			part := obj(p)
			switch kind := str(part["type"]); {
			case kind == "text":
				turn.Text += str(part["text"])
			case kind == "refusal" && turn.Role == "assistant":
			case kind == "image_url" && turn.Role == "user":
				turn.Images++
				if fault := imageURLFault(str(obj(part["image_url"])["url"])); fault != "" {
					wrong.add("invalid 'messages[%d].content[%d].image_url.url': %s", i, j, fault)
				}
			default:
				wrong.add("invalid value for 'messages[%d].content[%d].type': %q is not supported for role %q", i, j, kind,
					turn.Role)
			}
		}
	default:
		if !mayLack || turn.Role != "assistant" {
			wrong.add("invalid value for 'content' of messages[%d]: expected a string, got null", i)
		}
	}
}

func (a answer) chatUsage() object {
	u := a.usage()
	return object{"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details": object{"cached_tokens": u.Cached}}
}

func (a answer) chatFinish() string {
	switch {
	case a.Cut:
		return "length"
	case len(a.Calls) > 0:
		return "tool_calls"
	}
	return "stop"
}

func (chatWire) whole(w http.ResponseWriter, a answer) {
	message := object{"role": "assistant", "content": nil}
	if a.Text != "" {
		message["content"] = a.Text
	}
	var calls []object
	for _, call := range a.Calls {
		calls = append(calls, object{"id": call.ID, "type": "function", "function": object{"name": call.Name,
			"arguments": string(call.Input)}})
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	writeJSON(w, http.StatusOK, object{"id": a.chatID(), "object": "chat.completion", "created": 0, "model": a.model,
		"choices": []any{object{"index": 0, "message": message, "finish_reason": a.chatFinish()}}, "usage": a.chatUsage()})
}

func (a answer) chatID() string { return fmt.Sprintf("chatcmpl-scripted%d", a.number) }

func (chatWire) stream(s *events, a answer) {
	chunk := func(delta object, finish any) {
		s.event("", object{"id": a.chatID(), "object": "chat.completion.chunk", "created": 0, "model": a.model,
			"choices": []any{object{"index": 0, "delta": delta, "finish_reason": finish}}})
	}
	chunk(object{"role": "assistant", "content": ""}, nil)
	for _, p := range pieces(a.Thinking) {
		chunk(object{"reasoning_content": p}, nil)
	}
	for _, p := range pieces(a.Text) {
		chunk(object{"content": p}, nil)
	}
	for i, call := range a.Calls {
		start := object{"index": i, "id": call.ID, "type": "function", "function": object{"name": call.Name, "arguments": ""}}
		if needsSignature(a.model) && i == 0 {
			start["extra_content"] = signature(call.ID)
		}
		chunk(object{"tool_calls": []any{start}}, nil)
		for _, p := range pieces(string(call.Input)) {
			chunk(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": p}}}}, nil)
		}
	}
	chunk(object{}, a.chatFinish())
	s.event("", object{"id": a.chatID(), "object": "chat.completion.chunk", "created": 0, "model": a.model,
		"choices": []any{}, "usage": a.chatUsage()})
	s.raw("data: [DONE]")
}
