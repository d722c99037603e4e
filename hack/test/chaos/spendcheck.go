package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
)

// monthTotals are the amounts of a month in the ledger.
type monthTotals struct {
	calls                        int64
	settled, unsettled, reserved session.Dollars
}

func (m *monthTotals) add(usage rest.Usage) {
	m.reserved += amount(usage.Reserved)
	m.unsettled += amount(usage.Unsettled)
	m.settled += amount(usage.Spent) - amount(usage.Unsettled)
	for _, line := range usage.Lines {
		m.calls += line.Calls
	}
}

func (s *spending) compare(ctx context.Context, out io.Writer, r *report, phase string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	line("\n%s\tcalls\tsettled\tunsettled\tstill reserved", phase)
	var all monthTotals
	row := func(name string, m monthTotals) {
		line("%s\t%d\t$%s\t$%s\t$%s", name, m.calls, m.settled, m.unsettled, m.reserved)
	}
	for _, month := range s.months {
		usage, err := s.usage(ctx, month)
		if err != nil {
			return err
		}
		var m monthTotals
		m.add(usage)
		all.add(usage)
		row("ledger of "+month, m)
		if used := m.settled + m.unsettled + m.reserved; used > s.limit {
			r.violation(checkLimit, "%s: $%s in the month %s", phase, used, month)
		}
	}
	row("ledger", all)
	calls, most := s.model.count()
	charged := callCost.Times(calls)
	line("the model's count\t%d\t$%s", calls, charged)
	s.mu.Lock()
	line("\nhighest amount spent or reserved in a month\t$%s", s.highest)
	line("most calls in flight\t%d", most)
	for _, outcome := range []string{turnDone, turnRefused, turnUnchecked, turnUnknown} {
		line("turns %s\t%d", outcome, s.turns[outcome])
	}
	r.note(checkLimit, "%d months, at most $%s", len(s.months), s.highest)
	s.mu.Unlock()
	sessions := r.killsOf(sessionVictim)
	r.note(checkLedger, "%d calls, %d of them lost with %d killed sessions", calls, calls-all.calls, sessions)
	line("killed\t%d archives, %d facades, %d sessions", r.killsOf(archiveVictim), r.killsOf("facade"), sessions)
	if all.settled != callCost.Times(all.calls) {
		r.violation(checkLedger, "%s: %d calls cost $%s in the ledger", phase, all.calls, all.settled)
	}
	// A killed session cannot report its calls in flight. The reservation of the session must cover
	// the costs of these calls.
	if charged < all.settled || charged > all.settled+all.unsettled+all.reserved {
		r.violation(checkLedger, "%s: the model counts $%s", phase, charged)
	}
	if sessions == 0 && (charged != all.settled || all.unsettled+all.reserved > 0) {
		r.violation(checkLedger, "%s: the amounts differ, although no session was killed", phase)
	}
	if lost := calls - all.calls; lost > int64(sessions) {
		r.violation(checkLedger, "%s: %d calls are missing after %d kills of sessions", phase, lost, sessions)
	}
	return nil
}
