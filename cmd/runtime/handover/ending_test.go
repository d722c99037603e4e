package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// The final report lists the changes in the repository. If the repository is large, the search for
// changes may use most of the time that the session has left. The journal must not wait for it.
func TestTheJournalIsArchivedBeforeTheFinalReport(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	had := ""
	err := k.attempt(1).Keep(open(t, inFile(t), "a", "b")).Finish(t.Context(), func(context.Context) *session.Ending {
		had = k.has(0)
		return &session.Ending{}
	})
	if err != nil || had != "a b" {
		t.Errorf("the archive had %q, %v", had, err)
	}
}

func TestAFullArchiveAcceptsTheFinalReport(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	k.full.Store(true)
	err := k.attempt(1).Keep(open(t, inFile(t), "a")).Finish(t.Context(), leaving(&session.Ending{Cost: "1.5"}))
	if !errors.Is(err, errRefused) {
		t.Errorf("the error for missing events is %v", err)
	}
	if ending, err := k.store.Ending(t.Context(), uid); err != nil || ending.Cost != "1.5" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

// The archive may have room again at the end, for example after the user deleted other
// conversations.
func TestEventsAreSentAgainAtTheEndIfTheArchiveWasFull(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	k.full.Store(true)
	keeper := k.attempt(1).Keep(open(t, inFile(t), "a", "b"))
	keeper.Run(t.Context()) // returns when the archive refuses the events
	k.full.Store(false)
	if err := keeper.Finish(t.Context(), leaving(&session.Ending{Cost: "1.5"})); err != nil || k.has(0) != "a b" {
		t.Errorf("the archive has %q, %v", k.has(0), err)
	}
}

func TestTheCostIsArchivedEvenIfTheStorageLimitIsReached(t *testing.T) {
	t.Parallel()
	k := newLimitedArchive(t, 1)
	left := &session.Ending{Cost: "1.5", Patch: strings.Repeat("d", 1<<20)}
	for i := range 2000 {
		left.Changes = append(left.Changes, session.FileChange{Status: "M", Path: fmt.Sprintf("%s/%d", strings.Repeat("d",
			100), i)})
	}
	if err := k.attempt(1).Keep(open(t, inFile(t), "a")).Finish(t.Context(), leaving(left)); !errors.Is(err, errFull) {
		t.Errorf("the error for a full archive is %v", err)
	}
	if ending, err := k.store.Ending(t.Context(), uid); err != nil || ending.Cost != "1.5" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

func TestTheArchivedChangesAreKeptIfAFinalReportIsTooLarge(t *testing.T) {
	t.Parallel()
	k := newLimitedArchive(t, 1)
	small := &session.Ending{Cost: "1", Patch: "the diff", Changes: []session.FileChange{{Status: "M", Path: "f"}}}
	j := open(t, inFile(t), "a")
	_ = k.attempt(1).Keep(j).Finish(t.Context(), leaving(small)) // returns an error: there is no space for the events
	large := &session.Ending{Calls: 2, Cost: "2"}
	for i := range 2000 {
		large.Changes = append(large.Changes, session.FileChange{Status: "M", Path: fmt.Sprintf("%s/%d",
			strings.Repeat("d", 100), i)})
	}
	_ = k.attempt(1).Keep(j).Finish(t.Context(), leaving(large))
	ending, err := k.store.Ending(t.Context(), uid)
	if err != nil || ending.Cost != "2" || ending.Patch != small.Patch || len(ending.Changes) != 1 {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

func TestAnOversizedFinalReportIsReducedUntilItFits(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, c := range map[string]struct {
		patch, diff string
		want        string
	}{
		"markup": {strings.Repeat("<", 5*mib), strings.Repeat(">", 5*mib),
			"a patch of 5 MiB, and a diff of the file"},
		"control characters in a file": {strings.Repeat("d", 2*mib), strings.Repeat("\x01", 4*mib),
			"a patch of 2 MiB, and no diff of the file"},
		"control characters in the patch": {strings.Repeat("\x01", 5*mib), "", "no patch, and no diff of the file"},
	} {
		k := newArchive(t)
		left := &session.Ending{
			Repository: true, Patch: c.patch, Cost: "1.5", Changes: []session.FileChange{{Status: "M", Path: "f",
				Diff: &session.Diff{Modified: c.diff}}},
		}
		if err := k.attempt(1).Keep(open(t, inFile(t), "a")).Finish(t.Context(), leaving(left)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ending, err := k.store.Ending(t.Context(), uid)
		if err != nil || ending.Cost != "1.5" || len(ending.Changes) != 1 || ending.Changes[0].Path != "f" {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := fmt.Sprintf("a patch of %d MiB", len(ending.Patch)/mib)
		if strings.HasPrefix(ending.Patch, "The diff is omitted") {
			got = "no patch"
		}
		file := "a"
		if ending.Changes[0].Diff == nil {
			file = "no"
		}
		if got += ", and " + file + " diff of the file"; got != c.want {
			t.Errorf("%s: archived are %s, want %s", name, got, c.want)
		}
	}
}
