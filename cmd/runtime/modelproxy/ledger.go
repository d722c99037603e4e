package modelproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/session"
)

const (
	// reportDelay is the longest delay until the cost of a finished call is reported.
	reportDelay = 2 * time.Second
	// reportTimeout bounds one report. reserveTimeout is how long a call waits for a reservation.
	reportTimeout  = 4 * time.Second
	reserveTimeout = 10 * time.Second
	// firstPause and lastPause are the shortest and the longest pause after a failed report.
	firstPause = 200 * time.Millisecond
	lastPause  = 30 * time.Second
	// A grant is valid for one day of the archive's clock, because limits apply to days. A grant that
	// is older than dayTimeout is renewed, because the next day may have begun.
	dayTimeout = time.Minute
	// A session asks for more than it needs, by the factor wantedNeeds, so that most calls need no
	// request to the archive. The reservation of a killed session counts as spent. To limit this loss,
	// a session asks for at most 1/wantedPart of the lowest spending limit, unless it needs more.
	wantedNeeds, wantedPart = 8, 50
	// idleTime is how long a session without calls keeps its reservation.
	idleTime = 30 * time.Second
	// lateDays is the number of days after which the session no longer reports a cost, even if the
	// archive has not acknowledged it.
	lateDays = 40
	// maxDayModels bounds the number of models whose costs are counted separately per day. The
	// costs of further models are added up under the name otherModels. maxModelName bounds the name
	// of a model, in bytes.
	maxDayModels, maxModelName = 50, 128
	otherModels                = "(other)"
)

// ErrLedgerClosed is the error of a ledger that accepts no more reports of this session.
var ErrLedgerClosed = errors.New("the archive refuses to record the costs of this session")

// Ledger sends a report of costs to the archive. It returns ErrLedgerClosed if retries are useless.
type Ledger func(context.Context, session.SpendReport) (session.SpendGrant, error)

var errUnchecked = errors.New("the spending limit cannot be checked: the archive does not answer")

// account reports the costs of this process to the archive's ledger. With a spending limit, it
// reserves the highest possible cost of each call before the call is sent. All counts are only in
// memory, because an agent could change a file.
type account struct {
	ledger  Ledger // nil if costs are not reported
	limited bool
	options *Options
	// run identifies this process by its start time, in Unix milliseconds.
	run int64
	// sending is a lock: only the goroutine that put a value into the channel sends requests to the
	// archive.
	sending chan struct{}

	mu       sync.Mutex
	sequence int64
	// lines contains the costs of this process, for each day and model. known contains the costs
	// that the archive has acknowledged. The day of a cost is unknown before the first grant: until
	// then, costs are counted with an empty day. The first grant moves them to its day.
	lines map[lineKey]*costLine
	known map[lineKey]session.SpentLine
	// day is the day of the last grant. days contains this day, and each earlier day for which the
	// archive may still hold a reservation.
	day       string
	days      []string
	grantedAt time.Time
	// open contains the highest possible costs of the calls in flight, as a sum for each day. calls
	// is the number of calls in flight.
	open    map[string]session.Dollars
	calls   int
	lastEnd time.Time
	// waiting is the sum of the highest possible costs of calls that wait for a reservation.
	waiting session.Dollars
	// spent is the sum of all costs. reported is the sum of the costs in the last report that the
	// archive answered. granted is the reservation for all costs that are not in that report.
	spent, reported, granted session.Dollars
	// frozen is set while a request that may change the reservation is in flight. Until the answer
	// arrives, no call may use the free part of the reservation.
	frozen bool
	// releasing is set if the next report gives the free part of the reservation back to the
	// archive.
	releasing bool
	closed    error
	failing   bool        // the last report failed
	timer     *time.Timer // sends the next report in the background
	due       time.Time
	pause     time.Duration
	idle      chan struct{} // closed when no call is in flight
}

type lineKey struct{ day, model string }

type costLine struct {
	calls, input, output int64
	cost                 big.Rat
}

func newAccount(options *Options) *account {
	return &account{ledger: options.Ledger, limited: options.Limit > 0, options: options, run: time.Now().UnixMilli(),
		sending: make(chan struct{}, 1), lines: map[lineKey]*costLine{}, known: map[lineKey]session.SpentLine{},
		open: map[string]session.Dollars{}, pause: firstPause}
}

// free returns the part of the reservation that no call uses.
func (a *account) free() session.Dollars { return a.granted - a.openSum() - (a.spent - a.reported) }

func (a *account) openSum() (sum session.Dollars) {
	for _, amount := range a.open {
		sum = sum.Plus(amount)
	}
	return sum
}

// begin begins a call. With a spending limit, it waits for a reservation. It returns an error for
// the user if the call must not be sent.
func (a *account) begin(ctx context.Context, e *entry, highest session.Dollars) error {
	if !a.limited {
		a.mu.Lock()
		defer a.mu.Unlock()
		e.began = true
		a.calls++
		a.renew()
		return nil
	}
	if a.ledger == nil {
		return errUnchecked
	}
	if a.take(e, highest) {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, a.options.ReserveTimeout)
	defer cancel()
	a.wait(highest)
	defer a.wait(-highest)
	alone := false // begin with a reservation for all waiting calls together
	for pause := firstPause; ; pause *= 2 {
		refusal, err := a.reserve(limit, e, highest, alone)
		switch {
		case e.began:
			return nil
		case errors.Is(err, ErrLedgerClosed):
			return errors.New("the spending limit cannot be checked: " + ErrLedgerClosed.Error())
		case refusal != nil && alone:
			return fmt.Errorf("%s; this call may cost up to %s", refusal.Refusal(), highest.Cents())
		case refusal != nil:
			alone = true
			continue
		}
		select {
		case <-time.After(pause):
		case <-limit.Done():
			return cmp.Or(ctx.Err(), errUnchecked)
		}
	}
}

func (a *account) wait(more session.Dollars) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = max(0, a.waiting.Plus(more))
}

// take begins a call if the free part of the reservation is enough.
func (a *account) take(e *entry, highest session.Dollars) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.frozen || a.day == "" || highest > a.free() {
		return false
	}
	e.began, e.day, e.highest = true, a.day, highest
	a.open[a.day] = a.open[a.day].Plus(highest)
	a.calls++
	a.renew()
	return true
}

// renew schedules a report if there is no grant yet, or if the last grant is older than dayTimeout.
// The answer to the report contains the archive's current day.
func (a *account) renew() {
	if a.ledger != nil && (a.day == "" || time.Since(a.grantedAt) > dayTimeout) {
		a.schedule(0)
	}
}

// reserve asks the archive for a reservation, and begins the call if the reservation is enough. If
// alone is set, it asks for this call only. Otherwise, it asks for all waiting calls together.
func (a *account) reserve(ctx context.Context, e *entry, highest session.Dollars,
	alone bool) (*session.LimitState, error) {
	select {
	case a.sending <- struct{}{}:
		defer func() { <-a.sending }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.take(e, highest) { // an earlier request has reserved enough
		return nil, nil
	}
	a.mu.Lock()
	if a.closed != nil {
		defer a.mu.Unlock()
		return nil, a.closed
	}
	next := max(a.waiting, highest)
	if alone {
		next = highest
	}
	need := a.openSum().Plus(next)
	report := a.report(need, max(need, min(need.Times(wantedNeeds), a.options.Limit/wantedPart)))
	a.frozen = true
	a.mu.Unlock()
	grant, err := a.send(ctx, report)
	if err != nil {
		return nil, err
	}
	if !a.take(e, highest) && grant.Refusal != nil {
		return grant.Refusal, nil
	}
	return nil, nil
}

func (a *account) end(e *entry) {
	if !e.began {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastEnd = time.Now()
	if a.calls--; a.calls == 0 && a.idle != nil {
		close(a.idle)
		a.idle = nil
	}
	if e.day != "" {
		if a.open[e.day] -= e.highest; a.open[e.day] <= 0 {
			delete(a.open, e.day)
		}
	}
	if cost := a.costOf(e); e.mayCost || cost.Sign() > 0 || e.counted.all() > 0 {
		a.add(cmp.Or(e.day, a.day), e, cost)
	}
	if a.ledger != nil {
		a.schedule(reportDelay)
	}
}

// costOf returns the cost of a finished call. With a spending limit, an unknown cost counts as the
// highest possible cost, because the provider may charge that much. If a response broke off, its
// reported number of output tokens may be too low. costOf then estimates this number from the size
// of the response.
func (a *account) costOf(e *entry) *big.Rat {
	cost := cmp.Or(e.countedCost, new(big.Rat))
	highest := big.NewRat(int64(e.highest), int64(session.Dollar))
	switch {
	case !a.limited:
	case e.unpriced:
		return highest
	case e.partial && e.hasUsage:
		used := e.used
		used.output = max(used.output, int64(e.received/bytesPerToken))
		estimate := costOf(a.options.Models.Find(e.provider, e.model), used)
		if estimate == nil || estimate.Cmp(highest) > 0 {
			estimate = highest
		}
		if estimate.Cmp(cost) > 0 {
			return estimate
		}
	}
	return cost
}

func (a *account) add(day string, e *entry, cost *big.Rat) {
	model := strings.ToValidUTF8(e.model[:min(len(e.model), maxModelName)], "")
	key := lineKey{day, cmp.Or(model, otherModels)}
	if a.lines[key] == nil {
		if a.modelsOn(day) >= maxDayModels {
			key.model = otherModels
		}
		if a.lines[key] == nil {
			a.lines[key] = &costLine{}
		}
	}
	line := a.lines[key]
	before := session.DollarsOf(&line.cost)
	line.calls++
	line.input += e.counted.input + e.counted.cacheRead + e.counted.cacheWrite
	line.output += e.counted.output
	line.cost.Add(&line.cost, cost)
	a.spent = a.spent.Plus(session.DollarsOf(&line.cost) - before)
}

func (a *account) modelsOn(day string) (count int) {
	for key := range a.lines {
		if key.day == day {
			count++
		}
	}
	return count
}
