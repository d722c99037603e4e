package modelproxy

import (
	"bytes"
	"cmp"
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

// Limit is the reason why the proxy refuses model calls.
type Limit struct {
	// TurnID is the ID of the turn that reached a limit. It is empty if no turn ran, or if only one
	// call is refused.
	TurnID string
	// Message is a text for the user. It names the setting that contains the limit.
	Message string
}

// spend counts usage and stores it in a file. It records a call before the call is sent, so an
// interrupted session loses no call.
type spend struct {
	options *Options
	budget  *big.Rat // nil if there is no budget

	mu   sync.Mutex
	kept Usage
	// turn is a number that differs for each turn.
	turn     int
	limit    *Limit
	unpriced bool // Unpriced was called
	silent   bool // a response of the model did not report its usage
	failing  bool // the file could not be written
}

// openSpend reads the stored usage. After an error, the returned spend does not write to the file.
func openSpend(options *Options) (*spend, error) {
	s, unsaved := &spend{options: options}, &spend{options: &Options{}}
	if options.MaxBudget != "" {
		if s.budget = parseCost(options.MaxBudget); s.budget == nil {
			return unsaved, fmt.Errorf("max_budget_per_task: %q is not an amount in US dollars", options.MaxBudget)
		}
	}
	if options.UsageFile == "" {
		return s, nil
	}
	text, err := record.Read(options.UsageFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil && !errors.Is(err, record.ErrNoFile):
		return unsaved, fmt.Errorf("read the usage of the model: %w", err)
	case json.Unmarshal(text, &s.kept) != nil:
		// The proxy writes the file atomically, so only another program can have damaged it. A
		// damaged file must not end the session.
		options.Log.Warn("the usage file is invalid; counting starts again at zero", "file", options.UsageFile)
		s.kept = Usage{}
	}
	return s, nil
}

func (s *spend) restore(counted json.RawMessage) error {
	if counted == nil {
		return nil
	}
	var usage Usage
	if err := json.Unmarshal(counted, &usage); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The usage in the journal replaces the usage in the file only if the journal has more calls and
	// at least as many tokens. More calls alone do not prove that the journal is newer: a call is
	// counted when it starts, and subtracted if it fails. An older journal may therefore contain more
	// calls but fewer tokens than the file.
	if usage.Session.Calls <= s.kept.Session.Calls || usage.Session.tokens() < s.kept.Session.tokens() {
		return nil
	}
	s.kept = usage
	return s.save()
}

func (s *spend) beginTurn(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "" || id != s.kept.TurnID {
		s.kept.TurnID, s.kept.Turn = id, Counts{}
	}
	s.turn++
	s.limit = nil
	return s.save()
}

// changeModel resets the flags that describe the earlier model.
func (s *spend) changeModel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpriced, s.silent = false, false
}

func (s *spend) usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept
}

// begin starts a call unless a limit forbids it. unpriced is the name of a request field that makes
// the call's cost unknown. It is empty if the request has no such field.
func (s *spend) begin(e *entry, unpriced string) *Limit {
	s.mu.Lock()
	reached, isNew := s.refused()
	if reason := s.unknownCost(e, unpriced); reached == nil && reason != "" {
		announce := !s.unpriced
		s.unpriced = true
		s.mu.Unlock()
		if announce && s.options.Unpriced != nil {
			s.options.Unpriced(reason)
		}
		// Refuse only this call. The turn can continue, because the agent may use another model.
		return &Limit{Message: reason}
	}
	if reached == nil {
		e.turn = s.turn
		s.kept.Session.Calls++
		s.kept.Turn.Calls++
		s.trySave()
	}
	s.mu.Unlock()
	s.notify(reached, isNew)
	return reached
}

func (s *spend) refused() (reached *Limit, isNew bool) {
	switch {
	case s.limit != nil:
		return s.limit, false
	case s.options.MaxCalls > 0 && s.kept.Turn.Calls >= s.options.MaxCalls:
		return s.reach(fmt.Sprintf("the limit of %d model calls per turn (max_iterations) is reached",
			s.options.MaxCalls)), true
	case s.budget != nil && s.kept.Turn.Cost.Rat().Cmp(s.budget) >= 0:
		return s.overBudget(), true
	}
	return nil, false
}

func (s *spend) bounded() bool { return s.budget != nil || s.options.Limit > 0 }

// unknownCost returns why a call's cost cannot be known. It returns an empty string if the cost can
// be known, or if nothing bounds the costs. A spending limit needs the price before the call, even
// if the endpoint reports costs.
func (s *spend) unknownCost(e *entry, unpriced string) string {
	bound := "budget (max_budget_per_task)"
	priced := hasCost(s.options.Models, e.provider, e.model)
	if s.options.Limit > 0 {
		bound, priced = "spending limit", costOf(s.options.Models.Find(e.provider, e.model), tokens{}) != nil
	}
	refused := "the call is refused: there is a " + bound + ", but the cost of the call is unknown, because "
	switch {
	case !s.bounded():
		return ""
	case unpriced != "":
		return refused + "the price or the usage of a call with the field " + unpriced + " is unknown"
	case s.silent:
		return refused + "the endpoint did not report the usage of an earlier call"
	case !priced:
		return fmt.Sprintf(refused+"the model %q has no price (ConfigMap parley-models)", e.model)
	}
	return ""
}

// end settles a finished call. If there is a budget and the call's cost is unknown, the budget
// cannot be enforced. The turn then ends as if it had spent the budget.
func (s *spend) end(e *entry) {
	s.settle(e)
	s.mu.Lock()
	if e.failed {
		s.kept.Session.Calls--
		if e.turn == s.turn {
			s.kept.Turn.Calls--
		}
		s.trySave()
	}
	var reached *Limit
	if s.bounded() && e.unpriced {
		s.silent = s.silent || e.complete
		if s.budget != nil && s.limit == nil && e.turn == s.turn {
			reached = s.reach("the cost of a call is unknown, because its response did not report the usage: the budget " +
				"(max_budget_per_task) cannot be enforced")
		}
	}
	s.mu.Unlock()
	s.notify(reached, reached != nil)
}

func (s *spend) overBudget() *Limit {
	return s.reach(fmt.Sprintf("the budget of %s US dollars per turn (max_budget_per_task) is spent: the cost is %s",
		s.options.MaxBudget, s.kept.Turn.Cost))
}

// stop ends the turn, because a spending limit refuses its calls.
func (s *spend) stop(message string) {
	s.mu.Lock()
	isNew := s.limit == nil
	if isNew {
		s.reach(message)
	}
	reached := s.limit
	s.mu.Unlock()
	s.notify(reached, isNew)
}

func (s *spend) reach(message string) *Limit {
	s.limit = &Limit{TurnID: s.kept.TurnID, Message: message}
	return s.limit
}

func (s *spend) notify(limit *Limit, isNew bool) {
	if isNew && s.options.Reached != nil {
		s.options.Reached(*limit)
	}
}

// settle adds the known usage of a call to the totals. If more usage becomes known, settle is
// called again, and adds only the difference.
func (s *spend) settle(e *entry) {
	s.mu.Lock()
	window, cost := s.costOf(e)
	unpriced := e.lacksPrice(cost)
	cost, e.countedCost = cmp.Or(cost, new(big.Rat)), cmp.Or(e.countedCost, new(big.Rat))
	more := tokens{
		e.used.input - e.counted.input, e.used.output - e.counted.output, e.used.cacheRead - e.counted.cacheRead,
		e.used.cacheWrite - e.counted.cacheWrite, e.used.hourWrite - e.counted.hourWrite,
	}
	moreCost := new(big.Rat).Sub(cost, e.countedCost)
	if more == (tokens{}) && moreCost.Sign() == 0 && unpriced == e.unpriced {
		s.mu.Unlock()
		return
	}
	s.count(e, more, moreCost, unpriced)
	e.counted, e.countedCost, e.unpriced = e.used, cost, unpriced
	if e.hasUsage {
		s.kept.Model, s.kept.Context, s.kept.ContextWindow = e.model, e.used.all(), window
	}
	s.trySave()
	var reached *Limit
	if s.limit == nil && s.budget != nil && s.kept.Turn.Cost.Rat().Cmp(s.budget) > 0 {
		reached = s.overBudget()
	}
	s.mu.Unlock()
	s.notify(reached, reached != nil)
}

func (s *spend) count(e *entry, more tokens, moreCost *big.Rat, unpriced bool) {
	counts := []*Counts{&s.kept.Session}
	if e.turn == s.turn {
		counts = append(counts, &s.kept.Turn)
	}
	for _, c := range counts {
		*c = c.plus(more, moreCost)
		if unpriced != e.unpriced {
			c.Unpriced += map[bool]int64{true: 1, false: -1}[unpriced]
		}
	}
}

// costOf returns the cost that the endpoint reported. If the endpoint reported no cost or zero,
// costOf computes the cost from the model's price. Without a price, it returns the reported zero,
// or nil if the endpoint reported no cost.
func (s *spend) costOf(e *entry) (contextWindow int64, cost *big.Rat) {
	model := s.options.Models.Find(e.provider, e.model)
	if e.reported != nil && e.reported.Sign() > 0 {
		return model.ContextWindow, e.reported
	}
	if cost := costOf(model, e.used); cost != nil {
		return model.ContextWindow, cost
	}
	return model.ContextWindow, e.reported
}

// trySave saves the usage. It logs only the first failure. It returns no error, because the counts
// in memory stay valid while the session runs.
func (s *spend) trySave() {
	err := s.save()
	if err != nil && !s.failing {
		s.options.Log.Error("recording the usage of the model failed", "error", err)
	}
	s.failing = err != nil
}

// save stores the usage durably, so it survives a crash of the node.
func (s *spend) save() error {
	if s.options.UsageFile == "" {
		return nil
	}
	text, err := json.Marshal(s.kept)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.options.UsageFile), 0o755); err != nil {
		return err
	}
	return record.Write(s.options.UsageFile, bytes.NewReader(append(text, '\n')), 0o644)
}
