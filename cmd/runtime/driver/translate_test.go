package driver

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// These updates were recorded from publicly available agents.
func TestUpdatesFromPublicAgentsAreTranslated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ updates, want []string }{
		"codex, a command": {[]string{
			`{"sessionUpdate":"tool_call","toolCallId":"1","name":"exec_command","kind":"execute","title":"cat a",` +
				`"status":"in_progress","content":[{"type":"terminal","terminalId":"1"}],"rawInput":{"command":"cat a",` +
				`"cwd":"/"},"_meta":{"terminal_info":{"cwd":"/","terminal_id":"1"}}}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","_meta":{"terminal_output_delta":{"data":"no ",` +
				`"terminal_id":"1"}}}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"failed",` +
				`"_meta":{"terminal_output_delta":{"data":"such file\n","terminal_id":"1"},"terminal_exit":{"exit_code":3,` +
				`"signal":null,"terminal_id":"1"}}}`,
		}, []string{`run exec_command "Running command: cat a"`, `run exec_command "Command cat a executed" "no such ` +
			`file\n" 3`}},
		"codex, a tool": {[]string{
			`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"execute","title":"mcp.parley.local_where",` +
				`"status":"in_progress","rawInput":{"server":"parley","tool":"local_where","arguments":{}},` +
				`"_meta":{"is_mcp_tool_call":true}}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed",` +
				`"rawOutput":{"result":{"content":[{"type":"text","text":"here"}],"structuredContent":null,"_meta":null},` +
				`"error":null}}`,
		}, []string{`call_tool_mcp  "local_where"`, `mcp  "local_where" "here"`}},
		"qwen, a command": {[]string{
			`{"sessionUpdate":"tool_call","toolCallId":"1","status":"pending","title":"Shell","content":[],"kind":"execute",` +
				`"rawInput":{},"_meta":{"toolName":"run_shell_command","phase":"preparing"}}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","title":"cat a","rawInput":{"command":"cat a"}}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","content":[{"type":"content",` +
				`"content":{"type":"text","text":"Command: cat a\nOutput: made"}}],"_meta":{"toolName":"run_shell_command"},` +
				`"rawOutput":{"type":"shell_result","text":"made","output":"made","exitCode":0}}`,
		}, []string{`run run_shell_command "Running command: cat a"`, `run run_shell_command "Command cat a executed" ` +
			`"made" 0`}},
		"qwen, a tool": {[]string{
			`{"sessionUpdate":"tool_call","toolCallId":"1","status":"pending","title":"local_where (parley MCP Server): {}",` +
				`"content":[],"kind":"other","rawInput":{},"_meta":{"toolName":"mcp__parley__local_where","provenance":"mcp"}}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","title":"{}",` +
				`"content":[{"type":"content","content":{"type":"text","text":"here"}}],` +
				`"_meta":{"toolName":"mcp__parley__local_where"},"rawOutput":"here"}`,
		}, []string{`call_tool_mcp mcp__parley__local_where "mcp__parley__local_where"`,
			`mcp mcp__parley__local_where "mcp__parley__local_where" "here"`}},
		"claude, a command": {[]string{
			`{"_meta":{"claudeCode":{"toolName":"Bash"}},"toolCallId":"1","sessionUpdate":"tool_call","name":"Bash",` +
				`"rawInput":{},"status":"pending","title":"Terminal","kind":"execute","content":[]}`,
			`{"_meta":{"claudeCode":{"toolName":"Bash"}},"toolCallId":"1","sessionUpdate":"tool_call_update",` +
				`"rawInput":{"command":"cat a"},"title":"cat a","content":[{"type":"content","content":{"type":"text",` +
				`"text":"shows a"}}]}`,
			`{"_meta":{"claudeCode":{"toolName":"Bash"}},"toolCallId":"1","sessionUpdate":"tool_call_update",` +
				`"status":"completed","rawOutput":"made","content":[{"type":"content","content":{"type":"text","text":"` +
				"```console\\nmade\\n```" + `"}}]}`,
		}, []string{`run Bash "Running command: cat a"`, `run Bash "Command cat a executed" "made" 0`}},
		"claude, a command that prints nothing": {[]string{
			`{"toolCallId":"1","sessionUpdate":"tool_call","name":"Bash","rawInput":{"command":"true"},"title":"true",` +
				`"kind":"execute","content":[{"type":"content","content":{"type":"text","text":"does nothing"}}]}`,
			`{"toolCallId":"1","sessionUpdate":"tool_call_update","status":"completed","rawOutput":""}`,
		}, []string{`run Bash "Running command: true"`, `run Bash "Command true executed" "" 0`}},
		"gemini, a command without its output": {[]string{
			`{"sessionUpdate":"tool_call","toolCallId":"1","status":"in_progress","title":"cat a",` +
				`"content":[{"type":"content","content":{"type":"text","text":"[current working directory /]"}}],"kind":"execute"}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","title":"cat a","content":[],` +
				`"locations":[],"kind":"execute"}`,
		}, []string{`run  "Running command: cat a"`, `run  "Command cat a executed" "" 0`}},
		"opencode, a command": {[]string{
			`{"sessionUpdate":"tool_call","toolCallId":"1","title":"bash","kind":"execute","status":"pending","locations":[],` +
				`"rawInput":{}}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"in_progress","kind":"execute","title":"bash",` +
				`"rawInput":{"command":"cat a"}}`,
			`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","kind":"execute",` +
				`"content":[{"type":"content","content":{"type":"text","text":"made"}}],"title":"shows a",` +
				`"rawOutput":{"output":"made","metadata":{"output":"made","exit":0}}}`,
		}, []string{`run  "Running command: cat a"`, `run  "Command cat a executed" "made" 0`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			translator := newTranslator(texts{mask: func(text string) string { return text }})
			var got []string
			for _, update := range c.updates {
				events, _, err := translator.take(json.RawMessage(update))
				if err != nil {
					t.Fatal(err)
				}
				for i := range events {
					got = append(got, summary(&events[i]))
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("the events are\n%q\nwant\n%q", got, c.want)
			}
		})
	}
}

func summary(e *session.Event) string {
	text := fmt.Sprintf("%s%s %s %q", e.Action, e.Observation, e.ToolCall.Function, e.Message)
	if e.Content != nil {
		text += fmt.Sprintf(" %q", *e.Content)
	}
	if metadata, ok := e.Extras["metadata"].(map[string]any); ok {
		text += fmt.Sprintf(" %v", metadata["exit_code"])
	}
	return text
}

func TestANoticeOfTheAgentIsShownAsANotice(t *testing.T) {
	t.Parallel()
	translator := newTranslator(texts{mask: func(text string) string { return strings.ReplaceAll(text, "secret", "***") }})
	events, seq, err := translator.take(json.RawMessage(`{"sessionUpdate":"agent_thought_chunk","content":{` +
		`"type":"text","text":"left out: secret"},"_meta":{"parley.dev/notice":true,"parley.dev/seq":7}}`))
	if err != nil || seq != 7 || len(events) != 1 || events[0].Observation != session.ObservedNotice ||
		*events[0].Content != "left out: ***" || events[0].Source != session.FromAgent {
		t.Errorf("got %+v, %d, %v", events, seq, err)
	}
}
