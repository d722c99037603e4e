package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// killScript covers all features of a turn: text, single and parallel calls, reads, edits, a task
// list, a directory's AGENTS.md and shell state.
func killScript() []scriptedmodel.Step {
	return []scriptedmodel.Step{
		{Text: "I begin.", Calls: []scriptedmodel.Call{bash("mkdir sub && echo Rules of sub. > sub/AGENTS.md && " +
			"cd sub && export X=kept && g() { echo $X; }; echo run1 >> ../log")}},
		{Calls: []scriptedmodel.Call{bash("echo run2 $(g) $(basename $PWD) >> ../log"),
			editor(map[string]any{"command": "create", "path": "made", "file_text": "a\n"}),
			editor(map[string]any{"command": "view", "path": "made"})}},
		{Calls: []scriptedmodel.Call{{Name: "task_tracker", Input: scriptedmodel.Input(map[string]any{"command": "plan",
			"task_list": []any{map[string]any{"title": "t", "status": "todo"}}})},
			editor(map[string]any{"command": "insert", "path": "made", "insert_line": 1, "new_str": "b"})}},
		{Calls: []scriptedmodel.Call{{Name: "task_tracker", Input: scriptedmodel.Input(map[string]any{"command": "view"})},
			bash("cat ../made; cat ../log")}},
		{Text: "I am done."},
	}
}

type outcome struct {
	records  []string
	files    map[string]string
	updates  []string
	requests []string
}

func collect(t *testing.T, s *fixture, c *client) outcome {
	t.Helper()
	o := outcome{files: map[string]string{"log": s.file(t, "log"), "made": s.file(t, "made")}}
	normal := func(text string) string { return strings.ReplaceAll(text, s.dir, "DIR") }
	for _, update := range c.received() {
		o.updates = append(o.updates, normal(string(update)))
	}
	for _, request := range s.model.Requests() {
		o.requests = append(o.requests, normal(string(request.Raw)))
	}
	content, err := os.ReadFile(filepath.Join(s.home, ".parley-agent", c.session, "log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		var record struct {
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatal(err)
		}
		o.records = append(o.records, record.Kind)
	}
	return o
}

func TestATurnResumesAfterAKillAtAnyRecord(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		args := []string{"--model", model, "--confirm"}
		undisturbed := newFixture(t, killScript()...)
		c := undisturbed.launch(t, args).mustOpen()
		c.mustPrompt("work")
		want := collect(t, undisturbed, c)
		if want.files["log"] != "run1\nrun2 kept sub\n" || want.files["made"] != "a\nb\n" ||
			strings.Count(want.requests[4], "Rules of sub.\"") != 1 {
			t.Fatalf("undisturbed: %v", want.files)
		}
		for n := 2; n <= len(want.records); n++ {
			t.Run(fmt.Sprintf("%d %s", n, want.records[n-1]), func(t *testing.T) {
				s := newFixture(t, killScript()...)
				first := s.launch(t, args, fmt.Sprintf("%s=%d", killAt, n)).mustOpen()
				if _, err := first.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("work"))(); !errors.Is(err, errExited) {
					t.Fatalf("the agent was not killed: %v", err)
				}
				second := s.launch(t, args)
				second.session = first.session
				if err := second.call(acp.MethodLoadSession, second.params(), &struct{}{}); err != nil {
					t.Fatal(err)
				}
				if reason, err := second.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("work"))(); err != nil ||
					reason != acp.EndTurn {
					t.Fatalf("the turn ended with %q, %v", reason, err)
				}
				got := collect(t, s, second)
				if !slices.Equal(got.updates[:len(first.received())], normalised(first.received(), s.dir)) {
					t.Error("the second agent sends other updates than the first")
				}
				if want.records[n-1] == "begun" {
					checkInterrupted(t, s, second, want, got)
					return
				}
				compare(t, want, got)
			})
		}
	})
}

func normalised(updates []json.RawMessage, dir string) (texts []string) {
	for _, update := range updates {
		texts = append(texts, strings.ReplaceAll(string(update), dir, "DIR"))
	}
	return texts
}

func compare(t *testing.T, want, got outcome) {
	t.Helper()
	if fmt.Sprint(got.files) != fmt.Sprint(want.files) {
		t.Errorf("the files are %v, want %v", got.files, want.files)
	}
	for kind, pair := range map[string][2][]string{"record": {got.records, want.records}, "update": {got.updates,
		want.updates}, "request": {got.requests, want.requests}} {
		if len(pair[0]) != len(pair[1]) {
			t.Errorf("there are %d %ss, want %d", len(pair[0]), kind, len(pair[1]))
			continue
		}
		for i := range pair[0] {
			if pair[0][i] != pair[1][i] {
				t.Errorf("%s %d is\n%s\nwant\n%s", kind, i, pair[0][i], pair[1][i])
			}
		}
	}
}

// checkInterrupted checks that the agent tells the model about an interrupted call, and does not
// repeat the call.
func checkInterrupted(t *testing.T, s *fixture, c *client, want, got outcome) {
	t.Helper()
	if n := len(c.find(`"tool_call_update"`, `"failed"`, "interrupted by a restart")); n != 1 {
		t.Errorf("%d calls were reported as interrupted", n)
	}
	requests := s.model.Requests()
	if !requests[len(requests)-1].Contains("interrupted by a restart") {
		t.Error("the model was not told about the interruption")
	}
	for _, run := range []string{"run1", "run2"} {
		if strings.Count(got.files["log"], run) > 1 {
			t.Errorf("%s was run twice", run)
		}
	}
	if len(got.records) != len(want.records) || len(got.updates) != len(want.updates) {
		t.Errorf("%d records and %d updates, want %d and %d", len(got.records), len(got.updates), len(want.records),
			len(want.updates))
	}
}

func TestAnInterruptedCommandIsNotRunAgain(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, calls(bash("echo begun >> log; echo $$ > pid; sleep 1000; echo ended >> log"),
			bash("echo next >> log")), says("Done."))
		first := s.launch(t, []string{"--model", model}).mustOpen()
		wait := first.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("work"))
		eventually(t, "the command is running", func() bool { return s.file(t, "pid") != "" })
		_ = first.cmd.Process.Kill()
		if _, err := wait(); !errors.Is(err, errExited) {
			t.Fatal(err)
		}
		second := s.launch(t, []string{"--model", model})
		second.session = first.session
		if err := second.call(acp.MethodLoadSession, second.params(), &struct{}{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the processes of the killed agent end", func() bool { return !alive(t, s.file(t, "pid")) })
		if reason, err := second.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("work"))(); err != nil ||
			reason != acp.EndTurn {
			t.Fatalf("the turn ended with %q, %v", reason, err)
		}
		if got := s.file(t, "log"); got != "begun\nnext\n" {
			t.Errorf("the log is %q", got)
		}
		if got := s.model.Requests()[1].Result("call_0_0"); !strings.Contains(got.Text, "interrupted by a restart") ||
			!strings.Contains(got.Text, "partly done") {
			t.Errorf("the model receives %q", got.Text)
		}
	})
}

// The agent repairs the history, learns the context window and writes summaries in this turn. Each
// of these steps has its own kind of record.
func TestATurnResumesAfterAKillDuringARepairOrSummary(t *testing.T) {
	t.Parallel()
	const actions = 8
	script := scriptedmodel.Script{Window: 5000, Default: "SUMMARY"}
	for i := range actions {
		script.Steps = append(script.Steps, calls(bash(fmt.Sprintf("echo %d >> log; seq %d0000 %[1]d0500", i, i))))
	}
	refusal := scriptedmodel.Step{Failure: &scriptedmodel.Failure{Kind: scriptedmodel.BadRequest,
		Message: "messages.1.content.0: refused"}}
	script.Steps = append(slices.Insert(script.Steps, 1, refusal), says("Done."))
	onBothAPIs(t, func(t *testing.T, model string) {
		undisturbed := newScript(t, script)
		c := undisturbed.launch(t, []string{"--model", model}).mustOpen()
		c.mustPrompt("work")
		want := collect(t, undisturbed, c)
		for _, kind := range []string{"repaired", "window", "condensed"} {
			if !slices.Contains(want.records, kind) {
				t.Fatalf("the records are %q", want.records)
			}
		}
		for n := range want.records {
			if kind := want.records[n]; kind != "repaired" && kind != "window" && kind != "condensed" {
				continue
			}
			s := newScript(t, script)
			first := s.launch(t, []string{"--model", model}, fmt.Sprintf("%s=%d", killAt, n+1)).mustOpen()
			if _, err := first.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("work"))(); !errors.Is(err, errExited) {
				t.Fatalf("the agent was not killed: %v", err)
			}
			second := s.launch(t, []string{"--model", model})
			second.session = first.session
			if err := second.call(acp.MethodLoadSession, second.params(), &struct{}{}); err != nil {
				t.Fatal(err)
			}
			if reason, err := second.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("work"))(); err != nil ||
				reason != acp.EndTurn {
				t.Fatalf("after %s the turn ended with %q, %v", want.records[n], reason, err)
			}
			if got := s.file(t, "log"); got != want.files["log"] || strings.Count(got, "\n") != actions {
				t.Errorf("after %s the actions are %q", want.records[n], got)
			}
		}
	})
}
