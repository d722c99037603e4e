package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func segments(t *testing.T, address, uid string) (sizes []int64) {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(archivetest.Dir(address), uid, "events"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		info, err := file.Info()
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, info.Size())
	}
	return sizes
}

// A session uploads a little every few seconds. That must cause neither many objects nor large
// writes.
func TestSmallBatchesCreateFewSegmentsAndRewriteLittle(t *testing.T) {
	t.Parallel()
	const events, batch = 6000, 10
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	written := s.CountWrites()
	for from := 0; from < events; from += batch {
		archivetest.Append(t, s, "u", from, from+batch, from+batch)
	}
	total := int64(len(archivetest.Lines(0, events)))
	sizes := segments(t, address, "u")
	if len(sizes) > 12 {
		t.Errorf("%d bytes are in %d segments", total, len(sizes))
	}
	for _, size := range sizes {
		if size > 70<<10 {
			t.Errorf("a segment has %d bytes", size)
		}
	}
	if most := int64(64<<10) + int64(len(archivetest.Lines(0, batch)))*2; written.Largest > most {
		t.Errorf("%d bytes are written at once", written.Largest)
	}
	t.Logf("%d bytes in %d batches: %d segments, %d bytes written", total, events/batch, len(sizes), written.Bytes)
	if got := archivetest.IDs(t, archivetest.Open(t, address), "u", 0); got != "0-5999 of 6000" {
		t.Errorf("the events are %s", got)
	}
}

// The archive adds a batch to a small segment, even if the batch is large. It adds nothing to a
// large segment: the next batch starts a new segment.
func TestALargeSegmentIsNotRewritten(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	archivetest.Append(t, s, "u", 0, 3, 3)
	archivetest.Append(t, s, "u", 3, 9000, 9000)
	archivetest.Append(t, s, "u", 9000, 9001, 9001)
	archivetest.Append(t, s, "u", 9001, 9002, 9002)
	if got, want := fmt.Sprint(segments(t, address, "u")), fmt.Sprint([]int{len(archivetest.Lines(0, 9000)),
		len(archivetest.Lines(9000, 9002))}); got != want {
		t.Errorf("the segments have %s bytes, want %s", got, want)
	}
	for _, from := range []int{0, 2, 3, 8999, 9000, 9001} {
		if got, want := archivetest.IDs(t, s, "u", from), fmt.Sprintf("%d-9001 of %d", from, 9002-from); got != want {
			t.Errorf("events from %d are %s, want %s", from, got, want)
		}
	}
}

// Older versions wrote a segment for each batch. The archive can still read and extend these
// segments.
func TestSmallSegmentsOfOlderVersionsAreExtended(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	dir := filepath.Join(archivetest.Dir(address), "u", "events")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for from := 0; from < 12; from += 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%012d", from)), archivetest.Lines(from, from+3),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := archivetest.Open(t, address)
	archivetest.Append(t, s, "u", 12, 14, 14)
	if got := archivetest.IDs(t, s, "u", 0); got != "0-13 of 14" {
		t.Errorf("the events are %s", got)
	}
	if got := len(segments(t, address, "u")); got != 4 {
		t.Errorf("%d segments", got)
	}
}

// Just before an attempt writes, a later attempt writes through another process. The archive then
// refuses the write of the earlier attempt, or adds it to the earlier journal. It never overwrites
// the later attempt's data.
func TestASupersededAttemptOverwritesNothing(t *testing.T) {
	t.Parallel()
	batch := store.Batch{Journal: archivetest.Journal, From: 3, Lines: archivetest.Lines(3, 6)}
	later := archivetest.OtherLines(3, 5)
	for name, c := range map[string]struct {
		concurrent func(ctx context.Context, other archivetest.Store) error
		write      func(ctx context.Context, s archivetest.Store) error
		want       error
		current    string
		earlier    string
	}{
		"the later attempt appends": {
			concurrent: func(ctx context.Context, other archivetest.Store) error {
				_, err := other.Append(ctx, "u", 2, store.Batch{Journal: archivetest.Journal, From: 3, Lines: later})
				return err
			},
			write: func(ctx context.Context, s archivetest.Store) error {
				_, err := s.Append(ctx, "u", 1, batch)
				return err
			},
			want: store.ErrSuperseded, current: string(archivetest.Lines(0, 3)) + string(later),
			earlier: store.ErrNothing.Error(),
		},
		"the later attempt starts a new journal": {
			concurrent: storeNextJournal,
			write: func(ctx context.Context, s archivetest.Store) error {
				_, err := s.Append(ctx, "u", 1, batch)
				return err
			},
			// Before a write, the archive checks that the attempt is the latest. Here, the later
			// attempt begins after this check. The write of the earlier attempt succeeds, but
			// changes only the earlier journal.
			current: string(archivetest.OtherLines(0, 8)), earlier: string(archivetest.Lines(0, 6)),
		},
		"both start a new journal": {
			concurrent: storeNextJournal,
			write:      func(ctx context.Context, s archivetest.Store) error { return s.StartJournal(ctx, "u", 1) },
			want:       store.ErrSuperseded,
			current:    string(archivetest.OtherLines(0, 8)), earlier: string(archivetest.Lines(0, 3)),
		},
		"the later attempt ends": {
			concurrent: func(ctx context.Context, other archivetest.Store) error {
				return other.End(ctx, "u", 2, []byte(`{"patch":"later"}`))
			},
			write: func(ctx context.Context, s archivetest.Store) error {
				return s.End(ctx, "u", 1, []byte(`{"patch":"earlier"}`))
			},
			want: store.ErrSuperseded, current: string(archivetest.Lines(0, 3)), earlier: store.ErrNothing.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := archivetest.InDirectory(t)
			s, other := archivetest.Open(t, address), archivetest.Open(t, address)
			archivetest.Append(t, s, "u", 0, 3, 3)
			if err := s.Claim(t.Context(), "u", 1); err != nil {
				t.Fatal(err)
			}
			s.BeforeNextWrite(func() {
				if err := c.concurrent(t.Context(), other); err != nil {
					t.Error(err)
				}
			})
			if err := c.write(t.Context(), s); !errors.Is(err, c.want) {
				t.Errorf("the result is %v, want %v", err, c.want)
			}
			var current strings.Builder
			if err := s.Copy(t.Context(), "u", 0, 0, &current); err != nil || current.String() != c.current {
				t.Errorf("the journal is %v\n%s", err, current.String())
			}
			if got := archivetest.EarlierLines(t, s, 1, 0); got != c.earlier {
				t.Errorf("the earlier journal is %s", got)
			}
			if ending, err := s.Ending(t.Context(), "u"); err == nil && ending.Patch != "later" {
				t.Errorf("the ending is %+v", ending)
			}
		})
	}
}

// storeNextJournal starts a new journal for the second attempt and stores two batches in it.
func storeNextJournal(ctx context.Context, s archivetest.Store) error {
	err := s.StartJournal(ctx, "u", 2)
	for _, part := range [][2]int{{0, 6}, {6, 8}} {
		if err == nil {
			_, err = s.Append(ctx, "u", 2, store.Batch{Journal: archivetest.NameOf(archivetest.OtherLines(0, 1)), From: part[0],
				Lines: archivetest.OtherLines(part[0], part[1])})
		}
	}
	return err
}

// Whichever write fails, a retry stores each event exactly once, and the session can continue.
func TestAFailedWriteLosesNothing(t *testing.T) {
	t.Parallel()
	for fail := 1; fail <= 3; fail++ {
		address := archivetest.InDirectory(t)
		s := archivetest.Open(t, address)
		s.SetMaxConversation(int64(len(archivetest.Lines(0, 15))))
		archivetest.Append(t, s, "u", 0, 3, 3)
		s.FailWrite(fail)
		for attempt, next := 1, 3; next < 15; {
			position, err := s.Append(t.Context(), "u", attempt, store.Batch{Journal: archivetest.Journal,
				Previous: archivetest.NameOf(archivetest.Lines(next-1, next)), From: next,
				Lines: archivetest.Lines(next, next+3)})
			if err == nil {
				next = position.Next
			}
		}
		if got := archivetest.IDs(t, archivetest.Open(t, address), "u", 0); got != "0-14 of 15" {
			t.Errorf("after write %d failed the events are %s", fail, got)
		}
		if _, err := s.Append(t.Context(), "u", 1, store.Batch{Journal: archivetest.Journal, From: 15,
			Lines: archivetest.Lines(15, 16)}); !errors.Is(err, store.ErrFull) {
			t.Errorf("a batch above the limit is accepted: %v", err)
		}
	}
}

func TestRepeatedFinalReportsRewriteNoEvents(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	large := fmt.Sprintf(`{"id":0,"message":"%s"}`, strings.Repeat("x", 8<<20))
	if _, err := s.Append(t.Context(), "u", 0, store.Batch{Journal: session.JournalName([]byte(large)),
		Lines: []byte(large + "\n")}); err != nil {
		t.Fatal(err)
	}
	written := s.CountWrites()
	for range 24 {
		if err := s.End(t.Context(), "u", 0, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if written.Bytes != 24*int64(len("{}")) {
		t.Errorf("%d bytes were written", written.Bytes)
	}
}
