package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func (s *fixture) reopen(t *testing.T, before *client, args ...string) *client {
	t.Helper()
	_ = before.cmd.Process.Kill()
	<-before.exited
	c := s.launch(t, args)
	c.session = before.session
	if err := c.call(acp.MethodLoadSession, c.params(), &struct{}{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// The scripted model refuses a history as the providers do: Gemini 3 requires its signatures, and
// OpenAI rejects Google's fields. A refusal fails the test.
func TestGeminiGetsItsSignaturesBack(t *testing.T) {
	t.Parallel()
	const gemini, gpt = "gemini/gemini-3-pro-preview", "openai/gpt-4.1"
	for name, models := range map[string][2]string{
		"from the log":             {gemini, gemini},
		"after a change to Gemini": {gpt, gemini},
		"after a change to GPT":    {gemini, gpt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, calls(bash("echo one >> log")), calls(bash("echo two >> log"), bash("echo three >> log")),
				says("Done."), calls(bash("echo four >> log")), says("Done."))
			c := s.launch(t, []string{"--model", models[0]}).mustOpen()
			c.mustPrompt("work")
			s.reopen(t, c, "--model", models[1]).mustPrompt("more")
			if log := s.file(t, "log"); log != "one\ntwo\nthree\nfour\n" {
				t.Errorf("the actions are %q", log)
			}
		})
	}
}

func TestOnlyClaudeModelsGetCacheMarks(t *testing.T) {
	t.Parallel()
	for model, marks := range map[string]int{"openrouter/anthropic/claude-sonnet-4.5": 2, "litellm_proxy/claude-x": 2,
		"openai/gpt-4.1": 0, "anthropic/claude-sonnet-4-5": 3} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, calls(bash("echo one")), says("Done."))
			s.launch(t, []string{"--model", model}).mustOpen().mustPrompt("work")
			for i, request := range s.model.Requests() {
				if request.Cached != marks {
					t.Errorf("request %d has %d cache marks, want %d", i, request.Cached, marks)
				}
			}
		})
	}
}

func TestEffortAndTemperatureReachTheModel(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		model string
		args  []string
		want  []string
		lacks string
	}{
		{"openai/gpt-5.1", []string{"--reasoning-effort=high"}, []string{`"reasoning_effort":"high"`}, "temperature"},
		{"openai/gpt-4.1", []string{"--temperature=0.2"}, []string{`"temperature":0.2`}, "reasoning_effort"},
		{"anthropic/claude-sonnet-4-5", []string{"--reasoning-effort=medium", "--temperature=0.5"},
			[]string{`"thinking":{"budget_tokens":6000,"type":"enabled"}`, `"max_tokens":22000`}, "temperature"},
		{"anthropic/claude-opus-4-6", []string{"--reasoning-effort=high"},
			[]string{`"output_config":{"effort":"high"}`, `"type":"adaptive"`}, "temperature"},
		{"anthropic/claude-sonnet-4-5", []string{"--reasoning-effort=none", "--temperature=0.5"},
			[]string{`"temperature":0.5`}, "budget_tokens"},
	} {
		t.Run(fmt.Sprint(i, " ", c.model), func(t *testing.T) {
			t.Parallel()
			thinks := calls(bash("echo one"))
			thinks.Thinking = "Hm."
			s := newFixture(t, thinks, calls(bash("echo two")), says("Done."))
			s.launch(t, append([]string{"--model", c.model}, c.args...)).mustOpen().mustPrompt("work")
			first := string(s.model.Requests()[0].Raw)
			for _, want := range c.want {
				if !strings.Contains(first, want) {
					t.Errorf("the request lacks %s: %.200s", want, first)
				}
			}
			if strings.Contains(first, c.lacks) {
				t.Errorf("the request has %s", c.lacks)
			}
		})
	}
}

func TestTheModelIsAskedToContinueAnEmptyOrTruncatedAnswer(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, scriptedmodel.Step{}, scriptedmodel.Step{Text: "A part", Cut: true}, says(" and its end."))
		s.launch(t, []string{"--model", model}).mustOpen().mustPrompt("work")
		requests := s.model.Requests()
		if len(requests) != 3 || !requests[1].Contains("Your answer was empty.") ||
			!requests[2].Contains("Continue exactly where it stopped") || !requests[2].Contains("A part") {
			t.Errorf("the model received %d requests, the last says %q", len(requests), requests[len(requests)-1].Said())
		}
	})
}

func TestARestartedAgentDoesNotRepeatARequestToContinue(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		killed := true
		for n := 2; killed; n++ {
			s := newFixture(t, scriptedmodel.Step{}, scriptedmodel.Step{Text: "A part", Cut: true}, says(" and its end."))
			turn := acp.Meta{acp.MetaTurn: "1"}
			c := s.launch(t, []string{"--model", model}, fmt.Sprintf("%s=%d", killAt, n)).mustOpen()
			_, err := c.promptWith(turn, *acp.Text("work"))()
			if killed = errors.Is(err, errExited); killed {
				c = s.reopen(t, c, "--model", model)
				if reason, err := c.promptWith(turn, *acp.Text("work"))(); reason != acp.EndTurn || err != nil {
					t.Fatalf("killed at record %d: the turn ended with %s, %v", n, reason, err)
				}
			}
			last := s.model.Requests()[len(s.model.Requests())-1].Said()
			if len(s.model.Requests()) != 3 || strings.Count(last, "Your answer was empty.") != 1 ||
				strings.Count(last, "Continue exactly where it stopped") != 1 {
				t.Errorf("killed at record %d: %d requests, the last says %q", n, len(s.model.Requests()), last)
			}
		}
	})
}
