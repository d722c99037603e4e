package server

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

// A user can choose the container image of a session, so the session may send any response: for
// example, an empty page which says that more events follow.
func TestReadingEventsEndsAtAnEmptyPage(t *testing.T) {
	t.Parallel()
	hold := limits.New(limits.Options{}).Hold("ada", limits.Responses)
	reads := 0
	pages := func(context.Context, *limits.Hold, eventRange) (*session.EventPage, error) {
		if reads++; reads > 1 {
			t.Fatal("the page is read twice")
		}
		return &session.EventPage{Events: []json.RawMessage{}, HasMore: true}, nil
	}
	visited, err := visitEvents(t.Context(), hold, pages, 0, false, func(live.Event) error { return nil })
	if visited || err != nil {
		t.Errorf("visited: %t, %v", visited, err)
	}
}
