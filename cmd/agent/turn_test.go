package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func TestAnAnswerIsStreamedAndThenSentCompletely(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		const text = "Hello, this is a text that comes in more than one piece."
		s := newFixture(t, scriptedmodel.Step{Text: text, Thinking: "Hm.", Usage: &scriptedmodel.Usage{Input: 100, Output: 20,
			Cached: 50}})
		s.write(t, "AGENTS.md", "Use tabs.")
		s.write(t, "CLAUDE.md", "Use tabs.")
		s.write(t, ".openhands/microagents/repo.md", "---\nname: repo\ntype: repo\n---\nRun the linter.")
		s.write(t, ".openhands/microagents/deploy.md", "---\ntriggers: [deploy]\n---\nDeploy on Mondays only.")
		c := s.launch(t, []string{"--model", model, "--context-window", "1000"}).mustOpen()
		c.mustPrompt("hello")
		if got := c.partial.String(); got != "Hm."+text {
			t.Errorf("the pieces are %q", got)
		}
		if len(c.find(`"agent_message_chunk"`, text)) != 1 || len(c.find(`"agent_thought_chunk"`, "Hm.")) != 1 ||
			len(c.find(`"usage_update"`, `"used":120`, `"size":1000`)) != 1 {
			t.Errorf("updates: %s", c.received())
		}
		request := s.model.Requests()[0]
		if request.Model != "scripted" || !request.HasAPIKey && !request.HasAuthorization {
			t.Errorf("the model is %q; key sent: %v", request.Model, request.HasAPIKey || request.HasAuthorization)
		}
		if strings.Count(request.System, "Use tabs.") != 1 || !strings.Contains(request.System, "Run the linter.") ||
			request.Contains("Mondays") {
			t.Errorf("the system prompt is %s", request.System)
		}
		if request.Wire == scriptedmodel.Messages && request.Cached != 3 {
			t.Errorf("%d cache markers", request.Cached)
		}
		c.mustPrompt("Now deploy.")
		second := s.model.Requests()[1]
		if !second.Contains("Mondays") || !second.Contains("hello") || !second.Contains(text) || len(second.Turns) != 3 {
			t.Errorf("the second request says %q", second.Said())
		}
		c.mustPrompt("Deploy again.")
		if text := s.model.Requests()[2].Said(); strings.Count(text, "Mondays") != 1 {
			t.Errorf("instructions are sent twice: %q", text)
		}
	})
}

func TestToolsAreExecuted(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t,
			calls(editor(map[string]any{"command": "create", "path": "a/f.txt", "file_text": "one\ntwo\n"}),
				editor(map[string]any{"command": "str_replace", "path": "a/f.txt", "old_str": "two", "new_str": "2"}),
				editor(map[string]any{"command": "insert", "path": "a/f.txt", "insert_line": 0, "new_str": "zero"})),
			calls(bash("cd a; export X=1; f() { echo called $X; }")),
			calls(bash("f; pwd; cat f.txt; exit_status() { return 3; }; exit_status"),
				editor(map[string]any{"command": "view", "path": "a/f.txt", "view_range": []int{2, -1}}),
				scriptedmodel.Call{Name: "task_tracker", Input: scriptedmodel.Input(map[string]any{"command": "plan",
					"task_list": []any{map[string]any{"title": "first", "status": "done"}}})},
				scriptedmodel.Call{Name: "no_such_tool"}),
			says("Done."))
		c := s.launch(t, []string{"--model", model}).mustOpen()
		c.mustPrompt("work")
		if got := s.file(t, "a/f.txt"); got != "zero\none\n2\n" {
			t.Errorf("the file is %q", got)
		}
		last := s.model.Requests()[3]
		for id, want := range map[string]string{"call_2_0": "called 1\n" + s.dir + "/a\nzero\none\n2\n[exit code 3]",
			"call_2_1": "     2\tone\n     3\t2", "call_2_3": "There is no tool with this name."} {
			if got := last.Result(id); got == nil || got.Text != want {
				t.Errorf("the result of %s is %+v", id, got)
			}
		}
		for _, words := range [][]string{
			{`"tool_call"`, `"call_0_0"`, `"kind":"edit"`, `"locations":[{"path":"` + s.dir + `/a/f.txt"}]`, `"pending"`},
			{`"tool_call_update"`, `"call_0_0"`, `"in_progress"`},
			{`"tool_call_update"`, `"call_0_1"`, `"completed"`, `"diff"`, `"oldText":"one\ntwo\n"`},
			{`"tool_call"`, `"call_2_0"`, `"kind":"execute"`, `"rawInput":{"command":"f; pwd`},
			{`"tool_call_update"`, `"call_2_0"`, `"rawOutput":{"exit_code":3,"output":"called 1`},
			{`"plan"`, `"entries":[{"content":"first","priority":"medium","status":"completed"}]`},
		} {
			if len(c.find(words...)) != 1 {
				t.Errorf("updates with %q: %q", words, c.find(words...))
			}
		}
		log, _ := filepath.Glob(filepath.Join(s.home, ".parley-agent", "*", "log.jsonl"))
		content, _ := os.ReadFile(log[0])
		if strings.Contains(string(content), "value-of-the-secret") || strings.Contains(string(content), placeholder) {
			t.Error("the log contains a secret of the environment")
		}
	})
}

func TestABrokenStreamIsRetried(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, scriptedmodel.Step{Text: "This answer is incomplete: it breaks off.", Break: true}, says("Whole."))
		c := s.launch(t, []string{"--model", model}).mustOpen()
		c.mustPrompt("hello")
		if len(c.find("Whole.")) != 1 || len(c.find("breaks off")) != 0 {
			t.Errorf("updates: %s", c.received())
		}
		if got := c.partial.String(); got != "Whole." {
			t.Errorf("the pieces are %q", got)
		}
	})
}

func TestActionsNeedTheUsersConfirmation(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, calls(bash("echo yes > allowed"), bash("echo no > rejected"),
			editor(map[string]any{"command": "view", "path": "."})), says("Done."))
		c := s.launch(t, []string{"--model", model, "--confirm"})
		c.permit = func(p acp.PermissionParams) string {
			if strings.Contains(string(p.ToolCall.RawInput), "rejected") {
				return acp.RejectOnce
			}
			return acp.AllowOnce
		}
		c.mustOpen().mustPrompt("work")
		if s.file(t, "allowed") != "yes\n" || s.file(t, "rejected") != "" {
			t.Error("the answers of the user had no effect")
		}
		if len(c.requests) != 2 || c.requests[0].ToolCall.ToolCallID != "call_0_0" || len(c.requests[0].Options) != 2 {
			t.Errorf("permission requests: %+v", c.requests)
		}
		if got := s.model.Requests()[1].Result("call_0_1"); !strings.Contains(got.Text, "rejected") {
			t.Errorf("the model receives %q", got.Text)
		}
	})
}

func TestTheModelRatesTheRiskOfActions(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		rated := scriptedmodel.Call{Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{"command": "true",
			"security_risk": "LOW"})}
		s := newFixture(t, calls(rated, bash("echo unrated")), says("Done."))
		c := s.launch(t, []string{"--model", model, "--rate-actions"}).mustOpen()
		c.mustPrompt("work")
		if len(c.find(`"tool_call"`, `"call_0_0"`, `"security_risk":"LOW"`)) != 1 || len(c.find(`"tool_call"`, `"call_0_1"`,
			`"security_risk":"HIGH"`)) != 1 {
			t.Errorf("updates: %s", c.received())
		}
		for _, tool := range s.model.Requests()[0].Tools {
			if want := tool.Name != "task_tracker"; strings.Contains(string(tool.Schema), "security_risk") != want {
				t.Errorf("%s: %s", tool.Name, tool.Schema)
			}
		}
	})
}

func TestAFullContextIsSummarised(t *testing.T) {
	t.Parallel()
	summary := scriptedmodel.Step{Text: "SUMMARY", Contains: "Summarise this conversation"}
	for name, middle := range map[string]scriptedmodel.Step{
		"recognized by the reported usage": {Calls: []scriptedmodel.Call{bash("echo eighth")},
			Usage: &scriptedmodel.Usage{Input: 7900, Output: 101}},
		"recognized by the provider's error": {Failure: &scriptedmodel.Failure{Kind: scriptedmodel.ContextTooLong,
			Message: "prompt is too long: 10100 tokens > 10000 maximum"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBothAPIs(t, func(t *testing.T, model string) {
				steps := []scriptedmodel.Step{summary}
				for i := range 7 {
					steps = append(steps, calls(bash(fmt.Sprintf("echo number %d; seq 300", i))))
				}
				s := newFixture(t, append(steps, middle, says("Done."))...)
				c := s.launch(t, []string{"--model", model, "--context-window", "10000"}).mustOpen()
				c.mustPrompt("the first message")
				requests := s.model.Requests()
				last := requests[len(requests)-1]
				if !last.Contains("the first message") || !last.Contains("SUMMARY") || last.Contains("number 1") ||
					!last.Contains("number 6") {
					t.Errorf("the last request says %q", last.Said())
				}
				if request := requests[len(requests)-2]; !request.Contains("number 1") || len(request.Tools) != 0 {
					t.Errorf("the summary is made from %q", request.Said())
				}
			})
		})
	}
}

func TestAFullContextEndsTheTurnIfSummariesAreOff(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, scriptedmodel.Step{Calls: []scriptedmodel.Call{bash("echo done > done")},
			Usage: &scriptedmodel.Usage{Input: 7900, Output: 101}})
		c := s.launch(t, []string{"--model", model, "--context-window", "10000", "--condense=false"}).mustOpen()
		_, err := c.prompt("work")
		if failure, ok := errors.AsType[*acp.Error](err); !ok || failure.Data.Kind != "context" {
			t.Errorf("got %v", err)
		}
		if s.file(t, "done") != "done\n" {
			t.Error("the call was not executed")
		}
	})
}
