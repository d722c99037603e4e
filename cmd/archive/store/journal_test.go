package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/hack/test/archivetest"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestAnEarlierJournalIsStoredBesideTheNextOne(t *testing.T) {
	archivetest.TestEarlierJournalIsKept(t, archivetest.InDirectory(t))
}

// A batch continues the stored journal only if the event before the batch equals the last stored
// event.
func TestJournalsThatBeginWithTheSameEventsAreNotMixed(t *testing.T) {
	s := archivetest.Open(t, archivetest.InDirectory(t))
	archivetest.Append(t, s, "u", 0, 3, 3)
	for _, c := range []struct { // only the last batch is accepted
		previous []byte
		want     error
	}{{archivetest.OtherLines(2, 3), store.ErrOtherJournal}, {archivetest.Lines(2, 3), nil}} {
		_, err := s.Append(t.Context(), "u", 0, store.Batch{Journal: archivetest.Journal,
			Previous: archivetest.NameOf(c.previous), From: 3,
			Lines: archivetest.Lines(3, 4)})
		if !errors.Is(err, c.want) {
			t.Errorf("after %s: %v, want %v", c.previous, err, c.want)
		}
	}
}

// A crash during a write may leave an empty or incomplete segment. The archive had not confirmed
// the segment's events, so the session sends them again, and the archive rewrites the segment.
func TestATornSegmentIsRewritten(t *testing.T) {
	for cut, text := range map[string]string{"before its first line": "", "in its first line": `{"id":3,"mess`,
		"in its second line": string(archivetest.Lines(3, 4)) + `{"id":4,"mess`,
		"in a long line": string(archivetest.Lines(3, 4)) + `{"id":4,"mess` +
			strings.Repeat("x", 200<<10)} {
		address := archivetest.InDirectory(t)
		s := archivetest.Open(t, address)
		archivetest.Append(t, s, "u", 0, 3, 3)
		file := filepath.Join(archivetest.Dir(address), "u", "events", fmt.Sprintf("%012d", 3))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, fresh := range []archivetest.Store{s, archivetest.Open(t, address)} {
			position, err := fresh.Position(t.Context(), "u")
			if err != nil {
				t.Fatal(err)
			}
			archivetest.Append(t, fresh, "u", position.Next, position.Next+2, position.Next+2)
			want := fmt.Sprintf("0-%d of %d", position.Next+1, position.Next+2)
			if got := archivetest.IDs(t, archivetest.Open(t, address), "u", 0); got != want {
				t.Errorf("cut off %s: the events are %s, want %s", cut, got, want)
			}
		}
	}
}

func TestInterruptedWritesAreInvisible(t *testing.T) {
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	archivetest.Append(t, s, "u", 0, 3, 3)
	dir := filepath.Join(archivetest.Dir(address), "u")
	if err := os.Mkdir(filepath.Join(dir, "earlier"), 0o700); err != nil {
		t.Fatal(err)
	}
	unfinished := []string{"events/000000000003.X.tmp", "earlier/x-000000000003.X.tmp", "ending.json.X.tmp"}
	for _, file := range unfinished {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(file)), archivetest.Lines(3, 4), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := archivetest.IDs(t, s, "u", 0); got != "0-2 of 3" {
		t.Errorf("the events are %s", got)
	}
	if got := archivetest.EarlierLines(t, s, 1, 0); got != store.ErrNothing.Error() {
		t.Errorf("the earlier journal is %s", got)
	}
	// A new process deletes the temporary files of the archive, but no other files.
	other := filepath.Join(filepath.Dir(dir), "lost+found", "other.tmp")
	if err := errors.Join(os.Mkdir(filepath.Dir(other), 0o700), os.WriteFile(other, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	// Make the temporary files older than an hour. The archive keeps newer temporary files.
	for _, file := range unfinished {
		long := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, filepath.FromSlash(file)), long, long); err != nil {
			t.Fatal(err)
		}
	}
	if got := archivetest.IDs(t, archivetest.Open(t, address), "u", 0); got != "0-2 of 3" {
		t.Errorf("after a restart the events are %s", got)
	}
	testenv.Await(t, func() error {
		for _, pattern := range []string{"/*.tmp", "/*/*.tmp"} {
			if left, err := filepath.Glob(dir + pattern); err != nil || len(left) != 0 {
				return fmt.Errorf("temporary files are left: %q, %w", left, err)
			}
		}
		return nil
	})
	if _, err := os.Stat(other); err != nil {
		t.Errorf("a foreign file was deleted: %v", err)
	}
	if err := s.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory still exists after the deletion: %v", err)
	}
}
