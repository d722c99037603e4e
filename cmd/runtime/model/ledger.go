package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"sync"

	"github.com/parley-dev/parley/cmd/runtime/record"
)

// LimitKind is what a turn may not exceed.
type LimitKind string

// The limits of a turn.
const (
	LimitCalls  LimitKind = "max_iterations"
	LimitBudget LimitKind = "max_budget_per_task"
)

// Limit is one that was reached.
type Limit struct {
	Kind LimitKind
	// TurnID that reached it; empty where it was no turn.
	TurnID string
	// Message for the user.
	Message string
}

// ledger counts what is used, and keeps it in a file. A call is on record before it is made, so
// that a session which is cut off does not forget it.
type ledger struct {
	options *Options
	budget  *big.Rat // nil means none

	mu   sync.Mutex
	kept Usage
	// turn tells calls of this turn from those of earlier ones.
	turn int
	// limit that this turn has reached.
	limit    *Limit
	unpriced bool // it was said
	failing  bool // the file cannot be written
}

func openLedger(options *Options) (*ledger, error) {
	l := &ledger{options: options}
	if options.MaxBudget != "" {
		if l.budget = parseCost(options.MaxBudget); l.budget == nil {
			return nil, fmt.Errorf("max_budget_per_task: %q is no sum of money", options.MaxBudget)
		}
	}
	if options.UsageFile == "" {
		return l, nil
	}
	text, err := record.Read(options.UsageFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil && !errors.Is(err, record.ErrNoFile):
		return nil, fmt.Errorf("read what was used of the model: %w", err)
	case json.Unmarshal(text, &l.kept) != nil:
		// It appears as a whole, so somebody else wrote it. A session is not lost for that.
		options.Log.Warn("what was used of the model cannot be read, and is counted anew", "file", options.UsageFile)
		l.kept = Usage{}
	}
	return l, nil
}

func (l *ledger) beginTurn(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id == "" || id != l.kept.TurnID {
		l.kept.TurnID, l.kept.Turn = id, Counts{}
	}
	l.turn++
	l.limit = nil
	return l.save()
}

func (l *ledger) usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept
}

// begin a call, if the turn may make one more.
func (l *ledger) begin(e *entry) *Limit {
	l.mu.Lock()
	reached, isNew := l.refused()
	if reached == nil {
		e.turn = l.turn
		l.kept.Session.Calls++
		l.kept.Turn.Calls++
		l.trySave()
	}
	l.mu.Unlock()
	l.tell(reached, isNew)
	return reached
}

// refused is the limit for which no call is made any more.
func (l *ledger) refused() (reached *Limit, isNew bool) {
	switch {
	case l.limit != nil:
		return l.limit, false
	case l.options.MaxCalls > 0 && l.kept.Turn.Calls >= l.options.MaxCalls:
		return l.reach(LimitCalls, fmt.Sprintf("the limit of %d calls of the model in a turn (max_iterations) is reached",
			l.options.MaxCalls)), true
	case l.budget != nil && l.kept.Turn.Cost.Rat().Cmp(l.budget) >= 0:
		return l.overBudget(), true
	}
	return nil, false
}

func (l *ledger) overBudget() *Limit {
	return l.reach(LimitBudget, fmt.Sprintf("the budget of %s US dollars for a task (max_budget_per_task) is used up: %s",
		l.options.MaxBudget, l.kept.Turn.Cost))
}

func (l *ledger) reach(kind LimitKind, message string) *Limit {
	l.limit = &Limit{Kind: kind, TurnID: l.kept.TurnID, Message: message}
	return l.limit
}

func (l *ledger) tell(limit *Limit, isNew bool) {
	if isNew && l.options.Reached != nil {
		l.options.Reached(*limit)
	}
}

// settle counts what a call has used up to now. It may be called again when more is known.
func (l *ledger) settle(e *entry) {
	l.mu.Lock()
	window, cost := l.costOf(e)
	unpriced := e.lacksPrice(cost)
	if cost == nil {
		cost = new(big.Rat)
	}
	if e.countedCost == nil {
		e.countedCost = new(big.Rat)
	}
	more := tokens{
		e.used.input - e.counted.input, e.used.output - e.counted.output, e.used.cacheRead - e.counted.cacheRead,
		e.used.cacheWrite - e.counted.cacheWrite,
	}
	moreCost := new(big.Rat).Sub(cost, e.countedCost)
	if more == (tokens{}) && moreCost.Sign() == 0 && unpriced == e.unpriced {
		l.mu.Unlock()
		return
	}
	l.count(e, more, moreCost, unpriced)
	e.counted, e.countedCost, e.unpriced = e.used, cost, unpriced
	if e.told {
		l.kept.Model, l.kept.Context, l.kept.ContextWindow = e.model, e.used.all(), window
	}
	l.trySave()
	var reached *Limit
	if l.limit == nil && l.budget != nil && l.kept.Turn.Cost.Rat().Cmp(l.budget) > 0 {
		reached = l.overBudget()
	}
	say := unpriced && l.budget != nil && !l.unpriced
	l.unpriced = l.unpriced || say
	l.mu.Unlock()
	l.tell(reached, reached != nil)
	if say && l.options.Unpriced != nil {
		l.options.Unpriced(e.model)
	}
}

// count what a call used more than was counted of it.
func (l *ledger) count(e *entry, more tokens, moreCost *big.Rat, unpriced bool) {
	counts := []*Counts{&l.kept.Session}
	if e.turn == l.turn {
		counts = append(counts, &l.kept.Turn)
	}
	for _, c := range counts {
		*c = c.plus(more, moreCost)
		if unpriced != e.unpriced {
			c.Unpriced += map[bool]int64{true: 1, false: -1}[unpriced]
		}
	}
}

// costOf a call: what the endpoint reported, or else what the prices make of it; nil where neither
// is known.
func (l *ledger) costOf(e *entry) (contextWindow int64, cost *big.Rat) {
	model := find(l.options.Models, providerOf(l.options.Model), e.model)
	if e.reported != nil && e.reported.Sign() > 0 {
		return model.ContextWindow, e.reported
	}
	if cost := costOf(model, e.used); cost != nil {
		return model.ContextWindow, cost
	}
	return model.ContextWindow, e.reported
}

// trySave saves, and says once where that fails: the counts still hold while the session runs.
func (l *ledger) trySave() {
	err := l.save()
	if err != nil && !l.failing {
		l.options.Log.Error("what was used of the model cannot be recorded", "error", err)
	}
	l.failing = err != nil
}

// save the counts where they outlive a crash of the node.
func (l *ledger) save() error {
	if l.options.UsageFile == "" {
		return nil
	}
	text, err := json.Marshal(l.kept)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(l.options.UsageFile), 0o755); err != nil {
		return err
	}
	return record.Write(l.options.UsageFile, append(text, '\n'), 0o644)
}
