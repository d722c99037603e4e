package scriptedmodel_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func post(t *testing.T, server *scriptedmodel.Server, path, body string) (int, string, http.Header) {
	t.Helper()
	request := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	request.Header.Set("anthropic-version", "2023-06-01")
	request.Header.Set("Authorization", "Bearer key")
	answer := httptest.NewRecorder()
	server.ServeHTTP(answer, request)
	content, _ := io.ReadAll(answer.Body)
	return answer.Code, string(content), answer.Header()
}

const (
	messages  = "/v1/messages"
	chat      = "/v1/chat/completions"
	responses = "/v1/responses"
	google    = "/v1beta/models/m:generateContent"
)

func anthropicImage(kind, data string) string {
	return `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64",` +
		`"media_type":"` + kind + `","data":"` + data + `"}}]}]}`
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	tools := `"tools":[{"name":"f","input_schema":{"type":"object"}}]`
	for want, c := range map[string][2]string{
		"max_tokens: Field required": {messages, `{"model":"m","messages":[{"role":"user","content":"x"}]}`},
		"at least one message":       {messages, `{"model":"m","max_tokens":1,"messages":[]}`},
		"first message must use": {messages, `{"model":"m","max_tokens":1,"messages":[{"role":"assistant",` +
			`"content":"x"},{"role":"user","content":"x"}]}`},
		"prefill": {messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"},` +
			`{"role":"assistant","content":"x"}]}`},
		"must be non-empty": {messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user",` +
			`"content":[{"type":"text","text":""}]}]}`},
		"does not match any of the expected tags": {messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user",` +
			`"content":[{"type":"video"}]}]}`},
		"unexpected `tool_use_id`": {messages, `{"model":"m","max_tokens":1,` + tools +
			`,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]}]}`},
		"without `tool_result` blocks": {messages, `{"model":"m","max_tokens":1,` + tools +
			`,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f",` +
			`"input":{}}]},{"role":"user","content":"y"}]}`},
		"must define tools": {messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user",` +
			`"content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]}]}`},
		"must come first": {messages, `{"model":"m","max_tokens":1,` + tools +
			`,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f",` +
			`"input":{}}]},{"role":"user","content":[{"type":"text","text":"y"},{"type":"tool_result","tool_use_id":"a",` +
			`"content":"x"}]}]}`},
		"input_schema": {messages, `{"model":"m","max_tokens":1,"tools":[{"name":"f",` +
			`"input_schema":{"type":"string"}}],"messages":[{"role":"user","content":"x"}]}`},
		"not have 'oneOf'/'anyOf'": {chat, `{"model":"m","tools":[{"type":"function","function":{"name":"f",` +
			`"parameters":{"type":"object","anyOf":[]}}}],"messages":[{"role":"user","content":"x"}]}`},
		"Property keys should match": {messages, `{"model":"m","max_tokens":1,"tools":[{"name":"f",` +
			`"input_schema":{"type":"object","properties":{"a b":{}}}}],"messages":[{"role":"user","content":"x"}]}`},
		"tool_use.name: String should match": {messages, `{"model":"m","max_tokens":1,` + tools +
			`,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a",` +
			`"name":"f.g","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]}`},
		"array too long": {chat, `{"model":"m","tools":[` + strings.Repeat(`{"type":"function","function":{"name":"f"}},`,
			128) + `{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"x"}]}`},
		"media type image/png":                {messages, anthropicImage("image/png", "R0lGODlh")},
		"Input should be 'image/jpeg'":        {messages, anthropicImage("image/bmp", "Qk0=")},
		"Could not process image":             {messages, anthropicImage("image/gif", "R0lGODlh")},
		"image exceeds 5 MB maximum: 5242884": {messages, anthropicImage("image/gif", strings.Repeat("R0lG", 5<<18+1))},
		"unsupported image": {chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url",` +
			`"image_url":{"url":"data:image/png;base64,R0lGODlh"}}]}]}`},
		"did not have response messages: a": {chat, `{"model":"m","messages":[{"role":"user","content":"x"},` +
			`{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
			`{"role":"user","content":"y"}]}`},
		"not valid JSON": {chat, `{`},
		"must be a response to a preceding": {chat, `{"model":"m","messages":[{"role":"tool","tool_call_id":"a",` +
			`"content":"x"}]}`},
		"expected a string, got null": {chat, `{"model":"m","messages":[{"role":"user"}]}`},
		"array schema missing items": {chat, `{"model":"m","tools":[{"type":"function","function":{"name":"f",` +
			`"parameters":{"type":"object","properties":{"a":{"type":"array"}}}}}],"messages":[{"role":"user","content":"x"}]}`},
		"is too short - 'tools'": {chat, `{"model":"m","tools":[],"messages":[{"role":"user",` +
			`"content":"x"}]}`},
		"only allowed when 'stream'": {chat, `{"model":"m","stream_options":{},"messages":[{"role":"user",` +
			`"content":"x"}]}`},
		"invalid image URL": {chat, `{"model":"m","messages":[{"role":"user",` +
			`"content":[{"type":"image_url","image_url":{"url":"file:///x"}}]}]}`},
		"'messages[0].role'": {chat, `{"model":"m","messages":[{"role":"robot","content":"x"}]}`},
		"no tool output found for function call": {responses, `{"model":"m","input":[{"type":"function_call","call_id":"a",` +
			`"name":"f","arguments":"{}"}]}`},
		"no tool call found": {responses, `{"model":"m","input":[{"type":"function_call_output",` +
			`"call_id":"a","output":"x"}]}`},
		"'input[0].type'": {responses, `{"model":"m","input":[{"type":"dream"}]}`},
		"only be in `system` messages": {messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user",` +
			`"content":[{"type":"tool_addition"}]}]}`},
		"contents is not specified":       {google, `{}`},
		"valid role":                      {google, `{"contents":[{"role":"robot","parts":[{"text":"x"}]}]}`},
		"must have one initialized field": {google, `{"contents":[{"role":"user","parts":[{}]}]}`},
		"equal to the number of function call": {google, `{"contents":[{"role":"user","parts":[{"text":"x"}]},` +
			`{"role":"model","parts":[{"functionCall":{"name":"f"}}]},{"role":"user","parts":[{"text":"y"}]}]}`},
		"followed by a function response turn": {google, `{"contents":[{"role":"user","parts":[{"text":"x"}]},` +
			`{"role":"model","parts":[{"functionCall":{"name":"f"}}]}]}`},
		`function response of "g", want "f"`: {google, `{"contents":[{"role":"model",` +
			`"parts":[{"functionCall":{"name":"f"}}]},{"role":"user","parts":[{"functionResponse":{"name":"g"}}]}]}`},
		"Invalid function name": {google, `{"contents":[{"role":"user","parts":[{"text":"x"}]}],` +
			`"tools":[{"functionDeclarations":[{"name":"a b"}]}]}`},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			server := scriptedmodel.New(scriptedmodel.Script{})
			status, body, _ := post(t, server, c[0], c[1])
			if status != http.StatusBadRequest || !strings.Contains(body, "invalid_request_error") && !strings.Contains(body,
				"INVALID_ARGUMENT") {
				t.Errorf("%d %s", status, body)
			}
			if v := server.Violations(); len(v) != 1 || !strings.Contains(v[0], want) {
				t.Errorf("the violations are %q", v)
			}
		})
	}
}

func TestRequestsWithToolsGetTheNextStepOfTheScript(t *testing.T) {
	t.Parallel()
	server := scriptedmodel.New(scriptedmodel.Script{Default: "default", Steps: []scriptedmodel.Step{
		{Text: "title", Contains: "a title"},
		{Text: "first", Calls: []scriptedmodel.Call{{Name: "f"}}},
		{Failure: &scriptedmodel.Failure{Kind: scriptedmodel.RateLimit, RetryAfter: 7}},
	}})
	function := `"tools":[{"type":"function","function":{"name":"f"}}]`
	for _, c := range [][2]string{
		{`{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "default"},
		{`{"model":"m",` + function + `,"messages":[{"role":"user","content":"hello"}]}`, "first"},
		{`{"model":"m","messages":[{"role":"user","content":"make a title"}]}`, "title"},
		{`{"model":"m",` + function + `,"messages":[{"role":"user","content":"hello"}]}`, "rate_limit_exceeded"},
	} {
		_, body, header := post(t, server, chat, c[0])
		if !strings.Contains(body, c[1]) {
			t.Errorf("got %s, want %s", body, c[1])
		}
		if c[1] == "rate_limit_exceeded" && header.Get("Retry-After") != "7" {
			t.Errorf("the header is %v", header)
		}
	}
	if requests := server.Requests(); len(requests) != 4 || !requests[0].HasAuthorization || requests[0].HasAPIKey ||
		server.Remaining() != 0 {
		t.Errorf("%d requests, %d steps remain", len(requests), server.Remaining())
	}
}

func TestAnswersOfTheResponsesAPIAreStreamed(t *testing.T) {
	t.Parallel()
	script := scriptedmodel.Script{Steps: []scriptedmodel.Step{{
		Text: "hello there", Calls: []scriptedmodel.Call{{Name: "shell", Input: scriptedmodel.Input(map[string]int{"a": 1})}},
		Usage: &scriptedmodel.Usage{Input: 3, Output: 4},
	}}}
	_, body, _ := post(t, scriptedmodel.New(script), responses, `{"model":"m","stream":true,"tools":[{"type":"function",`+
		`"name":"shell","parameters":{"type":"object"}}],"input":"x"}`)
	var kinds []string
	for line := range strings.Lines(body) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var event struct {
				Type     string `json:"type"`
				Response struct {
					Usage struct {
						Total int `json:"total_tokens"`
					} `json:"usage"`
				} `json:"response"`
			}
			if err := json.Unmarshal([]byte(data), &event); err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, event.Type)
			if event.Type == "response.completed" && event.Response.Usage.Total != 7 {
				t.Errorf("the usage is %+v", event)
			}
		}
	}
	if got := strings.Join(kinds, " "); !strings.HasPrefix(got, "response.created") || !strings.HasSuffix(got,
		"response.completed") || !strings.Contains(got, "response.function_call_arguments.done response.output_item.done") {
		t.Errorf("the events are %s", got)
	}
}

func TestAnswersOfTheGeminiAPIAreStreamed(t *testing.T) {
	t.Parallel()
	server := scriptedmodel.New(scriptedmodel.Script{Steps: []scriptedmodel.Step{{
		Text: "hello there", Calls: []scriptedmodel.Call{{Name: "f"}}, Usage: &scriptedmodel.Usage{Input: 3, Output: 4},
	}}})
	_, body, _ := post(t, server, "/v1beta/models/m:streamGenerateContent?alt=sse",
		`{"contents":[{"role":"user","parts":[{"text":"x"}]}],"tools":[{"functionDeclarations":[{"name":"f"}]}]}`)
	events := strings.Split(strings.TrimSpace(body), "\n\n")
	last := events[len(events)-1]
	if len(events) < 3 || !strings.Contains(last, `"functionCall":{"args":{},"id":"call_0_0","name":"f"}`) ||
		!strings.Contains(last, `"finishReason":"STOP"`) || !strings.Contains(last, `"totalTokenCount":7`) {
		t.Errorf("the events are %s", body)
	}
	if request := server.Requests()[0]; request.Wire != scriptedmodel.GenerateContent || request.Model != "m" ||
		!request.Stream || !request.Offers("f") {
		t.Errorf("the request is %+v", request)
	}
}

func TestAModelRefusesUnsupportedImagesAndTooLongRequests(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 1000)
	picture := "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
	for want, c := range map[string][2]string{
		"prompt is too long: 1250 tokens": {messages, `{"model":"m","max_tokens":1,"messages":[` +
			`{"role":"user","content":"` + long + `"}]}`},
		"exceed context limit: 0 + 2000": {messages, `{"model":"m","max_tokens":2000,"messages":[` +
			`{"role":"user","content":"x"}]}`},
		"maximum context length is 1000 tokens. However, you requested 1250": {chat, `{"model":"m","messages":[` +
			`{"role":"user","content":"` + long + `"}]}`},
		"'m' does not support image input": {messages, anthropicImage("image/gif", picture)},
		"only supported by certain models": {chat, `{"model":"m","messages":[{"role":"user","content":[{` +
			`"type":"image_url","image_url":{"url":"data:image/gif;base64,` + picture + `"}}]}]}`},
	} {
		server := scriptedmodel.New(scriptedmodel.Script{Window: 1000, TextOnly: true})
		status, body, _ := post(t, server, c[0], c[1])
		if status != http.StatusBadRequest || !strings.Contains(body, want) || len(server.Violations()) > 0 {
			t.Errorf("%s: %d %s %q", want, status, body, server.Violations())
		}
	}
}
