package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// What changed in a large repository may take longer to find out than there is time.
func TestTheJournalIsHandedOverBeforeTheEndingIsSought(t *testing.T) {
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

func TestAnArchiveThatKeepsNoMoreEventsTakesTheEnding(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	k.full.Store(true)
	err := k.attempt(1).Keep(open(t, inFile(t), "a")).Finish(t.Context(), leaving(&session.Ending{Cost: "1.5"}))
	if !errors.Is(err, errRefused) {
		t.Errorf("that events are missing is told as %v", err)
	}
	if ending, err := k.store.Ending(t.Context(), uid); err != nil || ending.Cost != "1.5" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

// Its user may have deleted other conversations meanwhile.
func TestAnArchiveThatHasRoomAgainTakesTheEventsAtTheEnd(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	k.full.Store(true)
	keeper := k.attempt(1).Keep(open(t, inFile(t), "a", "b"))
	keeper.Run(t.Context()) // until it is refused
	k.full.Store(false)
	if err := keeper.Finish(t.Context(), leaving(&session.Ending{Cost: "1.5"})); err != nil || k.has(0) != "a b" {
		t.Errorf("the archive has %q, %v", k.has(0), err)
	}
}

func TestWhatASessionCostIsKeptOfAUserWhoHasNoRoomLeft(t *testing.T) {
	t.Parallel()
	k := newLimitedArchive(t, 1)
	left := &session.Ending{Cost: "1.5", Patch: strings.Repeat("d", 1<<20)}
	for i := range 2000 {
		left.Changes = append(left.Changes, session.FileChange{Status: "M", Path: fmt.Sprintf("%s/%d", strings.Repeat("d",
			100), i)})
	}
	if err := k.attempt(1).Keep(open(t, inFile(t), "a")).Finish(t.Context(), leaving(left)); !errors.Is(err, errFull) {
		t.Errorf("that there is no room is told as %v", err)
	}
	if ending, err := k.store.Ending(t.Context(), uid); err != nil || ending.Cost != "1.5" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

func TestOfAnEndingThatIsTooLargeThereIsAsMuchAsThereIsRoomFor(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, c := range map[string]struct {
		patch, diff string
		want        string
	}{
		"the text of a page": {strings.Repeat("<", 5*mib), strings.Repeat(">", 5*mib),
			"a difference of 5 MiB, and one of a file"},
		"what is escaped twice": {strings.Repeat("d", 2*mib), strings.Repeat("\x01", 4*mib),
			"a difference of 2 MiB, and none of a file"},
		"all of it": {strings.Repeat("\x01", 5*mib), "", "no difference, and none of a file"},
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
		got := fmt.Sprintf("a difference of %d MiB", len(ending.Patch)/mib)
		if strings.HasPrefix(ending.Patch, "The difference is left out") {
			got = "no difference"
		}
		file := "one"
		if ending.Changes[0].Diff == nil {
			file = "none"
		}
		if got += ", and " + file + " of a file"; got != c.want {
			t.Errorf("%s: kept are %s, want %s", name, got, c.want)
		}
	}
}
