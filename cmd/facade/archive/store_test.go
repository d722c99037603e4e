package archive_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/archive"
)

// bucket is the URL of an archive; where it is depends on the test.
func open(t *testing.T, address string) *archive.Store {
	t.Helper()
	store, err := archive.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func inDirectory(t *testing.T) string { return "file://" + filepath.Join(t.TempDir(), "archive") }

// lines of events from one id up to, but not including, another.
func lines(from, to int) []byte {
	var text strings.Builder
	for id := from; id < to; id++ {
		fmt.Fprintf(&text, "{\"id\":%d,\"message\":\"%s\"}\n", id, strings.Repeat("x", 100))
	}
	return []byte(text.String())
}

var name = session.JournalName([]byte(strings.TrimSuffix(string(lines(0, 1)), "\n")))

func appendTo(t *testing.T, store *archive.Store, uid string, from, to, wantNext int) {
	t.Helper()
	position, err := store.Append(t.Context(), uid, archive.Segment{Journal: name, From: from, Lines: lines(from, to)})
	if err != nil || position.Next != wantNext {
		t.Fatalf("after %d to %d the next is %d, %v, want %d", from, to, position.Next, err, wantNext)
	}
}

func ids(t *testing.T, store archive.Reader, uid string, from int) string {
	t.Helper()
	var got []int
	err := store.Events(t.Context(), uid, from, func(id int, event json.RawMessage) bool {
		if e, err := session.ParseEvent(event); err != nil || e.ID != id {
			t.Errorf("event %d is %s", id, event)
		}
		got = append(got, id)
		return true
	})
	if err != nil {
		return err.Error()
	}
	if len(got) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d-%d of %d", got[0], got[len(got)-1], len(got))
}

func testSegments(t *testing.T, address string) {
	// Two facades share the archive.
	one, other := open(t, address), open(t, address)
	if got := ids(t, one, "u", 0); got != archive.ErrNothing.Error() {
		t.Errorf("before anything: %s", got)
	}
	appendTo(t, one, "u", 0, 3, 3)
	appendTo(t, other, "u", 3, 5, 5)
	appendTo(t, one, "u", 3, 5, 5)  // its answer was lost
	appendTo(t, one, "u", 9, 11, 5) // a gap
	appendTo(t, one, "u", 0, 3, 5)  // all over again
	appendTo(t, one, "u", 5, 8, 8)
	appendTo(t, other, "v", 0, 1, 1)
	for _, store := range []*archive.Store{one, other, open(t, address)} {
		if got := ids(t, store, "u", 0); got != "0-7 of 8" {
			t.Errorf("there are %s", got)
		}
		if got := ids(t, store, "u", 4); got != "4-7 of 4" {
			t.Errorf("from 4 there are %s", got)
		}
		if position, err := store.Position(t.Context(), "u"); err != nil || position.Next != 8 || position.Journal != name {
			t.Errorf("the position is %+v, %v", position, err)
		}
	}
	if _, err := one.Append(t.Context(), "u", archive.Segment{Journal: "another", From: 8,
		Lines: lines(8, 9)}); !errors.Is(err, archive.ErrOtherJournal) {
		t.Errorf("another journal: %v", err)
	}
	// It ends, is compacted, and goes on.
	if err := other.End(t.Context(), "u", 0, []byte(`{"patch":"diff","repository":true}`)); err != nil {
		t.Fatal(err)
	}
	other.Tidied()
	if got := ids(t, one, "u", 0); got != "0-7 of 8" {
		t.Errorf("compacted, there are %s", got)
	}
	appendTo(t, one, "u", 8, 10, 10)
	appendTo(t, other, "u", 10, 12, 12)
	if got := ids(t, open(t, address), "u", 7); got != "7-11 of 5" {
		t.Errorf("from 7 there are %s", got)
	}
	if ending, err := one.Ending(t.Context(), "u"); err != nil || ending.Patch != "diff" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
	if _, err := one.Ending(t.Context(), "v"); !errors.Is(err, archive.ErrNothing) {
		t.Errorf("of one that goes on: %v", err)
	}
	if err := one.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, other, "u", 0); got != archive.ErrNothing.Error() {
		t.Errorf("deleted, there are %s", got)
	}
	if got := ids(t, other, "v", 0); got != "0-0 of 1" {
		t.Errorf("of the other there are %s", got)
	}
}

func TestSegmentsArriveOnceAndInOrderInADirectory(t *testing.T) { testSegments(t, inDirectory(t)) }

// However many facades take how many tries of a session, each event is there once.
func TestManyTriesAtOnceLeaveEachEventOnce(t *testing.T) {
	address := inDirectory(t)
	stores := []*archive.Store{open(t, address), open(t, address), open(t, address)}
	var all sync.WaitGroup
	for i := range 9 {
		all.Go(func() {
			for next, size := 0, i%4+1; next < 60; {
				got, err := stores[i%3].Append(context.Background(), "u", archive.Segment{Journal: name, From: next,
					Lines: lines(next, min(60, next+size))})
				if err != nil {
					t.Error(err)
					return
				}
				next = got.Next
			}
		})
	}
	all.Wait()
	if got := ids(t, open(t, address), "u", 0); got != "0-59 of 60" {
		t.Errorf("there are %s", got)
	}
}

// A facade that is killed while it compacts leaves the old segments, the new one, or both.
func TestCompactingCanBeCutOffAnywhere(t *testing.T) {
	address := inDirectory(t)
	dir := strings.TrimPrefix(address, "file://")
	store := open(t, address)
	for from := 0; from < 12; from += 3 {
		appendTo(t, store, "u", from, from+3, from+3)
	}
	whole := lines(0, 12)
	// The first segment is replaced before the others go, one after the other.
	if err := os.WriteFile(filepath.Join(dir, "u", "events", fmt.Sprintf("%012d", 0)), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	for from := 3; ; from += 3 {
		fresh := open(t, address)
		if got := ids(t, fresh, "u", 0); got != "0-11 of 12" {
			t.Errorf("with %d removed: %s", from/3-1, got)
		}
		if position, err := fresh.Position(t.Context(), "u"); err != nil || position.Next != 12 {
			t.Errorf("with %d removed the position is %+v, %v", from/3-1, position, err)
		}
		if from == 12 {
			break
		}
		if err := os.Remove(filepath.Join(dir, "u", "events", fmt.Sprintf("%012d", from))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatIsNoSegmentIsRefused(t *testing.T) {
	store := open(t, inDirectory(t))
	for _, text := range []string{"x\n", "{}\n", "{\"id\":1}\n", "{\"id\":0}", "{\"id\":0}\n{\"id\":2}\n", "\n"} {
		if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: name, Lines: []byte(text)}); !errors.Is(err,
			archive.ErrMalformed) {
			t.Errorf("%q: %v", text, err)
		}
	}
	large := []byte(`{"id":0,"message":"` + strings.Repeat("x", 256<<20) + "\"}\n")
	if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: name, Lines: large}); !errors.Is(err,
		archive.ErrFull) {
		t.Errorf("too much: %v", err)
	}
}

func TestTheSweepRemovesWhatNobodyHasOwnedForATime(t *testing.T) {
	store := open(t, inDirectory(t))
	for _, uid := range []string{"owned", "orphan", "found"} {
		appendTo(t, store, uid, 0, 1, 1)
	}
	now := time.Now()
	sweep := func(after time.Duration, owned string, want int) {
		t.Helper()
		removed, err := store.Sweep(t.Context(), func(uid string) bool { return strings.Contains(owned, uid) }, 24*time.Hour,
			now.Add(after))
		if err != nil || removed != want {
			t.Errorf("after %s it removed %d, %v, want %d", after, removed, err, want)
		}
	}
	sweep(0, "owned", 0)
	sweep(23*time.Hour, "owned found", 0)
	sweep(25*time.Hour, "owned", 1)
	for uid, want := range map[string]string{"owned": "0-0 of 1", "found": "0-0 of 1",
		"orphan": archive.ErrNothing.Error()} {
		if got := ids(t, store, uid, 0); got != want {
			t.Errorf("of %s there is %s, want %s", uid, got, want)
		}
	}
	sweep(48*time.Hour, "owned", 0)
	sweep(50*time.Hour, "owned", 1)
}

// Who wants the last events of a large segment does not read those before; and one that took its
// place is found out.
func TestTheLastEventsAreFoundInWhatTookTheOthersPlace(t *testing.T) {
	address := inDirectory(t)
	store := open(t, address)
	appendTo(t, store, "u", 0, 2000, 2000)
	for range 2 {
		for from, want := range map[int]string{0: "0-1999 of 2000", 1: "1-1999 of 1999", 255: "255-1999 of 1745",
			256: "256-1999 of 1744", 1999: "1999-1999 of 1", 2000: "none"} {
			if got := ids(t, store, "u", from); got != want {
				t.Errorf("from %d there are %s, want %s", from, got, want)
			}
		}
	}
	file := filepath.Join(strings.TrimPrefix(address, "file://"), "u", "events", fmt.Sprintf("%012d", 0))
	for _, text := range []string{strings.ReplaceAll(string(lines(0, 2000)), "xxx", "longer"), string(lines(0, 10))} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		count := strings.Count(text, "\n")
		if got, want := ids(t, store, "u", count-1), fmt.Sprintf("%d-%d of 1", count-1, count-1); got != want {
			t.Errorf("of %d events the last are %s", count, got)
		}
		if position, err := store.Position(t.Context(), "u"); err != nil || position.Next != count {
			t.Errorf("of %d events the position is %+v, %v", count, position, err)
		}
	}
}

func TestADirectoryIsNamedFromTheRootOn(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"file://.local/archive", "file://archive", "file:", "file:archive"} {
		store, err := archive.Open(t.Context(), address)
		if err == nil {
			_ = store.Close()
			t.Errorf("%s is taken for a directory", address)
		}
	}
}
