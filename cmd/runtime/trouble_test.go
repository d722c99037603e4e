package main_test

import (
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// rateLimited returns a step in which the model refuses two requests because of a rate limit. With
// PARLEY_RATE_LIMIT=90s, the model instead refuses all requests of the first 90 seconds, and does
// not say when to retry.
func rateLimited(t *testing.T) (step scriptedmodel.Step, isSlow bool) {
	t.Helper()
	failure := &scriptedmodel.Failure{Kind: scriptedmodel.RateLimit, RetryAfter: 1}
	if limitedFor == 0 {
		return scriptedmodel.Step{Failure: failure, Times: 2}, false
	}
	failure.RetryAfter = -1
	first := sync.OnceValue(time.Now)
	return scriptedmodel.Step{Failure: failure, Times: math.MaxInt, When: func(*scriptedmodel.Request) bool {
		return time.Since(first()) < limitedFor
	}}, true
}

// The turn needs three model calls, and the limit is three. Failed calls must not count.
func TestATurnSurvivesRateLimitsAndBrokenStreams(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"anthropic/model", "scripted/model"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			limited, isSlow := rateLimited(t)
			broken := scriptedmodel.Step{Text: "I will", Calls: []scriptedmodel.Call{bash("echo never >> log")}, Break: true,
				Usage: &scriptedmodel.Usage{}}
			first, second := calls(bash("echo one >> log")), calls(bash("echo two >> log"))
			first.Usage = &scriptedmodel.Usage{Input: 1000, Output: 10}
			second.Usage = &scriptedmodel.Usage{Input: 2000, Output: 20, Cached: 500}
			p, server := scripted(t, func(d *session.Document) {
				d.Settings.LLMModel, d.Settings.MaxIterations = ptr.To(model), ptr.To[int32](3)
				d.Models = session.Models{"model": {Input: "3", Output: "15", CacheRead: "0.3"}}
			}, limited, first, broken, second, broken, scriptedmodel.Step{Text: "Done.", Usage: &scriptedmodel.Usage{Input: 3000,
				Output: 30}})
			p.start(t)
			eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
			lines := p.eventLines(t)
			if log := p.file("log"); log != "one\ntwo\n" || !slices.ContainsFunc(lines, func(line string) bool {
				return strings.Contains(line, "Done.")
			}) {
				t.Errorf("the actions are %q, and the events\n%s", log, strings.Join(lines, "\n"))
			}
			want := session.Usage{Calls: 3, InputTokens: 6000, OutputTokens: 60, Cost: "0.01755"}
			if got := recordedUsage(t, p); got != want {
				t.Errorf("the session reports %+v, want %+v", got, want)
			}
			if violations := server.Violations(); len(violations) > 0 || server.Remaining() > 0 && !isSlow {
				t.Errorf("%d steps are left; the model refused %q", server.Remaining(), violations)
			}
			var shown []string
			for _, e := range p.events(t) {
				if at, _ := e.Extras["retry_at"].(string); at != "" {
					shown = append(shown, e.Extras["reason"].(string))
				}
			}
			requests := len(server.Requests())
			t.Logf("%d requests for 3 answers", requests)
			if len(shown) != requests-3 || len(shown) < 4 || !strings.Contains(shown[0], "limits the request rate") ||
				!strings.Contains(shown[0], "Next try at ") {
				t.Errorf("the user saw %q", shown)
			}
		})
	}
}

func TestTheUserCanStopATurnThatWaitsForARetry(t *testing.T) {
	t.Parallel()
	p, model := scripted(t, nil, scriptedmodel.Step{Failure: &scriptedmodel.Failure{Kind: scriptedmodel.RateLimit,
		RetryAfter: 250}}, says("Done."))
	p.start(t)
	shown := func() bool { return strings.Contains(p.file(".parley/events.jsonl"), `"retry_at":"`) }
	eventually(t, "the user sees the time of the next try", shown)
	p.send(t, `{"action":"change_agent_state","args":{"agent_state":"stopped"}}`)
	eventually(t, "the turn is stopped", func() bool {
		lines := p.eventLines(t)
		return strings.HasSuffix(lines[len(lines)-1], string(session.StateStopped))
	})
	p.send(t, `{"action":"message","args":{"content":"again"}}`)
	eventually(t, "the next message is answered", func() bool { return over(p.eventLines(t)) })
	if n := len(model.Requests()); n != 2 {
		t.Errorf("the model got %d requests", n)
	}
}
