package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
)

// responsesWire is OpenAI's responses API.
type responsesWire struct{}

func (responsesWire) name() Wire { return Responses }

func (responsesWire) read(_ http.Header, o object) (*Request, []string) {
	request, wrong := &Request{}, findings{}
	request.Model, request.Stream, request.System = str(o["model"]), o["stream"] == true, str(o["instructions"])
	if request.Model == "" {
		wrong.add("missing required parameter: 'model'")
	}
	responsesTools(request, "tools", o["tools"], &wrong)
	input := list(o["input"])
	if isString(o["input"]) {
		input = []any{object{"type": "message", "role": "user", "content": o["input"]}}
	}
	if len(input) == 0 {
		wrong.add("one of 'input', 'previous_response_id' or 'prompt' must be provided")
	}
	calls := map[string]bool{}
	for i, v := range input {
		responsesItem(request, obj(v), i, calls, &wrong)
	}
	for id, answered := range calls {
		if !answered {
			wrong.add("no tool output found for function call %s", id)
		}
	}
	return request, wrong
}

// responsesTools reads a list of tools, which may contain namespaces with further tools.
func responsesTools(request *Request, at string, tools any, wrong *findings) {
	for i, t := range list(tools) {
		tool, at := obj(t), fmt.Sprintf("%s[%d]", at, i)
		switch kind := str(tool["type"]); kind {
		case "":
			wrong.add("missing required parameter: '%s.type'", at)
		case "function":
			request.Tools = append(request.Tools, openAITool(at, tool, wrong))
		case "namespace":
			first := len(request.Tools)
			responsesTools(request, at+".tools", tool["tools"], wrong)
			for j := range request.Tools[first:] {
				request.Tools[first+j].Namespace = str(tool["name"])
			}
		default: // the provider's own tools, whose list changes every few months
			request.Tools = append(request.Tools, Tool{Name: str(tool["name"]), Description: kind})
		}
	}
}

// responsesItem reads one item of the input. In the map calls, each key is the ID of a tool call.
// Its value is true if the output of the call was read.
func responsesItem(request *Request, item object, i int, calls map[string]bool, wrong *findings) {
	kind := str(item["type"])
	if kind == "" && has(item, "role") {
		kind = "message"
	}
	switch {
	case kind == "additional_tools":
		responsesTools(request, fmt.Sprintf("input[%d].tools", i), item["tools"], wrong)
	case kind == "message":
		turn := Turn{Role: str(item["role"])}
		responsesContent(item["content"], &turn, i, wrong)
		switch turn.Role {
		case "system", "developer":
			request.System += "\n" + turn.Text
		case "user", "assistant":
			request.Turns = append(request.Turns, turn)
		default:
			wrong.add("invalid value for 'input[%d].role': %q", i, turn.Role)
		}
	case strings.HasSuffix(kind, "_call_output"):
		id := str(item["call_id"])
		if _, known := calls[id]; !known {
			wrong.add("no tool call found for function call output with call_id %s", id)
		}
		calls[id] = true
		request.Turns = append(request.Turns, Turn{Role: "tool",
			Results: []Result{{ID: id, Text: responsesOutput(item["output"])}}})
	case kind == "function_call", kind == "custom_tool_call", kind == "local_shell_call":
		id := str(item["call_id"])
		if id == "" || kind == "function_call" && (!isString(item["arguments"]) || str(item["name"]) == "") {
			wrong.add("input[%d]: call_id, name and arguments are required", i)
		}
		calls[id] = false
		request.Turns = append(request.Turns, Turn{Role: "assistant", Calls: []Call{{ID: id, Name: str(item["name"]),
			Input: json.RawMessage(str(item["arguments"]))}}})
	case kind == "reasoning", kind == "item_reference", strings.HasSuffix(kind, "_call"), kind == "compaction":
	default:
		wrong.add("invalid value for 'input[%d].type': %q", i, kind)
	}
}

func responsesOutput(v any) string {
	if isString(v) {
		return str(v)
	}
	var text string
	for _, part := range list(v) {
		text += str(obj(part)["text"])
	}
	return text
}

func responsesContent(content any, turn *Turn, i int, wrong *findings) {
	if isString(content) {
		turn.Text = str(content)
		return
	}
	for j, p := range list(content) {
		part := obj(p)
		switch kind := str(part["type"]); {
		case kind == "input_text" && turn.Role != "assistant", kind == "output_text" && turn.Role == "assistant":
			turn.Text += str(part["text"])
		case kind == "refusal" && turn.Role == "assistant":
		case kind == "input_image" && turn.Role == "user":
			turn.Images++
		case kind == "input_file" && turn.Role == "user":
		default:
			wrong.add("invalid value for 'input[%d].content[%d].type': %q with role %q", i, j, kind, turn.Role)
		}
	}
}

func (a answer) responsesItems() []object {
	var items []object
	if a.Text != "" {
		items = append(items, object{"type": "message", "id": fmt.Sprintf("msg_%d", a.number), "status": "completed",
			"role":    "assistant",
			"content": []any{object{"type": "output_text", "text": a.Text, "annotations": []any{}}}})
	}
	for _, call := range a.Calls {
		item := object{"type": "function_call", "id": "fc_" + call.ID, "call_id": call.ID, "name": call.Name,
			"arguments": string(call.Input), "status": "completed"}
		if call.Namespace != "" {
			item["namespace"] = call.Namespace
		}
		items = append(items, item)
	}
	return items
}

func (a answer) response(status string, output []object) object {
	if output == nil {
		output = []object{}
	}
	r := object{"id": fmt.Sprintf("resp_%d", a.number), "object": "response", "created_at": 0, "status": status,
		"model": a.model, "output": output,
		"error": nil, "incomplete_details": nil, "parallel_tool_calls": true, "tools": []any{}, "tool_choice": "auto",
		"metadata": object{}}
	if status != "in_progress" {
		u := a.usage()
		r["usage"] = object{"input_tokens": u.Input, "input_tokens_details": object{"cached_tokens": u.Cached},
			"output_tokens":         u.Output,
			"output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": u.Input + u.Output}
	}
	if status == "incomplete" {
		r["incomplete_details"] = object{"reason": "max_output_tokens"}
	}
	return r
}

func (a answer) responsesStatus() string {
	if a.Cut {
		return "incomplete"
	}
	return "completed"
}

func (responsesWire) whole(w http.ResponseWriter, a answer) {
	writeJSON(w, http.StatusOK, a.response(a.responsesStatus(), a.responsesItems()))
}

func (responsesWire) stream(s *events, a answer) {
	number := 0
	event := func(kind string, data object) {
		data["type"], data["sequence_number"] = kind, number
		number++
		s.event(kind, data)
	}
	event("response.created", object{"response": a.response("in_progress", nil)})
	event("response.in_progress", object{"response": a.response("in_progress", nil)})
	items := a.responsesItems()
	for i, item := range items {
		start := maps.Clone(item)
		start["status"] = "in_progress"
		at := func(more object) object {
			more["item_id"], more["output_index"] = item["id"], i
			return more
		}
		if item["type"] == "message" {
			start["content"] = []any{}
			part := func(text string) object { return object{"type": "output_text", "text": text, "annotations": []any{}} }
			event("response.output_item.added", object{"output_index": i, "item": start})
			event("response.content_part.added", at(object{"content_index": 0, "part": part("")}))
			for _, p := range pieces(a.Text) {
				event("response.output_text.delta", at(object{"content_index": 0, "delta": p}))
			}
			event("response.output_text.done", at(object{"content_index": 0, "text": a.Text}))
			event("response.content_part.done", at(object{"content_index": 0, "part": part(a.Text)}))
		} else {
			start["arguments"] = ""
			event("response.output_item.added", object{"output_index": i, "item": start})
			for _, p := range pieces(str(item["arguments"])) {
				event("response.function_call_arguments.delta", at(object{"delta": p}))
			}
			event("response.function_call_arguments.done", at(object{"arguments": item["arguments"]}))
		}
		event("response.output_item.done", object{"output_index": i, "item": item})
	}
	status := a.responsesStatus()
	event("response."+status, object{"response": a.response(status, items)})
}
