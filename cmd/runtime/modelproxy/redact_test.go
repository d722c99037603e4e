package modelproxy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

const (
	gitToken  = "ghp_0123456789abcdef"
	multiline = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqh\n-----END KEY-----"
)

// newSecrets returns secrets. Two of them are common words in requests: "user" and a number.
func newSecrets() *secrets.Store {
	return secrets.New(map[string]string{"provider-token": gitToken, "custom.0": `pa"ss\word`, "custom.1": "user",
		"custom.2": "4096", "custom.3": multiline})
}

func TestSecretsInToolResultsDoNotReachTheModel(t *testing.T) {
	const image = `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"ghp_0123456789abcdef"}}`
	for name, c := range map[string]struct{ path, body, want string }{
		"chat": {"/v1/chat/completions",
			`{"model":"gpt","max_tokens":4096, "messages":[{"role":"system","content":"Be brief."},
			{"content":"go","role":"user"},{"role":"assistant","content":"user","tool_calls":[{"id":"user","type":"function",
			"function":{"name":"bash","arguments":"{\"command\":\"echo user\"}"}}]},
			{"role":"tool","tool_call_id":"user","content":"TOKEN=ghp_0123456789abcdef\nby pa\"ss\\word\u0021"}]}`,
			`{"model":"gpt","max_tokens":4096, "messages":[{"role":"system","content":"Be brief."},
			{"content":"go","role":"user"},{"role":"assistant","content":"user","tool_calls":[{"id":"user","type":"function",
			"function":{"name":"bash","arguments":"{\"command\":\"echo user\"}"}}]},
			{"role":"tool","tool_call_id":"user","content":"TOKEN=***\nby ***!"}]}`},
		"messages": {"/v1/messages",
			`{"model":"claude","system":"user","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"user",
			"content":[{"type":"text","text":"a ghp_0123456789abcdef b"},` + image + `]}]},
			{"content":[{"type":"thinking","thinking":"user","signature":"user"}],"role":"assistant"}]}`,
			`{"model":"claude","system":"user","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"user",
			"content":[{"type":"text","text":"a *** b"},` + image + `]}]},
			{"content":[{"type":"thinking","thinking":"user","signature":"user"}],"role":"assistant"}]}`},
		"a text document": {"/v1/messages",
			`{"model":"claude","messages":[{"role":"user","content":[{"type":"document","source":{"type":"text",
			"media_type":"text/plain","data":"TOKEN: ghp_0123456789abcdef"}}]}]}`,
			`{"model":"claude","messages":[{"role":"user","content":[{"type":"document","source":{"type":"text",
			"media_type":"text/plain","data":"TOKEN: ***"}}]}]}`},
		"counting tokens": {"/v1/messages/count_tokens",
			`{"messages":[{"role":"user","content":"ghp_0123456789abcdef"}]}`, `{"messages":[{"role":"user","content":"***"}]}`},
		"responses": {"/v1/responses",
			`{"model":"gpt","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"go"}]},
			{"type":"reasoning","encrypted_content":"user","summary":[{"text":"user"}]},
			{"type":"function_call","call_id":"user","name":"user","arguments":"user"},
			{"type":"function_call_output","call_id":"user","output":"-----BEGIN KEY-----\nMIIEvQIBADANBgkqh\n"},
			{"type":"function_call_output","call_id":"user","output":[{"type":"input_text","text":"user"},
			{"type":"input_image","image_url":"data:image/png;base64,ghp_0123456789abcdef"}]}]}`,
			`{"model":"gpt","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"go"}]},
			{"type":"reasoning","encrypted_content":"user","summary":[{"text":"user"}]},
			{"type":"function_call","call_id":"user","name":"user","arguments":"user"},
			{"type":"function_call_output","call_id":"user","output":"***\n***\n"},
			{"type":"function_call_output","call_id":"user","output":[{"type":"input_text","text":"***"},
			{"type":"input_image","image_url":"data:image/png;base64,ghp_0123456789abcdef"}]}]}`},
		"a plain input": {"/v1/responses", `{"model":"gpt","input":"data: ghp_0123456789abcdef"}`,
			`{"model":"gpt","input":"data: ***"}`},
		"Gemini": {"/v1beta/models/gpt:generateContent",
			`{"contents":[{"role":"user","parts":[{"functionResponse":{"name":"user","response":{"name":"ghp_0123456789abcdef",
			"lines":["Z2hwXzAxMjM0NTY3ODlhYmNkZWY="],"exit":4096}}},{"inlineData":{"mimeType":"user","data":"4096"}}]},
			{"role":"model","parts":[{"text":"user"}]}]}`,
			`{"contents":[{"role":"user","parts":[{"functionResponse":{"name":"user","response":{"name":"***",
			"lines":["***"],"exit":4096}}},{"inlineData":{"mimeType":"user","data":"4096"}}]},
			{"role":"model","parts":[{"text":"user"}]}]}`},
		"nothing to mask": {"/v1/messages", ` { "model" : "claude" , "messages" : [ ] } `,
			` { "model" : "claude" , "messages" : [ ] } `},
		"no JSON": {"/v1/messages/count_tokens", `{"messages":[}`, `{"messages":[}`},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, answerJSON(`{}`))
			serve(t, u.URL, func(o *modelproxy.Options) { o.Mask = newSecrets().Mask }).must(t, c.path, c.body)
			if got := u.last(t).body; got != c.want {
				t.Errorf("the model got\n%s\nwant\n%s", got, c.want)
			}
			serve(t, u.URL).must(t, c.path, c.body)
			if got := u.last(t).body; got != c.body {
				t.Errorf("without masking the model got\n%s", got)
			}
		})
	}
}

func TestTheProxyAsksForTheUsageEvenIfItMasksSecrets(t *testing.T) {
	u := newUpstream(t, answerJSON(chatJSON))
	serve(t, u.URL, func(o *modelproxy.Options) { o.Mask = newSecrets().Mask }).must(t, "/v1/chat/completions",
		`{"model":"gpt","stream":true,"messages":[{"role":"tool","content":"`+gitToken+`"}]}`)
	if got := u.last(t).body; !strings.Contains(got, "include_usage") || strings.Contains(got, gitToken) {
		t.Errorf("the model got %s", got)
	}
}

func FuzzRedact(f *testing.F) {
	mask := newSecrets().Mask
	for _, body := range []string{`{"messages":[{"role":"tool","content":"a \"` + gitToken + `\" \\"}]}`,
		`{"input":"` + gitToken + `"}`, `{"contents":[[],{},1,null,"user"]}`, `[]`, `5`, ` {"a":{"b":[1]},"input":[[""]]}`,
		`{"messages":[{"role":"user","content":"\u00e9\ud83d\ude00 user"}]}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) {
			return
		}
		got := modelproxy.Redact(body, mask)
		if !json.Valid(got) {
			t.Errorf("%q became %q", body, got)
		}
	})
}

// BenchmarkRedact masks a request of 1 MiB with 20 secrets.
func BenchmarkRedact(b *testing.B) {
	values := map[string]string{}
	for i := range 20 {
		values[fmt.Sprintf("custom.%d", i)] = fmt.Sprintf("%x-secret-%d-0123456789", i, i)
	}
	mask := secrets.New(values).Mask
	line := `drwxr-xr-x 12 runner runner 4096 Nov 17 10:00 \"src\" func main() { fmt.Println(os.Args) }\n`
	var body strings.Builder
	body.WriteString(`{"model":"claude","max_tokens":8192,"messages":[`)
	for i := 0; body.Len() < 1<<20; i++ {
		fmt.Fprintf(&body, `{"role":"assistant","content":[{"type":"tool_use","id":"t%d","name":"bash","input":{"command":`+
			`"make"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"%s"}]},`, i, i,
			strings.Repeat(line, 100))
	}
	text := []byte(strings.TrimSuffix(body.String(), ",") + `]}`)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		modelproxy.Redact(text, mask)
	}
}
