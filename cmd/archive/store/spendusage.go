package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parley-dev/parley/api/session"
)

// ledgerReads is the number of concurrent reads of ledgers for one request.
const ledgerReads = 16

// ErrNoQuery is the error of an invalid query for usage.
var ErrNoQuery = errors.New("a query for usage needs an owner or a namespace, and a month such as 2026-01")

// Usage returns the costs of an owner, of a namespace, or of an owner in a namespace. An empty month
// is the current month.
func (s *Store) Usage(ctx context.Context, owner, namespace, month string) (session.SpendUsage, error) {
	now := s.Now().UTC()
	month = cmp.Or(month, now.Format(session.MonthForm))
	_, err := time.Parse(session.MonthForm, month)
	if err != nil || owner == "" && namespace == "" || namespace != "" && !uidPattern.MatchString(namespace) {
		return session.SpendUsage{}, ErrNoQuery
	}
	usage := session.SpendUsage{Month: month, Day: now.Format(session.DayForm), Lines: []session.UsageLine{}}
	owners := []string{owner}
	if owner == "" {
		if owners, err = s.ownersIn(ctx, namespace, month); err != nil {
			return usage, err
		}
	}
	var mu sync.Mutex
	var sums ledger // a ledger bounds the number of models
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(ledgerReads)
	for _, of := range owners {
		reads.Go(func() error {
			var l ledger
			if err := readLedger(ctx, s, userLedgerKey(of, month), &l); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			totals := l.addUsage(namespace, &sums)
			usage.Spent, usage.Unsettled = usage.Spent.Plus(totals.Spent), usage.Unsettled.Plus(totals.Unsettled)
			usage.Reserved = usage.Reserved.Plus(totals.Reserved)
			usage.UsedToday = usage.UsedToday.Plus(l.used(namespace)[usage.Day])
			if owner == "" {
				usage.Owners = append(usage.Owners, session.OwnerUsage{Owner: of, UsageTotals: totals})
			}
			return nil
		})
	}
	if err := reads.Wait(); err != nil {
		return usage, err
	}
	sums.lines(func(day, of, model string, c counts) {
		usage.Lines = append(usage.Lines, session.UsageLine{Namespace: of, SpentLine: session.SpentLine{
			Period: day, Model: model, Calls: c.Calls, Input: c.Input, Output: c.Output, Cost: c.Cost}})
	})
	slices.SortFunc(usage.Lines, func(a, b session.UsageLine) int {
		return cmp.Or(cmp.Compare(a.Period, b.Period), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Model, b.Model))
	})
	slices.SortFunc(usage.Owners, func(a, b session.OwnerUsage) int { return cmp.Compare(a.Owner, b.Owner) })
	return usage, nil
}

// addUsage adds the ledger's costs in a namespace to another ledger, the parameter sums. It returns
// the totals of the costs and reservations. An empty namespace means all namespaces.
func (l *ledger) addUsage(namespace string, sums *ledger) (totals session.UsageTotals) {
	l.lines(func(day, of, model string, c counts) {
		if namespace != "" && namespace != of {
			return
		}
		sums.addEnded(day, of, model, c)
		totals.Spent = totals.Spent.Plus(c.Cost)
		if model == session.UnsettledModel {
			totals.Unsettled = totals.Unsettled.Plus(c.Cost)
		}
	})
	for _, p := range l.Processes {
		if namespace == "" || namespace == p.Namespace {
			totals.Reserved = totals.Reserved.Plus(sumOf(p.Reserved))
		}
	}
	return totals
}

func (s *Store) ownersIn(ctx context.Context, namespace, month string) (owners []string, err error) {
	var n namespaceLedger
	if err := readLedger(ctx, s, namespaceLedgerKey(namespace, month), &n); err != nil {
		return nil, err
	}
	for of := range maps.Values(n.Owners) {
		owners = append(owners, of.Owner)
	}
	return owners, nil
}

// readLedger reads a ledger. A missing ledger is empty.
func readLedger(ctx context.Context, s *Store, key string, into any) error {
	text, _, err := readAll(ctx, s.bucket, key)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil && !errors.Is(err, errNotFound) {
		return fmt.Errorf("read the ledger %s: %w", key, err)
	}
	return nil
}
