package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestOutcomesOfTurnsAreListed(t *testing.T) {
	t.Parallel()
	archivetest.TestTurns(t, archivetest.InDirectory(t))
}

// Many sessions fail at once if a model is unreachable.
func TestTheListOfOutcomesIsBounded(t *testing.T) {
	t.Parallel()
	const limit = 100
	s := archivetest.Open(t, archivetest.InDirectory(t))
	s.SetMaxTurns(limit)
	turn := &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonModelUnreachable}
	for i := range limit + 1 {
		if err := s.SetTurn(t.Context(), fmt.Sprintf("u-%d", i), "ns/u", 0, turn); err != nil {
			t.Fatal(err)
		}
	}
	list, tag, err := s.Turns(t.Context(), "", 0)
	if err != nil || len(list.Turns) != limit || !list.Incomplete {
		t.Fatalf("the list has %d outcomes, incomplete %v, %v", len(list.Turns), list.Incomplete, err)
	}
	if _, again, err := s.Turns(t.Context(), tag, 0); err != nil || again != tag {
		t.Errorf("the tag was %s and is %s, %v", tag, again, err)
	}
	if err := s.Delete(t.Context(), "u-0"); err != nil {
		t.Fatal(err)
	}
	if list, _, err := s.Turns(t.Context(), tag, time.Minute); err != nil || list.Incomplete {
		t.Errorf("after a deletion the list is incomplete: %v, %v", list.Incomplete, err)
	}
}
