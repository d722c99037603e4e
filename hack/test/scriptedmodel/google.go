package scriptedmodel

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
)

// googleWire is Gemini's generateContent API. The model and the method are part of the URL.
type googleWire struct {
	model    string
	streamed bool
}

func (googleWire) name() Wire { return GenerateContent }

// serveGoogle serves URLs of the form /models/MODEL:METHOD.
func (s *Server) serveGoogle(w http.ResponseWriter, r *http.Request) {
	model, method, _ := strings.Cut(r.PathValue("call"), ":")
	switch method {
	case "generateContent":
		s.serve(googleWire{model: model}).ServeHTTP(w, r)
	case "streamGenerateContent":
		if r.URL.Query().Get("alt") != "sse" {
			writeFailure(w, GenerateContent, Failure{Kind: BadRequest, Message: "the stub streams events only, with alt=sse"})
			return
		}
		s.serve(googleWire{model: model, streamed: true}).ServeHTTP(w, r)
	case "countTokens":
		n, _ := io.Copy(io.Discard, io.LimitReader(r.Body, maxBody))
		writeJSON(w, http.StatusOK, object{"totalTokens": n / 4})
	default:
		writeFailure(w, GenerateContent, Failure{Kind: NoSuchModel})
	}
}

var googleToolName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}$`)

func (g googleWire) read(_ http.Header, o object) (*Request, []string) {
	request, wrong := &Request{Model: g.model, Stream: g.streamed}, findings{}
	for _, p := range list(obj(o["systemInstruction"])["parts"]) {
		request.System += str(obj(p)["text"])
	}
	for i, t := range list(o["tools"]) {
		for j, d := range list(obj(t)["functionDeclarations"]) {
			request.Tools = append(request.Tools, googleTool(fmt.Sprintf("tools[%d].function_declarations[%d]", i, j), obj(d),
				&wrong))
		}
	}
	contents := list(o["contents"])
	if len(contents) == 0 {
		wrong.add("contents is not specified")
	}
	var before Turn
	for i, c := range contents {
		turn := googleTurn(obj(c), i, before, &wrong)
		request.Turns = append(request.Turns, turn)
		before = turn
	}
	if len(before.Calls) > 0 {
		wrong.add("please ensure that function call turn is followed by a function response turn")
	}
	return request, wrong
}

func googleTool(at string, declared object, wrong *findings) Tool {
	tool := Tool{Name: str(declared["name"]), Description: str(declared["description"])}
	if !googleToolName.MatchString(tool.Name) {
		wrong.add("%s.name: Invalid function name", at)
	}
	for _, key := range []string{"parameters", "parametersJsonSchema"} {
		if has(declared, key) {
			tool.Schema = encode(declared[key])
		}
	}
	return tool
}

// googleTurn reads a turn. A turn must contain exactly one result for each call of the previous
// turn.
func googleTurn(content object, i int, before Turn, wrong *findings) Turn {
	turn := Turn{Role: str(content["role"])}
	switch turn.Role {
	case "model":
		turn.Role = "assistant"
	case "user", "function":
		turn.Role = "user"
	default:
		wrong.add("contents[%d]: please use a valid role: user, model", i)
	}
	parts := list(content["parts"])
	if len(parts) == 0 {
		wrong.add("contents[%d].parts: contents must not be empty", i)
	}
	for j, p := range parts {
		part := obj(p)
		call, response := obj(part["functionCall"]), obj(part["functionResponse"])
		switch {
		case call != nil:
			turn.Calls = append(turn.Calls, Call{ID: str(call["id"]), Name: str(call["name"]), Input: encode(call["args"])})
		case response != nil:
			if n := len(turn.Results); n < len(before.Calls) && before.Calls[n].Name != str(response["name"]) {
				wrong.add("contents[%d].parts[%d]: function response of %q, want %q", i, j, str(response["name"]),
					before.Calls[n].Name)
			}
			turn.Results = append(turn.Results, Result{ID: str(response["id"]), Text: string(encode(response["response"]))})
		case has(part, "inlineData"):
			turn.Images++
		case isString(part["text"]):
			if part["thought"] != true {
				turn.Text += str(part["text"])
			}
		default:
			wrong.add("contents[%d].parts[%d].data: required oneof field 'data' must have one initialized field", i, j)
		}
	}
	if len(turn.Results) != len(before.Calls) {
		wrong.add("please ensure that the number of function response parts is equal to the number of function call parts " +
			"of the function call turn")
	}
	return turn
}

func (a answer) googleParts() []object {
	var parts []object
	for _, p := range pieces(a.Thinking) {
		parts = append(parts, object{"text": p, "thought": true})
	}
	for _, p := range pieces(a.Text) {
		parts = append(parts, object{"text": p})
	}
	for _, call := range a.Calls {
		parts = append(parts, object{"functionCall": object{"id": call.ID, "name": call.Name, "args": call.Input}})
	}
	return parts
}

// googleAnswer returns a whole answer or one part of it. Only the last part has a finish reason.
func (a answer) googleAnswer(parts []object, last bool) object {
	u := a.usage()
	candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
	usage := object{"promptTokenCount": u.Input, "cachedContentTokenCount": u.Cached, "totalTokenCount": u.Input}
	if last {
		candidate["finishReason"] = "STOP"
		if a.Cut {
			candidate["finishReason"] = "MAX_TOKENS"
		}
		usage["candidatesTokenCount"], usage["totalTokenCount"] = u.Output, u.Input+u.Output
	}
	return object{"candidates": []any{candidate}, "usageMetadata": usage, "modelVersion": a.model,
		"responseId": fmt.Sprintf("scripted%d", a.number)}
}

func (googleWire) whole(w http.ResponseWriter, a answer) {
	writeJSON(w, http.StatusOK, a.googleAnswer(a.googleParts(), true))
}

func (googleWire) stream(s *events, a answer) {
	parts := a.googleParts()
	for i := range parts {
		s.event("", a.googleAnswer(parts[i:i+1], i == len(parts)-1))
	}
}
