package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// paidBy gives the session an archive token that charges its costs to the user ada, within these
// limits.
func (p *scratchPod) paidBy(t *testing.T, limits session.SpendLimits) {
	t.Helper()
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceArchive, UID: p.doc.UID,
		Expires: time.Now().Add(time.Hour).Unix(),
		Spend:   &session.SpendClaims{Owner: "ada", Namespace: "team", PerUser: limits, Soft: 50}})
	if err != nil {
		t.Fatal(err)
	}
	p.secrets[session.ArchiveTokenFile] = token
}

func (p *scratchPod) spent(t *testing.T) session.SpendUsage {
	t.Helper()
	usage, err := p.store.Usage(t.Context(), "ada", "", "")
	if err != nil {
		t.Fatal(err)
	}
	return usage
}

// ledgerHas waits until the ledger has exactly the costs that the model counted.
func (p *scratchPod) ledgerHas(t *testing.T, model *scriptedmodel.Server) {
	t.Helper()
	want, err := session.ParseDollars(spentBy(model).Cost)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ledger has "+want.String(), func() bool {
		usage := p.spent(t)
		return usage.Spent-usage.Unsettled == want
	})
}

// The session is stopped, killed and restarted in its container, and its agent deletes all files
// that it can reach. Afterwards, the ledger still contains the cost of every call that the stub of
// the model received.
func TestTheLedgerContainsTheCostsOfModelCalls(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]session.SpendLimits{"unlimited": {}, "limited": {Day: 50 * session.Dollar}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached := filepath.Join(t.TempDir(), "reached")
			const destroy = `rm -rf .parley/usage.json .parley/*.json* ~/.cache; echo '{"session":{"calls":0,"cost":"0"}}' ` +
				`> .parley/usage.json; `
			waits := func(usage scriptedmodel.Usage) scriptedmodel.Step {
				step := calls(bash(destroy + "echo >> " + reached + "; sleep 600"))
				step.Usage = &usage
				return step
			}
			pod, model := scripted(t, func(d *session.Document) {
				d.Models = session.Models{"scripted/model": {Input: "3", Output: "15", CacheRead: "0.3"}}
			},
				waits(scriptedmodel.Usage{Input: 1234, Output: 56, Cached: 1000}),
				waits(scriptedmodel.Usage{Input: 2345, Output: 67, Cached: 1300}),
				waits(scriptedmodel.Usage{Input: 3333, Output: 77}),
				scriptedmodel.Step{Text: "One is done.", Usage: &scriptedmodel.Usage{Input: 3456, Output: 78}},
			)
			p := onScratch(t, pod)
			p.paidBy(t, limits)
			waiting := func(commands int) {
				t.Helper()
				eventually(t, "the command runs", func() bool {
					text, _ := os.ReadFile(reached)
					return len(text) == commands
				})
				p.ledgerHas(t, model)
			}
			p.begin(t)
			waiting(1)
			p.stop(t)
			if got := p.spent(t); got.Reserved != 0 || got.Unsettled != 0 {
				t.Errorf("after a stop the ledger has %+v", got)
			}
			p.resume(t)
			waiting(2)
			p.killSession(t)
			p.start(t) // the same attempt
			waiting(3)
			p.killSession(t)
			p.resume(t)
			eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
			p.stop(t)
			p.ledgerHas(t, model)
			usage := p.spent(t)
			if limited := limits.Day > 0; usage.Reserved != 0 || limited != (usage.Unsettled > 0) {
				t.Errorf("the ledger has %+v", usage)
			}
			t.Logf("the ledger has %s and %s unsettled", usage.Spent-usage.Unsettled, usage.Unsettled)
		})
	}
}

func TestASessionAboveItsSpendingLimitShowsTheReason(t *testing.T) {
	t.Parallel()
	pod, model := scripted(t, func(d *session.Document) {
		d.Models = session.Models{"scripted/model": {Input: "3", Output: "15", MaxOutput: 1000}}
	}, scriptedmodel.Step{Text: "One.", Usage: &scriptedmodel.Usage{Input: 1000, Output: 20000}}, says("Two."))
	p := onScratch(t, pod)
	p.paidBy(t, session.SpendLimits{Month: session.Dollar / 4})
	p.begin(t)
	eventually(t, "the turn is over", func() bool { // a notice may follow
		_, after, _ := strings.Cut(strings.Join(p.eventLines(t), "\n"), "One.")
		return strings.Contains(after, string(session.StateAwaiting))
	})
	p.send(t, `{"action":"message","args":{"content":"more"}}`)
	const message = "spending limit of $0.25 per month for this user is reached: $0.31 spent or reserved; resets "
	eventually(t, "the turn fails", func() bool { return strings.Contains(strings.Join(p.eventLines(t), "\n"), message) })
	if got := len(model.Requests()); got != 1 {
		t.Errorf("the model got %d calls", got)
	}
	notices := strings.Join(p.notices(t), "\n")
	if !strings.Contains(notices, "spending limit of $0.25 per month for this user: ") {
		t.Errorf("the notices are %s", notices)
	}
	eventually(t, "nothing is reserved", func() bool { return p.spent(t).Reserved == 0 })
}

func TestASessionWithASpendingLimitRefusesCallsIfTheArchiveIsUnavailable(t *testing.T) {
	t.Parallel()
	pod, model := scripted(t, func(d *session.Document) {
		d.Models = session.Models{"scripted/model": {Input: "3", Output: "15"}}
	}, says("One."))
	p := onScratch(t, pod)
	p.paidBy(t, session.SpendLimits{Month: 100 * session.Dollar})
	p.away.Store(true)
	p.begin(t)
	eventually(t, "the turn fails", func() bool {
		return strings.Contains(strings.Join(p.eventLines(t), "\n"),
			"the spending limit cannot be checked: the archive does not answer")
	})
	if got := len(model.Requests()); got != 0 {
		t.Errorf("the model got %d calls", got)
	}
	p.away.Store(false)
}
