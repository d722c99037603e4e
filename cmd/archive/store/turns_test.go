package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestOutcomesOfTurnsAreListed(t *testing.T) {
	t.Parallel()
	archivetest.TestTurns(t, archivetest.InDirectory(t))
}

// If a model is unreachable, many sessions fail at the same time. Their outcomes do not fit on one
// page, but all of them must be listed.
func TestAllOutcomesAreListedInPages(t *testing.T) {
	t.Parallel()
	const limit, outcomes = 40, 101
	s := archivetest.Open(t, archivetest.InDirectory(t))
	s.SetMaxTurns(limit)
	turn := &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonModelUnreachable}
	for i := range outcomes {
		if err := s.SetTurn(t.Context(), fmt.Sprintf("u-%03d", i), "ns/u", 0, turn); err != nil {
			t.Fatal(err)
		}
	}
	listed, first := []string{}, ""
	for after, tag := "", ""; ; {
		list, now, err := s.Turns(t.Context(), "", after, 0)
		if err != nil || len(list.Turns) > limit || tag != "" && now != tag {
			t.Fatalf("the page after %q has %d outcomes and the tag %s, %v", after, len(list.Turns), now, err)
		}
		for _, turn := range list.Turns {
			listed = append(listed, turn.UID)
		}
		if after, tag, first = list.Next, now, now; after == "" {
			break
		}
	}
	if len(listed) != outcomes || !slices.IsSorted(listed) || len(slices.Compact(listed)) != outcomes {
		t.Errorf("the pages have %d outcomes: %v", len(listed), listed)
	}
	// A change on the last page also changes the tag of the first page.
	if err := s.Delete(t.Context(), "u-100"); err != nil {
		t.Fatal(err)
	}
	if list, tag, err := s.Turns(t.Context(), first, "", time.Minute); err != nil || tag == first ||
		len(list.Turns) != limit {
		t.Errorf("after a deletion the first page has %d outcomes and the tag %s, before %s: %v", len(list.Turns), tag,
			first, err)
	}
}
