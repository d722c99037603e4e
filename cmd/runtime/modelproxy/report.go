package modelproxy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parley-dev/parley/api/session"
)

// outgoing is a report. spent is the sum of all costs at the time of the report.
type outgoing struct {
	session.SpendReport
	spent session.Dollars
}

// report returns the next report. The parameter want is the reservation that the report requests,
// and need is the smallest sufficient reservation.
func (a *account) report(need, want session.Dollars) outgoing {
	a.sequence++
	report := session.SpendReport{Run: a.run, Sequence: a.sequence, Need: need, Want: want,
		Open: map[string]session.Dollars{}}
	for _, day := range a.days {
		report.Open[day] = a.open[day]
	}
	for key, line := range a.lines {
		now := line.at(key)
		if key.day != "" && (slices.Contains(a.days, key.day) || now != a.known[key]) {
			report.Spent = append(report.Spent, now)
		}
	}
	return outgoing{report, a.spent}
}

func (l *costLine) at(key lineKey) session.SpentLine {
	return session.SpentLine{Period: key.day, Model: key.model, Calls: l.calls, Input: l.input, Output: l.output,
		Cost: session.DollarsOf(&l.cost)}
}

// send sends a report and applies the answer. After an error, it is unknown whether the archive
// recorded the report. If the report may have changed the reservation (a.frozen is set), send gives
// up the free part of the reservation.
func (a *account) send(ctx context.Context, report outgoing) (session.SpendGrant, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	grant, err := a.ledger(ctx, report.SpendReport)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if a.frozen {
			a.granted -= max(0, a.free())
		}
		a.frozen = false
		switch {
		case errors.Is(err, ErrLedgerClosed):
			a.closed = err
			a.options.Log.Warn("the costs of this session are no longer reported", "error", err)
		case !a.failing:
			a.failing = true
			a.options.Log.Warn("reporting costs to the archive failed; retrying", "error", err)
		}
		return grant, err
	}
	a.failing = false
	a.frozen, a.granted, a.reported = false, grant.Reserved, report.spent
	a.grantedAt, a.pause = time.Now(), firstPause
	for _, line := range report.Spent {
		a.known[lineKey{line.Period, line.Model}] = line
	}
	// Forget the days without calls in flight, because the archive has released their reservations.
	a.days = slices.DeleteFunc(a.days, func(day string) bool { return a.open[day] == 0 && report.Open[day] == 0 })
	a.setDay(grant.Day)
	if grant.Notice != nil && a.options.Notice != nil {
		go a.options.Notice(grant.Notice.Notice())
	}
	return grant, nil
}

func (a *account) setDay(day string) {
	if a.day == "" { // calls without a limit may have ended before the first grant
		for key, line := range a.lines {
			if key.day == "" {
				delete(a.lines, key)
				a.lines[lineKey{day, key.model}] = line
				a.schedule(0)
			}
		}
	}
	if a.day = day; !slices.Contains(a.days, day) {
		a.days = append(a.days, day)
	}
	at, err := time.Parse(session.DayForm, day)
	if err != nil {
		return
	}
	oldest := at.AddDate(0, 0, -lateDays).Format(session.DayForm)
	for key := range a.lines {
		if key.day != "" && key.day < oldest {
			delete(a.lines, key)
			delete(a.known, key)
		}
	}
}

// schedule sends a report after a delay, in the background. It does nothing if a report is already
// scheduled for an earlier time.
func (a *account) schedule(delay time.Duration) {
	due := time.Now().Add(delay)
	switch {
	case a.closed != nil:
	case a.timer == nil:
		a.due, a.timer = due, time.AfterFunc(delay, a.flush)
	case due.Before(a.due):
		a.due = due
		a.timer.Reset(delay)
	}
}

// flush reports the costs. It keeps the free part of the reservation, except at the end of a turn
// and after idleTime without calls.
func (a *account) flush() {
	a.sending <- struct{}{}
	defer func() { <-a.sending }()
	a.mu.Lock()
	a.timer = nil // costs from now on need another report
	if a.closed != nil {
		a.mu.Unlock()
		return
	}
	release := a.releasing || a.calls == 0 && time.Since(a.lastEnd) >= idleTime
	var need, free session.Dollars
	if a.limited {
		need = a.openSum()
	}
	if a.limited && !release {
		free = max(0, a.free())
		need = need.Plus(free)
	}
	report := a.report(need, need)
	if free > 0 { // calls can begin while the report is in flight
		report.Open[a.day] = report.Open[a.day].Plus(free)
	}
	a.frozen = release
	a.mu.Unlock()
	_, err := a.send(context.Background(), report)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil && release:
		a.releasing = false
	case err == nil && (a.granted > 0 || len(a.days) > 1) && a.calls == 0: // an earlier day may have a reservation
		a.schedule(idleTime)
	case err != nil && a.closed == nil:
		a.schedule(a.pause)
		a.pause = min(2*a.pause, lastPause)
	}
}

// release schedules a report of all costs. The report gives the free part of the reservation back
// to the archive.
func (a *account) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ledger != nil && (a.granted > 0 || a.spent > a.reported || a.timer != nil) {
		a.releasing = a.limited
		a.schedule(0)
	}
}

// finish sends the last report and retries until ctx ends. It first waits for calls in flight.
func (a *account) finish(ctx context.Context) error {
	if a.unused() {
		return nil
	}
	a.awaitIdle(ctx)
	select {
	case a.sending <- struct{}{}: // never released, because no other report may follow
	case <-ctx.Done():
		return ctx.Err()
	}
	for pause := firstPause; ; pause *= 2 {
		a.mu.Lock()
		if a.closed != nil {
			defer a.mu.Unlock()
			return a.closed
		}
		report := a.report(a.openSum(), a.openSum())
		// A report omits cost lines that have no day yet. The archive's first answer contains their day,
		// and the next report contains the lines. While such lines exist, no report is final.
		report.Final = a.calls == 0 && !a.hasUndated()
		a.frozen = true
		calls := a.calls
		a.mu.Unlock()
		_, err := a.send(ctx, report)
		switch {
		case err == nil && (report.Final || calls > 0):
			return nil
		case err == nil:
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// unused returns true if no last report is needed: there is no ledger, or there are no costs, no
// calls in flight and no earlier reports.
func (a *account) unused() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger == nil || a.sequence == 0 && len(a.lines) == 0 && a.calls == 0
}

// awaitIdle waits until no call is in flight. It stops waiting early enough that the last report
// can be sent before ctx ends.
func (a *account) awaitIdle(ctx context.Context) {
	timeout := linger
	if deadline, bounded := ctx.Deadline(); bounded {
		timeout = min(timeout, 3*time.Until(deadline)/4)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a.mu.Lock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	idle := make(chan struct{})
	if a.idle = idle; a.calls == 0 {
		close(idle)
		a.idle = nil
	}
	a.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

func (a *account) hasUndated() bool {
	for key := range a.lines {
		if key.day == "" {
			return true
		}
	}
	return false
}
