package store_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestParallelSessionsStayWithinTheSpendingLimitOfAUser(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	archivetest.TestSpend(t, []archivetest.Store{archivetest.Open(t, address)}, session.SpendClaims{Namespace: "team",
		PerUser: session.SpendLimits{Month: session.Dollar}}, "ada")
}

func TestSpendingLimitsHoldDespiteFailingReplicas(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	stores := []archivetest.Store{archivetest.Open(t, address), archivetest.Open(t, address)}
	for _, s := range stores {
		s.FailRandomly(0.2)
	}
	archivetest.TestSpend(t, stores, session.SpendClaims{Namespace: "team", Soft: 80,
		PerUser: session.SpendLimits{Day: session.Dollar * 6 / 10, Month: session.Dollar}}, "ada")
}

func TestOwnersShareTheSpendingLimitOfTheirNamespace(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	stores := []archivetest.Store{archivetest.Open(t, address), archivetest.Open(t, address)}
	stores[1].FailRandomly(0.1)
	archivetest.TestSpend(t, stores, session.SpendClaims{Namespace: "team",
		PerUser:      session.SpendLimits{Month: session.Dollar},
		PerNamespace: session.SpendLimits{Day: session.Dollar, Month: session.Dollar * 3 / 2}}, "ada", "bob", "eve")
}

// During the test, the month changes, and the clocks of the two replicas differ.
func TestEndedSessionsReleaseTheirReservations(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	stores := []archivetest.Store{archivetest.Open(t, address), archivetest.Open(t, address)}
	for _, s := range stores {
		s.FailRandomly(0.2)
	}
	archivetest.TestSpendReleases(t, stores, session.SpendClaims{Namespace: "team",
		PerUser: session.SpendLimits{Month: session.Dollar}}, "ada", "bob", "eve")
}

// bench is a store with a clock and the claims of one owner.
type bench struct {
	archivetest.Store
	t      *testing.T
	clock  archivetest.Clock
	claims session.SpendClaims
}

func newBench(t *testing.T, claims session.SpendClaims) *bench {
	t.Helper()
	b := &bench{Store: archivetest.Open(t, archivetest.InDirectory(t)), t: t, claims: claims}
	b.claims.Owner, b.claims.Namespace = "ada", "team"
	b.clock.Set(time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC))
	b.Now = b.clock.LaggingClock(0)
	return b
}

// report returns a session's report. The last parameters are the session's total cost on the day,
// and the reservation that the session needs.
func report(sequence int64, day string, cost, need session.Dollars) session.SpendReport {
	r := session.SpendReport{Sequence: sequence, Need: need, Want: need}
	if cost > 0 {
		r.Spent = []session.SpentLine{{Period: day, Model: "m", Calls: 1, Input: 10, Output: 5, Cost: cost}}
	}
	return r
}

func (b *bench) send(uid string, attempt int, report session.SpendReport) session.SpendGrant {
	b.t.Helper()
	grant, err := b.Spend(b.t.Context(), uid, attempt, b.claims, report)
	if err != nil {
		b.t.Fatalf("report %d of %s: %v", report.Sequence, uid, err)
	}
	return grant
}

func (b *bench) totals(month string) session.UsageTotals {
	b.t.Helper()
	usage, err := b.Usage(b.t.Context(), "ada", "", month)
	if err != nil {
		b.t.Fatal(err)
	}
	return usage.UsageTotals
}

const (
	cent  = session.Dollar / 100
	today = "2026-11-18"
)

func TestARefusalNamesTheLimitAndKeepsTheReservationOfRunningCalls(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{PerUser: session.SpendLimits{Day: 50 * cent, Month: 2 * session.Dollar}})
	b.send("u-1", 1, report(1, today, 10*cent, 20*cent))
	asks := report(2, today, 10*cent, 50*cent)
	asks.Open = map[string]session.Dollars{today: 20 * cent}
	got := b.send("u-1", 1, asks)
	want := session.LimitState{Scope: session.ScopeUser, Period: session.PeriodDay, Limit: 50 * cent, Spent: 10 * cent,
		Resets: time.Date(2026, 11, 19, 0, 0, 0, 0, time.UTC)}
	if got.Reserved != 20*cent || got.Refusal == nil || *got.Refusal != want || got.Day != today {
		t.Errorf("the grant is %+v, %+v", got, got.Refusal)
	}
	if got := b.send("u-2", 1, report(1, today, 0, 30*cent)); got.Refusal == nil || got.Refusal.Spent != 30*cent {
		t.Errorf("the other session gets %+v, %+v", got, got.Refusal)
	}
	if got := b.send("u-2", 1, report(2, today, 0, 20*cent)); got.Refusal != nil || got.Reserved != 20*cent {
		t.Errorf("the other session gets %+v", got)
	}
	b.clock.Set(time.Date(2026, 11, 19, 0, 0, 0, 0, time.UTC))
	got = b.send("u-2", 1, report(3, today, 0, 50*cent))
	if got.Refusal != nil || got.Day != "2026-11-19" {
		t.Errorf("on the next day the grant is %+v, %+v", got, got.Refusal)
	}
}

func TestNearTheLimitOnlyTheNeededAmountIsReserved(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{PerUser: session.SpendLimits{Month: session.Dollar}})
	for i, want := range []session.Dollars{40 * cent, 5 * cent, 5 * cent} {
		asks := report(1, today, 0, 5*cent)
		asks.Want = 40 * cent
		if got := b.send(fmt.Sprintf("u-%d", i), 1, asks); got.Reserved != want {
			t.Errorf("session %d has %s reserved, want %s", i, got.Reserved, want)
		}
	}
}

func TestCostsAreExactDespiteLateAndRepeatedReports(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{PerUser: session.SpendLimits{Month: session.Dollar}})
	first := b.send("u", 1, report(2, today, 10*cent, 20*cent))
	if again := b.send("u", 1, report(2, today, 10*cent, 20*cent)); again.Reserved != first.Reserved {
		t.Errorf("the repeated report gets %+v, the first %+v", again, first)
	}
	if late := b.send("u", 1, report(1, today, 5*cent, 60*cent)); late.Reserved != first.Reserved {
		t.Errorf("the late report gets %+v", late)
	}
	b.send("u", 1, report(1, "2026-11-17", 3*cent, 0)) // only this report has the cost of that day
	want := session.UsageTotals{Spent: 13 * cent, Reserved: 20 * cent}
	if got := b.totals(""); got != want {
		t.Errorf("the ledger has %+v, want %+v", got, want)
	}
	// The endpoint reported a higher cost than was reserved.
	b.send("u", 1, report(3, today, 150*cent, 0))
	if got := b.totals(""); got != (session.UsageTotals{Spent: 153 * cent}) {
		t.Errorf("the ledger has %+v", got)
	}
}

func TestTheReservationOfAKilledProcessCountsAsSpent(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{PerUser: session.SpendLimits{Month: session.Dollar}})
	b.send("u", 1, report(1, today, 10*cent, 20*cent))
	restarted := report(1, today, 1*cent, 2*cent) // the container restarted within the attempt
	restarted.Run = 1
	b.send("u", 1, restarted)
	b.send("u", 2, report(1, today, 4*cent, 5*cent))
	want := session.UsageTotals{Spent: 37 * cent, Unsettled: 22 * cent, Reserved: 5 * cent}
	if got := b.totals(""); got != want {
		t.Errorf("the ledger has %+v, want %+v", got, want)
	}
	for _, old := range []session.SpendReport{report(9, today, 90*cent, 0), restarted} {
		if _, err := b.Spend(t.Context(), "u", 1, b.claims, old); !errors.Is(err, store.ErrSuperseded) {
			t.Errorf("a report of an earlier process: %v", err)
		}
	}
	b.clock.Set(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC))
	b.send("u", 3, report(1, "2026-12-01", 1*cent, 0))
	want = session.UsageTotals{Spent: 42 * cent, Unsettled: 27 * cent}
	if got := b.totals("2026-11"); got != want {
		t.Errorf("after the next attempt in the next month the ledger has %+v, want %+v", got, want)
	}
}

// The replica that receives the final report has a clock that is still in the old month. A delayed
// report then reaches a replica whose clock is already in the new month.
func TestReportsAfterTheFinalReportAreStillRefusedInTheNextMonth(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{PerUser: session.SpendLimits{Month: session.Dollar}})
	november := time.Date(2026, 11, 30, 23, 59, 58, 0, time.UTC)
	december := november.Add(3 * time.Second)
	b.clock.Set(december)
	b.send("u", 1, report(1, "", 0, 20*cent))
	final := report(2, "2026-11-30", 10*cent, 0)
	final.Final = true
	b.clock.Set(november)
	b.send("u", 1, final)
	b.clock.Set(december)
	if _, err := b.Spend(t.Context(), "u", 1, b.claims, report(1, "", 0, 20*cent)); !errors.Is(err, store.ErrSuperseded) {
		t.Errorf("a late report: %v", err)
	}
	for month, want := range map[string]session.UsageTotals{"2026-11": {Spent: 10 * cent}, "2026-12": {}} {
		if got := b.totals(month); got != want {
			t.Errorf("%s: the ledger has %+v, want %+v", month, got, want)
		}
	}
}

func TestReportsAfterTheFinalReportAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{})
	final := report(2, today, 10*cent, 0)
	final.Final = true
	b.send("u", 1, report(1, today, 8*cent, 0))
	b.send("u", 1, final)
	b.send("u", 1, final) // the answer was lost
	if _, err := b.Spend(t.Context(), "u", 1, b.claims, report(3, today, 11*cent, 0)); !errors.Is(err,
		store.ErrSuperseded) {
		t.Errorf("a report after the last one: %v", err)
	}
	b.send("u", 2, report(1, today, 5*cent, 0))
	if got := b.totals(""); got != (session.UsageTotals{Spent: 15 * cent}) {
		t.Errorf("the ledger has %+v", got)
	}
}

func TestUsersGetOneNoticePerPeriodIfALimitIsNear(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{Soft: 80, PerUser: session.SpendLimits{Day: 50 * cent, Month: session.Dollar}})
	if got := b.send("u", 1, report(1, today, 40*cent, 0)); got.Notice != nil {
		t.Errorf("at the threshold the notice is %+v", got.Notice)
	}
	got := b.send("u", 1, report(2, today, 41*cent, 0))
	if got.Notice == nil || got.Notice.Period != session.PeriodDay || got.Notice.Spent != 41*cent {
		t.Errorf("above the threshold the notice is %+v", got.Notice)
	}
	if got := b.send("u-2", 1, report(1, today, 1*cent, 0)); got.Notice != nil {
		t.Errorf("the second notice is %+v", got.Notice)
	}
	b.clock.Set(time.Date(2026, 11, 19, 0, 0, 0, 0, time.UTC))
	got = b.send("u-2", 1, report(2, "2026-11-19", 45*cent, 0))
	if got.Notice == nil || got.Notice.Period != session.PeriodMonth {
		t.Errorf("on the next day the notice is %+v", got.Notice)
	}
	got = b.send("u-2", 1, report(3, "2026-11-19", 46*cent, 0))
	if got.Notice == nil || got.Notice.Period != session.PeriodDay {
		t.Errorf("the next notice is %+v", got.Notice)
	}
}

// newReplicas returns two replicas of an archive.
func newReplicas(t *testing.T, claims session.SpendClaims) (first, second *bench) {
	t.Helper()
	address := archivetest.InDirectory(t)
	first, second = newBench(t, claims), newBench(t, claims)
	for _, b := range []*bench{first, second} {
		b.Store = archivetest.Open(t, address)
		b.Now = b.clock.LaggingClock(0)
	}
	return first, second
}

func TestOnlyOneOfTwoReplicasSendsANotice(t *testing.T) {
	t.Parallel()
	first, second := newReplicas(t, session.SpendClaims{Soft: 80, PerUser: session.SpendLimits{Month: session.Dollar}})
	// The second replica writes the ledger between the decision and the write of the first replica.
	first.BeforeNextWrite(func() {
		if got := second.send("u-2", 1, report(1, today, 81*cent, 0)); got.Notice == nil {
			t.Error("the second replica sends no notice")
		}
	})
	if got := first.send("u", 1, report(1, today, 81*cent, 0)); got.Notice != nil {
		t.Errorf("the first replica sends %+v, too", got.Notice)
	}
}

// The reservation would take the user above the soft threshold, but the limit of the namespace
// refuses the reservation.
func TestARefusedReservationCausesNoNotice(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{Soft: 80, PerUser: session.SpendLimits{Month: session.Dollar},
		PerNamespace: session.SpendLimits{Month: 2 * session.Dollar}})
	other := b.claims
	other.Owner, other.Soft, other.PerUser = "bob", 0, session.SpendLimits{}
	asBob := func(sequence int64, need session.Dollars) {
		if _, err := b.Spend(t.Context(), "u-bob", 1, other, report(sequence, today, 0, need)); err != nil {
			t.Error(err)
		}
	}
	b.BeforeNextWrite(func() { asBob(1, 150*cent) }) // runs after ada's session has read the namespace's ledger
	if got := b.send("u", 1, report(1, today, 0, 90*cent)); got.Refusal == nil || got.Notice != nil {
		t.Errorf("the grant is %+v, %+v", got, got.Notice)
	}
	asBob(2, 0)
	got := b.send("u", 1, report(2, today, 0, 90*cent))
	if got.Refusal != nil || got.Notice == nil || got.Notice.Scope != session.ScopeUser {
		t.Errorf("later the grant is %+v, %+v", got, got.Notice)
	}
}

func TestTheCostsOfDeletedConversationsStayInTheLedger(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{})
	b.send("u", 1, report(1, today, 10*cent, 0))
	if err := b.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		removed, err := b.Sweep(t.Context(), func(string) (string, error) { return "", nil }, 0, time.Now())
		if err != nil || removed != 0 {
			t.Errorf("the sweep removed %d, %v", removed, err)
		}
	}
	usage, err := b.Usage(t.Context(), "", "team", "2026-11")
	want := session.UsageLine{Namespace: "team", SpentLine: session.SpentLine{Period: today, Model: "m", Calls: 1,
		Input: 10, Output: 5, Cost: 10 * cent}}
	if err != nil || len(usage.Lines) != 1 || usage.Lines[0] != want || len(usage.Owners) != 1 ||
		usage.Owners[0].Owner != "ada" || usage.Owners[0].Spent != 10*cent {
		t.Errorf("the usage is %+v, %v", usage, err)
	}
}

func TestInvalidReportsOfCostsAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{})
	line := func(day, model string, cost session.Dollars) session.SpendReport {
		return session.SpendReport{Sequence: 1, Spent: []session.SpentLine{{Period: day, Model: model, Cost: cost}}}
	}
	for name, invalid := range map[string]session.SpendReport{
		"no sequence": {}, "negative need": {Sequence: 1, Need: -1}, "no day": line("", "m", 1),
		"no model": line(today, "", 1), "long model": line(today, strings.Repeat("m", 300), 1),
		"negative cost": line(today, "m", -1), "old day": line("2025-11-18", "m", 1), "future": line("2026-11-20", "m", 1),
		"path": line("../../x-1", "m", 1), "many lines": {Sequence: 1, Spent: make([]session.SpentLine, 1000)},
		"open path": {Sequence: 1, Open: map[string]session.Dollars{"../..": 1}},
	} {
		if _, err := b.Spend(t.Context(), "u", 1, b.claims, invalid); !errors.Is(err, store.ErrNoReport) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, claims := range []session.SpendClaims{{Owner: "ada"}, {Namespace: "team"}, {Owner: "a", Namespace: "../x"}} {
		if _, err := b.Spend(t.Context(), "u", 1, claims, report(1, today, 1, 0)); !errors.Is(err, store.ErrNoReport) {
			t.Errorf("%+v: %v", claims, err)
		}
	}
	for _, query := range [][3]string{{"", "", ""}, {"ada", "", "x"}, {"", "../x", ""}, {"", "team", "2026-13"}} {
		if _, err := b.Usage(t.Context(), query[0], query[1], query[2]); !errors.Is(err, store.ErrNoQuery) {
			t.Errorf("%v: %v", query, err)
		}
	}
}

// The ledger of an owner with 1000 conversations in a month must stay small, because each report
// rewrites it.
func TestTheLedgerOfManyConversationsStaysSmall(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{PerUser: session.SpendLimits{Month: 1000 * session.Dollar}})
	b.UseMemory()
	written := b.CountWrites()
	const conversations = 1000
	for i := range conversations {
		uid := fmt.Sprintf("0d0e7f9c-6a4f-4a1b-9f0e-%012d", i)
		ends := report(1, today, 10*cent, 0)
		ends.Final = i%10 > 0 // every tenth session is still running
		b.send(uid, 1, ends)
	}
	began := time.Now()
	const reports = 20
	for i := range reports {
		b.send("0d0e7f9c-6a4f-4a1b-9f0e-000000000000", 1, report(int64(i+2), today, 11*cent, cent))
	}
	took := time.Since(began) / reports
	t.Logf("%d conversations: the ledger has %d KiB, a report takes %s", conversations, written.Largest>>10, took)
	if written.Largest > 256<<10 {
		t.Errorf("the ledger has %d bytes", written.Largest)
	}
}

// The sessions of a large namespace share the ledger of the namespace, and a write to S3 takes long.
// Therefore all reports that arrive during a write are written together by the next write.
func TestConcurrentReportsInANamespaceAreWrittenTogether(t *testing.T) {
	t.Parallel()
	const owners = 200
	for _, granted := range []int{owners, owners / 2} {
		t.Run(fmt.Sprintf("the limit allows %d", granted), func(t *testing.T) {
			t.Parallel()
			limit := session.Dollars(granted) * cent
			b := newBench(t, session.SpendClaims{PerNamespace: session.SpendLimits{Month: limit}})
			held := make(chan struct{})
			waiting, writes := b.HoldNamespaceWrites(held)
			var refused atomic.Int64
			var all sync.WaitGroup
			for i := range owners {
				all.Go(func() {
					claims := b.claims
					claims.Owner = fmt.Sprintf("person-%d", i)
					grant, err := b.Spend(t.Context(), fmt.Sprintf("u-%d", i), 1, claims, report(1, today, 0, cent))
					switch {
					case err != nil:
						t.Error(err)
					case grant.Refusal != nil:
						refused.Add(1)
					}
				})
			}
			for deadline := time.Now().Add(time.Minute); waiting() < owners; <-time.After(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("timed out: the reports of all owners wait for the ledger of the namespace")
				}
			}
			close(held)
			all.Wait()
			// The first write contains the first report, and the second write contains all other reports. A
			// refused report later causes more writes, so their number is checked only if no report is
			// refused.
			if granted == owners && writes() > 2 {
				t.Errorf("the ledger of the namespace was written %d times for %d sessions", writes(), owners)
			}
			if int(refused.Load()) != owners-granted {
				t.Errorf("%d sessions were refused, want %d", refused.Load(), owners-granted)
			}
			usage, err := b.Usage(t.Context(), "", "team", "2026-11")
			if err != nil || usage.Reserved != limit || len(usage.Owners) != owners {
				t.Errorf("the usage of %d owners is %+v, %v", len(usage.Owners), usage.UsageTotals, err)
			}
		})
	}
}

// Each conversation is an entry in the ledger. An owner may have many short conversations, so the
// entries of ended conversations must not accumulate.
func TestTheLedgerRemovesEndedConversationsButKeepsTheirCosts(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{})
	b.UseMemory()
	written := b.CountWrites()
	const days, conversations = 20, 50
	for day := range days {
		b.clock.Set(time.Date(2026, 11, 1+day, 12, 0, 0, 0, time.UTC))
		for i := range conversations {
			ends := report(1, b.Now().Format(session.DayForm), cent, 0)
			ends.Final = true
			b.send(fmt.Sprintf("0d0e7f9c-6a4f-4a1b-%04d-%012d", day, i), 1, ends)
		}
	}
	if written.Largest > 48<<10 {
		t.Errorf("the ledger has %d bytes", written.Largest)
	}
	if got := b.totals("2026-11"); got != (session.UsageTotals{Spent: days * conversations * cent}) {
		t.Errorf("the ledger has %+v", got)
	}
}

// A session can report any model names, and the usage has a line for each model. The number of
// lines must stay bounded.
func TestUsageHasABoundedNumberOfModels(t *testing.T) {
	t.Parallel()
	b := newBench(t, session.SpendClaims{})
	for i := range 4 {
		many := session.SpendReport{Sequence: 1}
		for model := range 50 {
			many.Spent = append(many.Spent, session.SpentLine{Period: today, Model: fmt.Sprintf("m-%d-%d", i, model),
				Cost: cent})
		}
		b.send(fmt.Sprintf("u-%d", i), 1, many)
	}
	usage, err := b.Usage(t.Context(), "ada", "", "")
	if err != nil || len(usage.Lines) > 102 || usage.Spent != 200*cent {
		t.Errorf("the usage has %d lines, %+v, %v", len(usage.Lines), usage.UsageTotals, err)
	}
	var sum session.Dollars
	for _, line := range usage.Lines {
		sum += line.Cost
	}
	if sum != usage.Spent {
		t.Errorf("the sum of the lines is %s, want %s", sum, usage.Spent)
	}
}

// A killed archive leaves temporary files.
func TestASweepRemovesTemporaryFilesOfLedgers(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	file := filepath.Join(archivetest.Dir(address), "_ledger", "namespaces", "team", "2026-11.json.1.tmp")
	old := time.Now().Add(-2 * time.Hour)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600),
		os.Chtimes(file, old, old)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sweep(t.Context(), func(string) (string, error) { return "", nil }, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file: %v", err)
	}
}
