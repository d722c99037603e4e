package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func (c *client) steer(turn, id, text string) {
	c.send(map[string]any{"jsonrpc": "2.0", "method": acp.MethodSteer, "params": acp.PromptParams{SessionID: c.session,
		Prompt: []acp.Content{*acp.Text(text)}, Meta: acp.Meta{acp.MetaTurn: turn, acp.MetaMessage: id}}})
}

// steered starts the turn "1" and sends the message "2" during the turn's first step. The returned
// function waits for the end of the turn.
func steered(t *testing.T, s *fixture, c *client, hold chan struct{}) func() (acp.StopReason, error) {
	t.Helper()
	wait := c.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("work"))
	eventually(t, "the model is called", func() bool { return len(s.model.Requests()) == 1 })
	c.steer("other", "9", "A message for another turn.")
	c.steer("1", "2", "Use deploy key B.")
	// The agent reads its input in order. When it answers this request, it has therefore also read
	// the message.
	if err := c.call(acp.MethodAuthenticate, struct{}{}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	close(hold)
	return wait
}

func TestAMessageReachesTheModelBetweenTwoSteps(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		hold := make(chan struct{})
		s := newFixture(t, scriptedmodel.Step{Calls: []scriptedmodel.Call{bash("echo one >> log"), bash("echo two >> log")},
			Hold: hold}, says("Done."))
		s.write(t, ".openhands/microagents/deploy.md", "---\ntriggers: [deploy]\n---\nDeploy on Mondays only.")
		c := s.launch(t, []string{"--model", model}).mustOpen()
		if reason, err := steered(t, s, c, hold)(); err != nil || reason != acp.EndTurn {
			t.Fatalf("the turn ended with %q, %v", reason, err)
		}
		second := s.model.Requests()[1]
		if !second.Contains("Use deploy key B.") || !second.Contains("Mondays") || second.Contains("another turn") ||
			second.Result("call_0_1") == nil || s.file(t, "log") != "one\ntwo\n" {
			t.Errorf("the second request says %q", second.Said())
		}
		if n := len(c.find(acp.UserChunk, `"parley.dev/message":"2"`)); n != 1 {
			t.Errorf("%d updates report the message", n)
		}
	})
}

// A turn does not take a message that arrives during its last step. The client sends this message
// as the next prompt.
func TestAMessageDuringTheLastStepWaitsForTheNextPrompt(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	s := newFixture(t, scriptedmodel.Step{Text: "Done.", Hold: hold}, says("Key B."))
	c := s.launch(t, []string{"--model", "openai/scripted"}).mustOpen()
	if reason, err := steered(t, s, c, hold)(); err != nil || reason != acp.EndTurn {
		t.Fatalf("the turn ended with %q, %v", reason, err)
	}
	if n := len(c.find(acp.UserChunk)); n != 0 {
		t.Errorf("%d updates report the message", n)
	}
	if _, err := c.promptWith(acp.Meta{acp.MetaTurn: "2"}, *acp.Text("Use deploy key B."))(); err != nil {
		t.Fatal(err)
	}
	if text := s.model.Requests()[1].Said(); strings.Count(text, "key B") != 1 {
		t.Errorf("the second request says %q", text)
	}
}

// If the client does not receive the confirmation of a message, it sends the message again: for the
// same turn, or as the next prompt.
func TestAKilledAgentDoesNotProcessAMessageTwice(t *testing.T) {
	t.Parallel()
	script := func(hold chan struct{}) *fixture {
		return newFixture(t, scriptedmodel.Step{Calls: []scriptedmodel.Call{bash("echo one >> log")}, Hold: hold},
			says("Done."))
	}
	run := func(t *testing.T, killed int) (*fixture, *client, func() (acp.StopReason, error)) {
		t.Helper()
		hold := make(chan struct{})
		s := script(hold)
		c := s.launch(t, []string{"--model", "anthropic/scripted"}, fmt.Sprintf("%s=%d", killAt, killed)).mustOpen()
		return s, c, steered(t, s, c, hold)
	}
	s, c, wait := run(t, 0)
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	records := collect(t, s, c).records
	at := slices.Index(records[2:], "prompt") + 3
	if at < 3 {
		t.Fatalf("the records are %q", records)
	}
	for turn, text := range map[string]string{"1": "work", "2": "Use deploy key B."} {
		s, first, wait := run(t, at)
		if _, err := wait(); !errors.Is(err, errExited) {
			t.Fatalf("the agent was not killed: %v", err)
		}
		second := s.launch(t, []string{"--model", "anthropic/scripted"})
		second.session = first.session
		if err := second.call(acp.MethodLoadSession, second.params(), &struct{}{}); err != nil {
			t.Fatal(err)
		}
		if n := len(second.find(acp.UserChunk, `"parley.dev/message":"2"`)); n != 1 {
			t.Errorf("%d updates report the message after the restart", n)
		}
		end := second.promptWith(acp.Meta{acp.MetaTurn: turn}, *acp.Text(text))
		second.steer("1", "2", "Use deploy key B.")
		if reason, err := end(); err != nil || reason != acp.EndTurn {
			t.Fatalf("the turn ended with %q, %v", reason, err)
		}
		last := s.model.Requests()[1]
		if strings.Count(last.Said(), "key B") != 1 || s.file(t, "log") != "one\n" {
			t.Errorf("turn %s: the last request says %q", turn, last.Said())
		}
	}
}

func TestMessagesToACancelledTurnAreDropped(t *testing.T) {
	t.Parallel()
	s := newFixture(t, scriptedmodel.Step{Calls: []scriptedmodel.Call{bash("sleep 1000")}}, says("Done."))
	c := s.launch(t, []string{"--model", "openai/scripted"}).mustOpen()
	wait := c.promptWith(acp.Meta{acp.MetaTurn: "1"}, *acp.Text("work"))
	eventually(t, "the command runs", func() bool { return len(c.find(acp.ToolUpdate, acp.InProgress)) == 1 })
	c.steer("1", "2", "Use key B.")
	c.send(map[string]any{"jsonrpc": "2.0", "method": acp.MethodCancel, "params": acp.CancelParams{SessionID: c.session}})
	if reason, err := wait(); err != nil || reason != acp.Cancelled {
		t.Fatalf("the turn ended with %q, %v", reason, err)
	}
	c.mustPrompt("Use key B.")
	if text := s.model.Requests()[1].Said(); strings.Count(text, "key B") != 1 {
		t.Errorf("the second request says %q", text)
	}
}
