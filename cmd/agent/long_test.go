package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// The conversation has 300 steps. The model's context window has 32,000 tokens, but the settings do
// not contain this number.
func TestALongConversationFitsIntoASmallContext(t *testing.T) {
	t.Parallel()
	const window, turns, steps = 32_000, 10, 30
	onBothAPIs(t, func(t *testing.T, model string) {
		script := scriptedmodel.Script{Window: window, Default: "SUMMARY " + strings.Repeat("word ", 400)}
		for turn := range turns {
			for step := range steps {
				script.Steps = append(script.Steps, calls(bash(fmt.Sprintf("seq -f 'line %%g of step %d of turn %d' 150",
					step, turn))))
			}
			script.Steps = append(script.Steps, says(fmt.Sprintf("Turn %d is done.", turn)))
		}
		s := newScript(t, script)
		c := s.launch(t, []string{"--model", model}).mustOpen()
		var costs []int
		seen, summaries, refused := 0, 0, 0
		for turn := range turns {
			if turn == turns/2 { // the agent keeps the learned window after a restart
				_ = c.cmd.Process.Kill()
				<-c.exited
				session := c.session
				c = s.launch(t, []string{"--model", model})
				c.session = session
				if err := c.call(acp.MethodLoadSession, c.params(), &struct{}{}); err != nil {
					t.Fatal(err)
				}
			}
			message := fmt.Sprintf("This is message %d: ", turn) + strings.Repeat(fmt.Sprintf("wish%d ", turn), 3000/(turn+1))
			c.mustPrompt(message)
			cost := 0
			for _, request := range s.model.Requests()[seen:] {
				seen++
				if !request.Contains(strings.TrimSpace(message)) {
					t.Fatalf("request %d lacks the latest message", seen)
				}
				if request.Step == -2 {
					refused++
					continue
				}
				if cost += request.Tokens; len(request.Tools) == 0 {
					summaries++
				}
			}
			costs = append(costs, cost)
		}
		t.Logf("input tokens of each turn: %v; %d summaries, %d refused requests", costs, summaries, refused)
		if s.model.Remaining() > 0 || refused != 1 || summaries < turns || summaries > turns*steps/5 {
			t.Errorf("%d steps remain; %d refused requests; %d summaries", s.model.Remaining(), refused, summaries)
		}
		for turn, cost := range costs {
			if cost/steps > window {
				t.Errorf("turn %d cost %d tokens per step", turn, cost/steps)
			}
		}
		last := s.model.Requests()[seen-1]
		if !last.Contains("This is message 0") || !last.Contains("SUMMARY") || last.Contains("turn 0") {
			t.Errorf("the last request says %.2000q", last.Said())
		}
	})
}

// The message fills more than half of the context and is never summarised. A summary can free only
// the space of the steps after the message.
func TestSummariesStayRareAfterALongMessage(t *testing.T) {
	t.Parallel()
	const steps = 24
	onBothAPIs(t, func(t *testing.T, model string) {
		script := scriptedmodel.Script{Window: 32_000, Default: "SUMMARY"}
		for step := range steps {
			script.Steps = append(script.Steps, calls(bash(fmt.Sprintf("seq -f 'line %%g of step %d' 150", step))))
		}
		script.Steps = append(script.Steps, says("Done."))
		s := newScript(t, script)
		c := s.launch(t, []string{"--model", model, "--context-window", "32000"}).mustOpen()
		message := strings.TrimSpace(strings.Repeat("wish ", 14_000)) // 17,500 of 32,000 tokens
		c.mustPrompt(message)
		summaries := 0
		for i, request := range s.model.Requests() {
			if !request.Contains(message) {
				t.Errorf("request %d lacks the message", i)
			}
			if len(request.Tools) == 0 {
				summaries++
			}
		}
		if summaries == 0 || summaries > steps/3 {
			t.Errorf("%d summaries in %d steps", summaries, steps)
		}
	})
}

func TestATurnEndsWithAnErrorIfItsMessageDoesNotFitIntoTheContext(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newScript(t, scriptedmodel.Script{Window: 8000, Default: "SUMMARY", Steps: []scriptedmodel.Step{says("Done.")}})
		c := s.launch(t, []string{"--model", model}).mustOpen()
		_, err := c.prompt(strings.Repeat("long ", 8000))
		if err == nil || !strings.Contains(err.Error(), "does not fit into the model's context of 8000 tokens") {
			t.Fatalf("got %v", err)
		}
		if n := len(s.model.Requests()); n != 1 {
			t.Errorf("%d requests", n)
		}
		c.mustPrompt("short")
	})
}
