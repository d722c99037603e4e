package live

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

func sized(sizes []int) (events []json.RawMessage) {
	for _, size := range sizes {
		events = append(events, json.RawMessage(`"`+strings.Repeat("x", size-2)+`"`))
	}
	return events
}

func lengths(events []json.RawMessage) (sizes []int) {
	for _, event := range events {
		sizes = append(sizes, len(event))
	}
	return sizes
}

func TestEventPagesOfASessionAreBoundedAndHaveNoGaps(t *testing.T) {
	t.Parallel()
	const k = 1 << 10
	events := sized([]int{10, 200 * k, 100 * k, 300 * k, 900 * k, 20, 30, 100 * k, 350 * k, 990 * k})
	// This session runs an older version of the runtime, which does not limit the size of a page.
	s, c := talking(t, func(w http.ResponseWriter, r *http.Request) {
		start, _ := strconv.Atoi(r.URL.Query().Get("start_id"))
		_ = json.NewEncoder(w).Encode(session.EventPage{Events: events[start:]})
	})
	held := hold(responseBudget(2000*k), "ada")
	var read []json.RawMessage
	for more := true; more; {
		call := Call{Method: http.MethodGet, Path: session.EventsPath,
			Query: map[string][]string{"start_id": {strconv.Itoa(len(read))}}, Held: held}
		page, err := s.Page(t.Context(), c, call, 400*k)
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, size := range lengths(page.Events) {
			total += size
		}
		if total > 400*k && len(page.Events) > 1 {
			t.Errorf("a page has events of %v bytes", lengths(page.Events))
		}
		read, more = append(read, page.Events...), page.HasMore
		held.Release()
	}
	if !slices.Equal(lengths(read), lengths(events)) {
		t.Errorf("read events of %v bytes, want %v", lengths(read), lengths(events))
	}
}

func TestOversizedEventPagesAreCutOrRefusedAndInvalidPagesAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want int
		code int
	}{
		"whole":            {`{"events":[1,2],"has_more":true}`, 2, 0},
		"in another order": {`{"has_more":true,"other":{},"events":[1,2]}`, 2, 0},
		"none":             {`{"events":[],"has_more":true}`, 0, 0},
		"too many events":  {`{"events":[1` + strings.Repeat(",1", 1000) + `]}`, MaxEvents, 0},
		"endless":          {`{"events":[1,"` + strings.Repeat("x", 1<<20), 1, 0},
		"an event that is too large": {`{"events":["` + strings.Repeat("x", MaxResponse) + `"],"has_more":false}`, 0,
			http.StatusRequestEntityTooLarge},
		"truncated":    {`{"events":[1,2`, 0, http.StatusServiceUnavailable},
		"not a page":   {`[]`, 0, http.StatusServiceUnavailable},
		"invalid JSON": {`{"events":[1,}`, 0, http.StatusServiceUnavailable},
		"nothing":      {``, 0, http.StatusServiceUnavailable},
		"above the user's limit": {`{"events":["` + strings.Repeat("x", 4<<20) + `"],"has_more":false}`, 0,
			http.StatusTooManyRequests},
	} {
		s, conversation := talking(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.text) })
		budget := responseBudget(0)
		if c.code == http.StatusTooManyRequests {
			budget = responseBudget(3 << 20)
		}
		page, err := s.Page(t.Context(), conversation, Call{Method: http.MethodGet, Path: "/", Held: hold(budget, "ada")},
			1<<10)
		switch {
		case c.code != 0:
			if err == nil || answer.CodeOf(err) != c.code {
				t.Errorf("%s: %v, want %d", name, err, c.code)
			}
		case err != nil || len(page.Events) != c.want || !page.HasMore:
			t.Errorf("%s: %v, %v", name, page, err)
		}
	}
}

func TestSessionResponsesCountTowardsTheMemoryLimitUntilTheyAreReleased(t *testing.T) {
	t.Parallel()
	s, c := talking(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `"`+strings.Repeat("x", 1<<20)+`"`)
	})
	budget := responseBudget(3 << 19)
	read := func(user string) (*limits.Hold, error) {
		held := hold(budget, user)
		_, err := s.Read(t.Context(), c, Call{Method: http.MethodGet, Path: "/", Held: held}, MaxResponse)
		return held, err
	}
	first, err := read("ada")
	if err != nil {
		t.Fatal(err)
	}
	second, err := read("ada")
	if answer.CodeOf(err) != http.StatusTooManyRequests {
		t.Errorf("a second answer: %v", err)
	}
	if _, err := read("bob"); err != nil {
		t.Errorf("bob: %v", err)
	}
	first.Release()
	second.Release()
	if _, err := read("ada"); err != nil {
		t.Errorf("after the others: %v", err)
	}
}

func TestALargeEventCountsTowardsTheMemoryLimitUntilItIsHandled(t *testing.T) {
	t.Parallel()
	s, c := talking(t, func(w http.ResponseWriter, _ *http.Request) {
		out := bufio.NewWriter(w)
		for i := range 3 {
			_, _ = fmt.Fprintf(out, "id: %d\ndata: %q\n\n", i, strings.Repeat("x", 1<<20))
		}
		_ = out.Flush()
	})
	budget := responseBudget(3 << 19)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	events := 0
	count := func(Event) error { events++; return nil }
	_ = s.Follow(ctx, c, -1, false, hold(budget, "ada"), func(Event) error {
		err := s.Follow(ctx, c, -1, false, hold(budget, "ada"), count, nil)
		if answer.CodeOf(err) != http.StatusTooManyRequests || events > 0 {
			t.Errorf("a second stream gets %d events and ends with %v", events, err)
		}
		return io.EOF
	}, nil)
	if err := s.Follow(ctx, c, -1, false, hold(budget, "ada"), count, nil); events != 3 {
		t.Errorf("%d events, %v", events, err)
	}
}

// responseBudget returns a budget that limits the response bytes of each user; zero means the
// default limit.
func responseBudget(each int64) *limits.Budget {
	return limits.New(limits.Options{Responses: limits.Bounds{User: each}})
}

func hold(budget *limits.Budget, user string) *limits.Hold {
	return budget.Hold(user, limits.Responses)
}
