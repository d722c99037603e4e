package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestEventsAreStoredOnceAndInOrderInADirectory(t *testing.T) {
	archivetest.TestSegments(t, archivetest.InDirectory(t))
}

func TestConcurrentRetriesStoreEachEventOnce(t *testing.T) {
	address := archivetest.InDirectory(t)
	stores := []archivetest.Store{archivetest.Open(t, address), archivetest.Open(t, address),
		archivetest.Open(t, address)}
	var all sync.WaitGroup
	for i := range 9 {
		all.Go(func() {
			for next, size := 0, i%4+1; next < 60; {
				got, err := stores[i%3].Append(context.Background(), "u", 0, store.Batch{Journal: archivetest.Journal, From: next,
					Lines: archivetest.Lines(next, min(60, next+size))})
				if err != nil {
					t.Error(err)
					return
				}
				next = got.Next
			}
		})
	}
	all.Wait()
	if got := archivetest.IDs(t, archivetest.Open(t, address), "u", 0); got != "0-59 of 60" {
		t.Errorf("the events are %s", got)
	}
}

// An older version merged segments. A kill during a merge left all old segments, or the merged
// segment and a part of the old segments.
func TestMergedSegmentsOfOlderVersionsAreRead(t *testing.T) {
	address := archivetest.InDirectory(t)
	dir := archivetest.Dir(address)
	if err := os.MkdirAll(filepath.Join(dir, "u", "events"), 0o700); err != nil {
		t.Fatal(err)
	}
	for from := 0; from < 12; from += 3 {
		if err := os.WriteFile(filepath.Join(dir, "u", "events", fmt.Sprintf("%012d", from)),
			archivetest.Lines(from, from+3), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole := archivetest.Lines(0, 12)
	if err := os.WriteFile(filepath.Join(dir, "u", "events", fmt.Sprintf("%012d", 0)), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	for from := 3; ; from += 3 {
		fresh := archivetest.Open(t, address)
		if got := archivetest.IDs(t, fresh, "u", 0); got != "0-11 of 12" {
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

func TestInvalidSegmentsAreRefused(t *testing.T) {
	s := archivetest.Open(t, archivetest.InDirectory(t))
	for _, text := range []string{"x\n", "{}\n", "{\"id\":1}\n", "{\"id\":0}", "{\"id\":0}\n{\"id\":2}\n", "\n"} {
		batch := store.Batch{Journal: archivetest.Journal, Lines: []byte(text)}
		if _, err := s.Append(t.Context(), "u", 0, batch); !errors.Is(err, store.ErrMalformed) {
			t.Errorf("%q: %v", text, err)
		}
	}
	large := []byte(`{"id":0,"message":"` + strings.Repeat("x", 256<<20) + "\"}\n")
	if _, err := s.Append(t.Context(), "u", 0, store.Batch{Journal: archivetest.Journal, Lines: large}); !errors.Is(err,
		store.ErrFull) {
		t.Errorf("above the limit: %v", err)
	}
}

func TestTheSweepDeletesDataWithoutAConversationAfterTheRetention(t *testing.T) {
	s := archivetest.Open(t, archivetest.InDirectory(t))
	for _, uid := range []string{"owned", "orphan", "found"} {
		archivetest.Append(t, s, uid, 0, 1, 1)
	}
	now := time.Now()
	sweep := func(after time.Duration, owned string, want int) {
		t.Helper()
		removed, err := s.Sweep(t.Context(), func(uid string) (string, error) {
			return archivetest.Existing(owned).OwnerOf(t.Context(), uid)
		}, 24*time.Hour, now.Add(after))
		if err != nil || removed != want {
			t.Errorf("after %s the sweep removed %d, %v, want %d", after, removed, err, want)
		}
	}
	sweep(0, "owned", 0)
	sweep(23*time.Hour, "owned found", 0)
	sweep(25*time.Hour, "owned", 1)
	for uid, want := range map[string]string{"owned": "0-0 of 1", "found": "0-0 of 1",
		"orphan": store.ErrNothing.Error()} {
		if got := archivetest.IDs(t, s, uid, 0); got != want {
			t.Errorf("the events of %s are %s, want %s", uid, got, want)
		}
	}
	sweep(48*time.Hour, "owned", 0)
	sweep(50*time.Hour, "owned", 1)
}

// A read of the last events of a large segment skips the earlier events. The read must find the
// last events even after the segment was replaced.
func TestTheLastEventsOfARewrittenSegmentAreFound(t *testing.T) {
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	archivetest.Append(t, s, "u", 0, 2000, 2000)
	for range 2 {
		for from, want := range map[int]string{0: "0-1999 of 2000", 1: "1-1999 of 1999", 255: "255-1999 of 1745",
			256: "256-1999 of 1744", 1999: "1999-1999 of 1", 2000: "none"} {
			if got := archivetest.IDs(t, s, "u", from); got != want {
				t.Errorf("events from %d are %s, want %s", from, got, want)
			}
		}
	}
	file := filepath.Join(archivetest.Dir(address), "u", "events", fmt.Sprintf("%012d", 0))
	for _, text := range []string{strings.ReplaceAll(string(archivetest.Lines(0, 2000)), "xxx", "longer"),
		string(archivetest.Lines(0, 10))} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		count := strings.Count(text, "\n")
		if got, want := archivetest.IDs(t, s, "u", count-1), fmt.Sprintf("%d-%d of 1", count-1, count-1); got != want {
			t.Errorf("of %d events the last are %s", count, got)
		}
		if position, err := s.Position(t.Context(), "u"); err != nil || position.Next != count {
			t.Errorf("of %d events the position is %+v, %v", count, position, err)
		}
	}
}

func TestTheStoreDirectoryMustBeAbsolute(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"file://.local/archive", "file://archive", "file:", "file:archive"} {
		if _, err := store.Open(t.Context(), address, 0); err == nil {
			t.Errorf("%s is accepted as a directory", address)
		}
	}
}

func TestInvalidStoreAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "gs://bucket", "azblob://bucket", "s3://bucket?regoin=x",
		"s3://bucket?use_path_style=perhaps"} {
		if _, err := store.Open(t.Context(), address, 0); err == nil {
			t.Errorf("%q is opened", address)
		}
	}
}
