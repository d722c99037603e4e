package archivetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/store"
)

const cent = session.Dollar / 100

// Clock is a clock that tests set.
type Clock struct{ now atomic.Pointer[time.Time] }

// Set sets the time.
func (c *Clock) Set(now time.Time) { c.now.Store(&now) }

// LaggingClock returns a clock that lags behind this clock by a duration.
func (c *Clock) LaggingClock(by time.Duration) func() time.Time {
	return func() time.Time { return c.now.Load().Add(-by) }
}

// provider counts the costs of all calls, as a model provider does. When a call begins, provider
// checks that the costs of all ended calls plus the highest possible costs of all calls in flight
// stay within the limits.
type provider struct {
	t       *testing.T
	claims  session.SpendClaims
	mu      sync.Mutex
	periods map[string]session.Dollars // costs so far plus highest possible costs in flight, by scope and period
	highest map[string]session.Dollars // the highest value so far of each entry of periods
	calls   int
	refused int
	killed  int
	repeats int
	// counted is the reported cost. lost is the real cost of calls that were never reported.
	counted, lost session.Dollars
}

func (p *provider) scopes(owner, day string) []string {
	return []string{owner + " " + day, owner + " " + day[:7], "all " + day, "all " + day[:7]}
}

func (p *provider) limitOf(scope string) session.Dollars {
	limits := p.claims.PerUser
	if strings.HasPrefix(scope, "all ") {
		limits = p.claims.PerNamespace
	}
	if strings.Count(scope, "-") == 2 {
		return limits.Day
	}
	return limits.Month
}

// send begins a call. The argument highest is the highest possible cost of the call. The returned
// function ends the call with its real cost.
func (p *provider) send(owner, day string, highest session.Dollars) (end func(cost session.Dollars)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	for _, scope := range p.scopes(owner, day) {
		p.periods[scope] += highest
		p.highest[scope] = max(p.highest[scope], p.periods[scope])
		if limit := p.limitOf(scope); limit > 0 && p.periods[scope] > limit {
			p.t.Errorf("%s: %s spent or in flight, the limit is %s", scope, p.periods[scope], limit)
		}
	}
	return func(cost session.Dollars) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, scope := range p.scopes(owner, day) {
			p.periods[scope] += cost - highest
		}
	}
}

func (p *provider) count(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// spendingSession is one process of a session. It makes one call at a time.
type spendingSession struct {
	provider *provider
	stores   []Store
	claims   session.SpendClaims
	uid      string
	attempt  int
	sequence int64
	run      int64
	day      string
	days     []string
	// granted is the amount of the last grant. spent is the cost of all ended calls. reported is
	// the cost that the session had reported when it got the last grant.
	granted, reported, spent session.Dollars
	lines                    map[string]session.SpentLine
	sent                     []session.SpendReport
}

func (s *spendingSession) report(need, want session.Dollars, open map[string]session.Dollars,
	final bool) session.SpendReport {
	s.sequence++
	report := session.SpendReport{Run: s.run, Sequence: s.sequence, Need: need, Want: want, Final: final,
		Open: map[string]session.Dollars{}}
	for _, day := range s.days {
		report.Open[day] = open[day]
		if line, found := s.lines[day]; found {
			report.Spent = append(report.Spent, line)
		}
	}
	s.sent = append(s.sent, report)
	return report
}

// ask sends reports until the archive answers a report. Each report has a new sequence number.
func (s *spendingSession) ask(ctx context.Context, need, want session.Dollars, final bool) (session.SpendGrant, error) {
	for {
		report, spent := s.report(need, want, nil, final), s.spent
		grant, err := s.stores[rand.N(len(s.stores))].Spend(ctx, s.uid, s.attempt, s.claims, report)
		switch {
		case errors.Is(err, store.ErrSuperseded):
			return grant, err
		case err != nil:
			continue // the answer is lost, or the archive failed
		}
		if rand.N(8) == 0 { // a repeated report must get the same answer
			s.provider.count(func() { s.provider.repeats++ })
			again, err := s.stores[rand.N(len(s.stores))].Spend(ctx, s.uid, s.attempt, s.claims, report)
			if err == nil && again.Day == grant.Day && again.Reserved != grant.Reserved {
				s.provider.t.Errorf("the repeated report is answered with %+v, the first with %+v", again, grant)
			}
		}
		s.day, s.granted, s.reported = grant.Day, grant.Reserved, spent
		if !slices.Contains(s.days, s.day) {
			s.days = append(s.days, s.day)
		}
		return grant, nil
	}
}

// work makes calls. The argument kill is the probability that the session is killed during a call.
func (s *spendingSession) work(ctx context.Context, calls int, kill float64) (killed bool) {
	for range calls {
		highest := cent/2 + rand.N(2*cent)
		if s.granted-(s.spent-s.reported) < highest {
			grant, err := s.ask(ctx, highest, 8*highest, false)
			if err != nil {
				s.provider.t.Errorf("%s, attempt %d: %v", s.uid, s.attempt, err)
				return false
			}
			if grant.Reserved < highest {
				if grant.Refusal == nil {
					s.provider.t.Errorf("%+v for %s has no refusal", grant, highest)
				}
				s.provider.count(func() { s.provider.refused++ })
				continue
			}
		}
		end, cost := s.provider.send(s.claims.Owner, s.day, highest), rand.N(highest)
		if rand.Float64() < kill {
			end(cost)
			s.provider.count(func() {
				s.provider.killed++
				s.provider.counted += s.reported
				s.provider.lost += s.spent - s.reported + cost
			})
			return true
		}
		end(cost)
		line := s.lines[s.day]
		line.Period, line.Model, line.Cost = s.day, "model", line.Cost+cost
		line.Calls++
		s.lines[s.day] = line
		s.spent += cost
		s.repeatOldReport(ctx)
	}
	if _, err := s.ask(ctx, 0, 0, true); err != nil {
		s.provider.t.Errorf("%s: the final report: %v", s.uid, err)
	}
	s.provider.count(func() { s.provider.counted += s.spent })
	return false
}

// repeatOldReport sometimes sends an old report again, as if a slow network had delayed it.
func (s *spendingSession) repeatOldReport(ctx context.Context) {
	if len(s.sent) < 2 || rand.N(6) > 0 {
		return
	}
	s.provider.count(func() { s.provider.repeats++ })
	_, _ = s.stores[rand.N(len(s.stores))].Spend(ctx, s.uid, s.attempt, s.claims, s.sent[rand.N(len(s.sent)-1)])
}

// TestSpend runs 20 sessions of each owner in parallel against the limits. Sessions are killed at
// random, reports are repeated, and the day and the month change. The clocks of the stores differ
// by some seconds. In the end, the ledger must contain all costs that the sessions reported.
func TestSpend(t *testing.T, stores []Store, claims session.SpendClaims, owners ...string) {
	t.Helper()
	p := runSessions(t, stores, claims, 0.1, owners)
	p.compare(stores[0], owners)
	if p.refused == 0 || p.killed == 0 {
		t.Error("no call was refused, or no session killed: this test proves nothing")
	}
}

// TestSpendReleases is like TestSpend, but no session is killed. In the end, no amount may stay
// reserved.
func TestSpendReleases(t *testing.T, stores []Store, claims session.SpendClaims, owners ...string) {
	t.Helper()
	p := runSessions(t, stores, claims, 0, owners)
	if rest := p.compare(stores[0], owners); rest.Unsettled > 0 || rest.Reserved > 0 {
		t.Errorf("all sessions have ended, but %s are unsettled and %s reserved", rest.Unsettled, rest.Reserved)
	}
}

func runSessions(t *testing.T, stores []Store, claims session.SpendClaims, kill float64, owners []string) *provider {
	t.Helper()
	clock := &Clock{}
	times := []time.Time{
		time.Date(2026, 11, 29, 23, 59, 58, 0, time.UTC), time.Date(2026, 11, 30, 0, 0, 1, 0, time.UTC),
		time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), time.Date(2026, 11, 30, 23, 59, 59, 0, time.UTC),
		time.Date(2026, 12, 1, 0, 0, 1, 0, time.UTC), time.Date(2026, 12, 1, 0, 0, 3, 0, time.UTC),
	}
	clock.Set(times[0])
	for i, s := range stores {
		s.Now = clock.LaggingClock(time.Duration(i) * 2 * time.Second)
	}
	p := &provider{t: t, claims: claims, periods: map[string]session.Dollars{},
		highest: map[string]session.Dollars{}}
	const sessions, rounds, calls = 20, 3, 4
	var all sync.WaitGroup
	var steps atomic.Int64
	for _, owner := range owners {
		for i := range sessions {
			all.Go(func() {
				of := claims
				of.Owner = owner
				attempt, run := 1, int64(1)
				for range rounds {
					s := &spendingSession{provider: p, stores: stores, claims: of, uid: fmt.Sprintf("%s-%d", owner, i),
						attempt: attempt, run: run, lines: map[string]session.SpentLine{}}
					if s.work(t.Context(), calls, kill); rand.N(2) == 0 {
						run++ // the container restarts
					} else {
						attempt, run = attempt+1, 1
					}
					done := int(steps.Add(1)) * len(times) / (sessions * rounds * len(owners))
					clock.Set(times[min(done, len(times)-1)])
				}
			})
		}
	}
	all.Wait()
	return p
}

func (p *provider) compare(s Store, owners []string) (sum session.UsageTotals) {
	p.t.Helper()
	// Ledgers belong to no Conversation, but a sweep must not remove them.
	if removed, err := s.Sweep(p.t.Context(), func(string) (string, error) { return "", nil }, 0,
		time.Now()); err == nil && removed > 0 {
		p.t.Errorf("the sweep removed the data of %d Conversations", removed)
	}
	for _, owner := range owners {
		for _, month := range []string{"2026-11", "2026-12"} {
			usage, err := s.Usage(p.t.Context(), owner, "", month)
			if err != nil {
				p.t.Fatal(err)
			}
			sum.Spent, sum.Unsettled = sum.Spent+usage.Spent, sum.Unsettled+usage.Unsettled
			sum.Reserved += usage.Reserved
		}
	}
	if got := sum.Spent - sum.Unsettled; got != p.counted {
		p.t.Errorf("the ledger has %s, the sessions counted %s", got, p.counted)
	}
	if sum.Unsettled+sum.Reserved < p.lost {
		p.t.Errorf("%s are unsettled and %s reserved, but killed calls cost %s", sum.Unsettled, sum.Reserved, p.lost)
	}
	p.t.Logf("%d calls, %d refused, %d sessions killed, %d repeated reports; ledger %s = sessions %s; unsettled %s, "+
		"reserved by killed sessions %s, cost of killed calls %s", p.calls, p.refused, p.killed, p.repeats,
		sum.Spent-sum.Unsettled, p.counted, sum.Unsettled, sum.Reserved, p.lost)
	for scope, highest := range p.highest {
		if limit := p.limitOf(scope); limit > 0 {
			p.t.Logf("%s: at most %s spent or in flight, limit %s", scope, highest, limit)
		}
	}
	return sum
}
