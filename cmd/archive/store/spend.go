package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/parley-dev/parley/api/session"
)

const (
	// ledgerDir contains the ledgers. They are not in the directory of a Conversation, so they
	// survive the deletion of Conversations. The directory of a Conversation cannot have the same
	// name, because its name is a UID, and a UID contains no underscore.
	ledgerDir     = "_ledger"
	userLedgers   = ledgerDir + "/users/"
	nsLedgers     = ledgerDir + "/namespaces/"
	ledgerSuffix  = ".json"
	maxSpentLines = 256
	maxModelName  = 256
	maxOwnerName  = 1024
	// lateDays is the maximum age, in days, of a day in a report. A report with an older day is
	// invalid.
	lateDays = 45
	// maxSkew is the largest expected difference between the clocks of two replicas.
	maxSkew = time.Hour
)

// ErrNoReport is the error of a malformed report.
var ErrNoReport = errors.New("the body is not a report of costs")

var errOverLimit = errors.New("the spending limit of the namespace is reached")

func ownerHash(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:])
}

func userLedgerKey(owner, month string) string {
	return userLedgers + ownerHash(owner) + "/" + month + ledgerSuffix
}

func namespaceLedgerKey(namespace, month string) string {
	return nsLedgers + namespace + "/" + month + ledgerSuffix
}

// Spend records the costs in a report and decides about the reservation that the report requests.
// For each month, Spend writes the owner's ledger first, and then the namespace's ledger. It
// answers only after both writes, so a session never uses a reservation that is missing in the
// namespace's ledger. Spend writes the current month after the months from otherMonths: if a ledger
// of those months shows that the session's process has ended, Spend fails without a reservation.
func (s *Store) Spend(ctx context.Context, uid string, attempt int, claims session.SpendClaims,
	report session.SpendReport) (granted session.SpendGrant, err error) {
	now := s.Now().UTC()
	if !uidPattern.MatchString(uid) || !uidPattern.MatchString(claims.Namespace) || claims.Owner == "" ||
		len(claims.Owner) > maxOwnerName || !validReport(report, now) {
		return granted, ErrNoReport
	}
	by := spender{uid, attempt, claims}
	others := otherMonths(report, now)
	for month := range others {
		if err := s.settle(ctx, by, report, month); err != nil {
			return granted, err
		}
	}
	granted, first, err := s.reserve(ctx, by, report, now)
	last := now.AddDate(0, 0, -now.Day()).Format(session.MonthForm)
	if err == nil && first && !others[last] { // an earlier process may have a reservation in that month
		err = s.settle(ctx, by, report, last)
	}
	return granted, err
}

// otherMonths returns the months, except for the current month, in which the session's process may
// have costs or reservations: all months in the report and, near the start or the end of a month,
// the adjacent month. The clock of another replica may show the adjacent month.
func otherMonths(report session.SpendReport, now time.Time) map[string]bool {
	months := map[string]bool{}
	for _, at := range []time.Time{now.Add(-maxSkew), now.Add(maxSkew)} {
		months[at.Format(session.MonthForm)] = true
	}
	for _, line := range report.Spent {
		months[monthOf(line.Period)] = true
	}
	for day := range report.Open {
		months[monthOf(day)] = true
	}
	delete(months, now.Format(session.MonthForm))
	return months
}

func validReport(report session.SpendReport, now time.Time) bool {
	valid := func(day string) bool {
		at, err := time.Parse(session.DayForm, day)
		return err == nil && at.After(now.AddDate(0, 0, -lateDays)) && at.Before(now.AddDate(0, 0, 1))
	}
	for day, amount := range report.Open {
		if !valid(day) || amount < 0 {
			return false
		}
	}
	return report.Sequence > 0 && min(report.Run, int64(report.Need), int64(report.Want)) >= 0 &&
		len(report.Spent) <= maxSpentLines && len(report.Open) <= lateDays && (!report.Final || report.Need == 0) &&
		!slices.ContainsFunc(report.Spent, func(l session.SpentLine) bool { return !valid(l.Period) || !validLine(l) })
}

func validLine(l session.SpentLine) bool {
	return l.Model != "" && len(l.Model) <= maxModelName && utf8.ValidString(l.Model) &&
		min(l.Calls, l.Input, l.Output, int64(l.Cost)) >= 0
}

// reserve records a report in the ledgers of the current month, and decides about the reservation.
// If the namespace's ledger refuses the reservation, reserve decides again with the new amounts of
// the other owners. For a repeated report, reserve fails instead, because the session may already
// use the reservation of the first decision.
func (s *Store) reserve(ctx context.Context, by spender, report session.SpendReport,
	now time.Time) (granted session.SpendGrant, first bool, err error) {
	month, today := now.Format(session.MonthForm), now.Format(session.DayForm)
	var others amounts
	if by.PerNamespace != (session.SpendLimits{}) {
		if others, err = s.othersIn(ctx, by, month, today); err != nil {
			return granted, false, err
		}
	}
	decided := false // whether this call, not an earlier call with the same Sequence, has decided
	for range changeTries {
		var of ownerAmounts
		err = s.changeLedger(ctx, by, month, func(l *ledger) (bool, error) {
			p, isNew, began, err := l.settle(by, report, month, today)
			first = first || began
			switch {
			case err != nil:
				return false, err
			case isNew || decided && p.Sequence == report.Sequence:
				if !isNew { // the ledger has this call's earlier decision, even if the write returned an error
					l.withdraw(granted.Notice, today, by.Namespace)
				}
				granted, decided = l.grant(p, by, report, now, others), true
			default:
				granted = l.repeated(p, report)
			}
			if isNew && report.Final {
				l.end(p)
			}
			return true, nil
		}, func(l *ledger) { of = l.amountsIn(by.Namespace) })
		if err != nil {
			return granted, false, err
		}
		// The namespace's limit must not refuse a reservation that covers only calls in flight,
		// because they were sent with an earlier grant. asks is true if the reservation is larger
		// than the cost of these calls.
		asks := granted.Reserved > min(report.Need, report.Open[today])
		others, err = s.copyAmounts(ctx, by, month, today, of, asks)
		if !decided || !errors.Is(err, errOverLimit) {
			return granted, first, err
		}
	}
	return granted, false, errChanged
}

// settle records the part of a report that belongs to the given month, which is not the current
// month.
func (s *Store) settle(ctx context.Context, by spender, report session.SpendReport, month string) error {
	spent := slices.ContainsFunc(report.Spent, func(l session.SpentLine) bool { return monthOf(l.Period) == month })
	var of ownerAmounts
	err := s.changeLedger(ctx, by, month, func(l *ledger) (bool, error) {
		if l.Processes[by.uid] == nil && !spent {
			return false, nil
		}
		p, isNew, _, err := l.settle(by, report, month, "")
		if err == nil && isNew && report.Final {
			l.end(p)
		}
		return err == nil, err
	}, func(l *ledger) { of = l.amountsIn(by.Namespace) })
	if err != nil || of.Version == 0 {
		return err
	}
	_, err = s.copyAmounts(ctx, by, month, "", of, false)
	return err
}

// othersIn returns the amounts of the other owners in the namespace.
func (s *Store) othersIn(ctx context.Context, by spender, month, today string) (amounts, error) {
	var n namespaceLedger
	if err := readLedger(ctx, s, namespaceLedgerKey(by.Namespace, month), &n); err != nil {
		return amounts{}, err
	}
	return n.amountsExcept(ownerHash(by.Owner), today), nil
}

// copyAmounts copies an owner's amounts to the ledger of the namespace, unless that ledger already
// has newer amounts. If the owner has a new reservation (asks is true) and the amounts exceed the
// limit, the copy fails with errOverLimit. copyAmounts returns the amounts of the other owners.
func (s *Store) copyAmounts(ctx context.Context, by spender, month, today string, of ownerAmounts,
	asks bool) (others amounts, err error) {
	hash := ownerHash(by.Owner)
	key := namespaceLedgerKey(by.Namespace, month)
	err = s.namespaces.change(ctx, s.bucket, key, func(n *namespaceLedger) (bool, error) {
		if by.PerNamespace != (session.SpendLimits{}) {
			others = n.amountsExcept(hash, today)
		}
		of, stored := of, n.Owners[hash]
		newer := of.Version > stored.Version
		if !newer {
			of = stored // as new or newer, so it includes the new reservation
		}
		all := amounts{others.day.Plus(of.Days[today]), others.month.Plus(of.Month)}
		if asks && !all.within(by.PerNamespace) {
			return false, errOverLimit
		}
		if n.Owners == nil {
			n.Owners = map[string]ownerAmounts{}
		}
		n.Owners[hash] = of
		return newer, nil
	})
	if err != nil && !errors.Is(err, errOverLimit) {
		err = fmt.Errorf("change the ledger of the namespace: %w", err)
	}
	return others, err
}

// changeLedger changes the ledger of an owner. done is called with the written ledger, which may
// also contain changes of other sessions.
func (s *Store) changeLedger(ctx context.Context, by spender, month string, change func(*ledger) (bool, error),
	done func(*ledger)) error {
	var written *ledger
	var spent session.Dollars
	err := s.users.change(ctx, s.bucket, userLedgerKey(by.Owner, month), func(l *ledger) (bool, error) {
		before := l.spent(by.Namespace)
		write, err := change(l)
		if written = nil; write {
			l.Owner, written = by.Owner, l
			l.Version++
			spent = l.spent(by.Namespace) - before
		}
		return write, err
	})
	switch {
	case errors.Is(err, ErrSuperseded):
		return err
	case err != nil:
		return fmt.Errorf("change the ledger of the owner: %w", err)
	case written != nil:
		countSpent(by.Namespace, spent)
		done(written)
	}
	return nil
}
