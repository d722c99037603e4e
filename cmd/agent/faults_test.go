package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// always is a value for Step.Times that no test reaches.
const always = 1000

// fault is an error of the model, or of the connection to the model, during a turn.
type fault struct {
	name  string
	steps []scriptedmodel.Step
	args  []string
	// kind is the kind of the turn's error; empty if the turn completes.
	kind string
	// message is a part of the error that the user sees.
	message string
	// retry is a part of the reason that the user sees before a retry; empty if the agent must not
	// retry.
	retry string
	// requests is the expected number of requests to the model; 0 if it varies.
	requests int
}

func failed(f scriptedmodel.Failure, times int) scriptedmodel.Step {
	return scriptedmodel.Step{Failure: &f, Times: times}
}

const rateLimited = "The model's provider limits the request rate."

// callFaults are faults in which a call to the model returns no complete answer.
var callFaults = []fault{
	{name: "rate limit", steps: []scriptedmodel.Step{failing(scriptedmodel.RateLimit, 3), says("Done.")},
		retry: rateLimited, requests: 4},
	{name: "rate limit that asks to wait", requests: 2, retry: rateLimited,
		steps: []scriptedmodel.Step{failed(scriptedmodel.Failure{Kind: scriptedmodel.RateLimit, RetryAfter: 200}, 1),
			says("Done.")}},
	{name: "endless rate limit", kind: "rate_limit", message: "The agent tried ", retry: rateLimited,
		steps: []scriptedmodel.Step{failed(scriptedmodel.Failure{Kind: scriptedmodel.RateLimit,
			Message: "too fast with " + placeholder}, always)}},
	{name: "rate limit for an hour", kind: "rate_limit", message: "The provider asks to wait 1h0m0s.", requests: 1,
		steps: []scriptedmodel.Step{failed(scriptedmodel.Failure{Kind: scriptedmodel.RateLimit, RetryAfter: 3600}, 1)}},
	{name: "rate limit within a stream", retry: rateLimited, requests: 2,
		steps: []scriptedmodel.Step{failed(scriptedmodel.Failure{Kind: scriptedmodel.RateLimit, InStream: true}, 1),
			says("Done.")}},
	{name: "overload", retry: "The model's provider", requests: 3,
		steps: []scriptedmodel.Step{failing(scriptedmodel.Overloaded, 2), says("Done.")}},
	{name: "overload within a stream", retry: "The model's provider", requests: 2,
		steps: []scriptedmodel.Step{failed(scriptedmodel.Failure{Kind: scriptedmodel.Overloaded, InStream: true}, 1),
			says("Done.")}},
	{name: "internal error", retry: "internal error", requests: 2,
		steps: []scriptedmodel.Step{failing(scriptedmodel.Internal, 1), says("Done.")}},
	{name: "endless internal error", kind: "provider", message: "The agent tried ", retry: "internal error",
		steps: []scriptedmodel.Step{failing(scriptedmodel.Internal, always)}},
	{name: "unavailable", retry: "internal error", requests: 2,
		steps: []scriptedmodel.Step{failing(scriptedmodel.Unavailable, 1), says("Done.")}},
	{name: "page of a gateway", retry: "internal error", requests: 2,
		steps: []scriptedmodel.Step{failing(scriptedmodel.GatewayPage, 1), says("Done.")}},
	{name: "connection reset", retry: "The model could not be reached", requests: 2,
		steps: []scriptedmodel.Step{{Reset: true}, says("Done.")}},
	{name: "broken streams", retry: "The model could not be reached", requests: 3,
		steps: []scriptedmodel.Step{{Text: "This answer is incomplete: it breaks off.", Break: true, Times: 2},
			says("Done.")}},
	{name: "endless broken streams", kind: "network", message: "The agent tried ", retry: "The model could not be reached",
		steps: []scriptedmodel.Step{{Text: "broken off", Break: true, Times: always}}},
	{name: "refused key", kind: "authentication", message: "refused the API key", requests: 1,
		steps: []scriptedmodel.Step{failed(scriptedmodel.Failure{Kind: scriptedmodel.BadKey, Message: "wrong key " +
			placeholder}, 1)}},
	{name: "forbidden", kind: "authentication", message: "refused the API key", requests: 1,
		steps: []scriptedmodel.Step{failing(scriptedmodel.Forbidden, 1)}},
	{name: "no credit", requests: 1, message: "The provider's message: You",
		steps: []scriptedmodel.Step{failing(scriptedmodel.NoCredit, 1)}, kind: "rate_limit|provider"},
	{name: "unknown model", kind: "model_not_found", message: "no such model", requests: 1,
		steps: []scriptedmodel.Step{failing(scriptedmodel.NoSuchModel, 1)}},
	{name: "limit of the session", kind: "limit", message: "10 iterations", requests: 1,
		steps: []scriptedmodel.Step{failed(scriptedmodel.Failure{Kind: scriptedmodel.SessionLimit,
			Message: "10 iterations"}, 1)}},
	{name: "full context without summaries", kind: "context", message: "longer than the model's context", requests: 1,
		args: []string{"--condense=false"}, steps: []scriptedmodel.Step{failing(scriptedmodel.ContextTooLong, 1)}},
}

// answerFaults are faults in which the model's answer is empty or reached its maximum length.
var answerFaults = []fault{
	{name: "empty answer", steps: []scriptedmodel.Step{{}, says("Done.")}, requests: 2},
	{name: "only empty answers", steps: []scriptedmodel.Step{{Times: 2}}, requests: 2, kind: "provider",
		message: "The model answered twice with neither text nor a tool call."},
	{name: "only thoughts", steps: []scriptedmodel.Step{{Thinking: "Hm."}, says("Done.")}, requests: 2},
	{name: "cut answer", requests: 3, steps: []scriptedmodel.Step{{Text: "First part.", Cut: true},
		{Text: "Second part.", Cut: true}, says("Done.")}},
	{name: "cut before the answer", requests: 2,
		steps: []scriptedmodel.Step{{Thinking: "Hm.", Cut: true}, says("Done.")}},
}

func TestModelErrorsAreExplainedAndTheNextMessageWorks(t *testing.T) {
	t.Parallel()
	for _, f := range slices.Concat(callFaults, answerFaults) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			onBothAPIs(t, f.test)
		})
	}
}

func (f fault) test(t *testing.T, model string) {
	var steps []scriptedmodel.Step
	for _, step := range f.steps {
		step.When = func(r *scriptedmodel.Request) bool { return !r.Contains("the next message") }
		steps = append(steps, step)
	}
	s := newFixture(t, append(steps, says("Better."))...)
	c := s.launch(t, append([]string{"--model", model}, f.args...)).mustOpen()
	_, err := c.prompt("hello")
	failure, _ := errors.AsType[*acp.Error](err)
	switch {
	case f.kind == "" && (err != nil || len(c.find("Done.")) != 1):
		t.Fatalf("the turn ended with %v and the updates %s", err, c.received())
	case f.kind != "" && (failure == nil || failure.Data == nil || !slices.Contains(strings.Split(f.kind, "|"),
		failure.Data.Kind)):
		t.Fatalf("the turn ended with %#v", err)
	case f.kind != "" && (!strings.Contains(failure.Message, f.message) || strings.Contains(failure.Message,
		placeholder) || strings.ContainsAny(failure.Message, "{<")):
		t.Errorf("the message is %q", failure.Message)
	}
	if n := len(s.model.Requests()); f.requests > 0 && n != f.requests {
		t.Errorf("%d requests, want %d", n, f.requests)
	}
	c.checkRetries(f)
	if len(c.find("broken off"))+len(c.find("breaks off")) > 0 {
		t.Errorf("a broken answer is recorded: %s", c.received())
	}
	c.mustPrompt("the next message")
}

func (c *client) checkRetries(f fault) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.retry == "" {
		if len(c.retries) > 0 {
			c.t.Errorf("the agent retried because of %q", c.retries[0].Reason)
		}
		return
	}
	last := time.Unix(0, 0)
	for i, retry := range c.retries {
		if retry == nil { // the model answered
			if i < len(c.retries)-1 && f.kind == "" && !strings.Contains(f.name, "broken") {
				c.t.Error("the wait ended before the model answered")
			}
			continue
		}
		if !strings.Contains(retry.Reason, f.retry) || strings.Contains(retry.Reason, placeholder) ||
			!retry.At.After(last) || retry.At.Sub(last) > 5*time.Minute {
			c.t.Errorf("retry %d at %s: %q", i, retry.At, retry.Reason)
		}
		last = retry.At
	}
	if len(c.retries) == 0 || f.kind == "" && c.retries[len(c.retries)-1] != nil {
		c.t.Errorf("the agent reported %d retries", len(c.retries))
	}
}

func TestAnUnreachableModelIsRetriedForFiveMinutes(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	s.url = "http://127.0.0.1:1"
	c := s.launch(t, []string{"--model", "openai/scripted"}).mustOpen()
	_, err := c.prompt("hello")
	if failure, ok := errors.AsType[*acp.Error](err); !ok || failure.Data.Kind != "network" {
		t.Fatalf("got %v", err)
	}
	if last := c.retries[len(c.retries)-1].At.Sub(time.Unix(0, 0)); last < 3*time.Minute || last > 5*time.Minute {
		t.Errorf("the last try was after %s", last)
	}
}

func TestAStopImmediatelyEndsTheWaitForARetry(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, failed(scriptedmodel.Failure{Kind: scriptedmodel.RateLimit, RetryAfter: 250}, 1),
			says("Better."))
		c := s.launch(t, []string{"--model", model}, realTime+"=yes").mustOpen()
		wait := c.promptWith(nil, *acp.Text("hello"))
		eventually(t, "the agent waits for its next try", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.retries) == 1
		})
		c.send(map[string]any{"jsonrpc": "2.0", "method": acp.MethodCancel, "params": acp.CancelParams{SessionID: c.session}})
		if reason, err := wait(); reason != acp.Cancelled || err != nil {
			t.Fatalf("the turn ended with %s, %v", reason, err)
		}
		c.mustPrompt("again")
		if n := len(s.model.Requests()); n != 2 {
			t.Errorf("%d requests", n)
		}
	})
}

// The rate limit lasts for 90 seconds. The agent's clock jumps over this time.
func TestNoActionIsRepeatedAfterRateLimitsAndBrokenStreams(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		broken := scriptedmodel.Step{Text: "I will", Calls: []scriptedmodel.Call{bash("echo never >> log")}, Break: true}
		var steps []scriptedmodel.Step
		for range 3 {
			steps = append(steps, failed(scriptedmodel.Failure{Kind: scriptedmodel.RateLimit, RetryAfter: 30}, 1))
		}
		steps = append(steps, calls(bash("echo one >> log")), broken, calls(bash("echo two >> log")), broken, says("Done."))
		s := newFixture(t, steps...)
		c := s.launch(t, []string{"--model", model}).mustOpen()
		c.mustPrompt("work")
		if log := s.file(t, "log"); log != "one\ntwo\n" {
			t.Errorf("the actions are %q", log)
		}
		if waited := c.retries[2].At.Sub(time.Unix(0, 0)); waited < 90*time.Second {
			t.Errorf("the turn continued after %s", waited)
		}
		if n := s.model.Remaining(); n != 0 {
			t.Error(fmt.Sprint(n, " steps are unused"))
		}
	})
}
