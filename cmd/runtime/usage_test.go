package main_test

import (
	"encoding/json"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func (p *pod) usage(t *testing.T) (usage session.Usage) {
	t.Helper()
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceSession, UID: p.doc.UID,
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	code, body := p.get(t, session.UsagePath, session.TokenHeader, token)
	if err := json.Unmarshal([]byte(body), &usage); code != http.StatusOK || err != nil {
		t.Fatalf("the usage is %d %s", code, body)
	}
	return usage
}

func spentBy(model *scriptedmodel.Server) session.Usage {
	spent := model.Spent()
	cost := new(big.Rat)
	for _, part := range []struct {
		tokens int
		price  string
	}{{spent.Input - spent.Cached, "3"}, {spent.Cached, "0.3"}, {spent.Output, "15"}} {
		price, _ := new(big.Rat).SetString(part.price)
		cost.Add(cost, price.Mul(price, big.NewRat(int64(part.tokens), 1_000_000)))
	}
	digits, _ := cost.FloatPrec()
	return session.Usage{Calls: int64(len(model.Requests())), InputTokens: int64(spent.Input),
		OutputTokens: int64(spent.Output), Cost: cost.FloatString(digits)}
}

// The session reports the same usage as the model, even after three stops and a kill. These
// interruptions come during a command, during a model call and between turns.
func TestUsageIsCumulativeOverStopsAndKills(t *testing.T) {
	t.Parallel()
	for _, in := range []space{spaces[0], spaces[2]} {
		t.Run(in.name, func(t *testing.T) {
			t.Parallel()
			reached := filepath.Join(t.TempDir(), "reached")
			waits := func(usage scriptedmodel.Usage) scriptedmodel.Step {
				step := calls(bash("echo >> " + reached + "; sleep 600"))
				step.Usage = &usage
				return step
			}
			pod, model := scripted(t, func(d *session.Document) {
				d.Models = session.Models{"scripted/model": {Input: "3", Output: "15", CacheRead: "0.3"}}
			},
				waits(scriptedmodel.Usage{Input: 1234, Output: 56, Cached: 1000}),
				scriptedmodel.Step{Hold: make(chan struct{})},
				waits(scriptedmodel.Usage{Input: 2345, Output: 67, Cached: 1300}),
				scriptedmodel.Step{Text: "One is done.", Usage: &scriptedmodel.Usage{Input: 3456, Output: 78}},
				scriptedmodel.Step{Text: "Two is done.", Usage: &scriptedmodel.Usage{Input: 4567, Output: 89}},
			)
			p := onScratch(t, pod)
			p.doc.Scratch = in.scratch
			p.writeDocument(t)
			begin := func() {
				t.Helper()
				if in.scratch {
					p.empty(t)
				}
				p.resume(t)
			}
			waiting := func(commands int) {
				t.Helper()
				eventually(t, "the command runs", func() bool {
					text, _ := os.ReadFile(reached)
					return len(text) == commands
				})
			}
			begin()
			waiting(1)
			p.stop(t)
			begin()
			eventually(t, "the model is asked", func() bool { return len(model.Requests()) == 2 })
			p.stop(t)
			begin()
			waiting(2)
			p.killSession(t)
			begin()
			eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
			p.send(t, `{"action":"message","args":{"content":"more"}}`)
			eventually(t, "the model answers", func() bool { return model.Remaining() == 0 && over(p.eventLines(t)) })
			want := spentBy(model)
			if got := p.usage(t); got != want {
				t.Errorf("the session reports %+v, the model %+v", got, want)
			}
			p.stop(t)
			ending, err := p.store.Ending(t.Context(), p.doc.UID)
			if got := (session.Usage{Calls: ending.Calls, InputTokens: ending.InputTokens, OutputTokens: ending.OutputTokens,
				Cost: ending.Cost}); err != nil || got != want {
				t.Errorf("the archive has %+v, %v, the model %+v", got, err, want)
			}
			p.doc.IdleTimeout = metav1.Duration{Duration: time.Millisecond}
			p.writeDocument(t)
			begin()
			_, end := p.wait(t)
			if result := end.Result; end.Reason != v1alpha1.ReasonIdle || result == nil ||
				result.InputTokens != want.InputTokens || result.OutputTokens != want.OutputTokens ||
				result.Cost != want.Cost {
				t.Errorf("the session ended as %+v with %+v, the model has %+v", end, end.Result, want)
			}
			if got := recordedUsage(t, p.pod); got != want {
				t.Errorf("the journal has %+v, the model %+v", got, want)
			}
		})
	}
}

// recordedUsage returns the last usage in the journal. A later attempt continues from it.
func recordedUsage(t *testing.T, p *pod) session.Usage {
	t.Helper()
	var last struct {
		Session struct {
			Calls, Input, Output, CacheRead, CacheWrite int64
			Cost                                        string
		}
	}
	for _, e := range p.events(t) {
		if e.Meta != nil && e.Meta.Usage != nil {
			if err := json.Unmarshal(e.Meta.Usage, &last); err != nil {
				t.Fatal(err)
			}
		}
	}
	total := last.Session
	return session.Usage{Calls: total.Calls, InputTokens: total.Input + total.CacheRead + total.CacheWrite,
		OutputTokens: total.Output, Cost: total.Cost}
}

// An agent can rewrite the usage file and delete the journal of its session. The next attempt
// continues to count from the usage in the archived journal.
func TestAnAgentCannotResetTheUsageOfItsSession(t *testing.T) {
	t.Parallel()
	usage := &scriptedmodel.Usage{Input: 1000, Output: 100}
	rewrite := calls(bash(`rm -rf .parley/*.json*; echo '{"session":{"calls":0,"cost":"0"}}' > .parley/usage.json`))
	rewrite.Usage = usage
	pod, model := scripted(t, func(d *session.Document) {
		d.Models = session.Models{"scripted/model": {Input: "3", Output: "15"}}
	}, rewrite, scriptedmodel.Step{Text: "Rewritten.", Usage: usage})
	p := onScratch(t, pod)
	p.doc.Scratch = false
	p.begin(t)
	p.waitReady(t)
	// The tokens of a call are counted when the call has ended.
	eventually(t, "two calls are counted", func() bool { return p.usage(t).InputTokens == 2*int64(usage.Input) })
	p.stop(t)
	p.resume(t)
	p.waitReady(t)
	if got, want := p.usage(t), spentBy(model); got != want {
		t.Errorf("the usage is %+v, but the model counted %+v", got, want)
	}
}
