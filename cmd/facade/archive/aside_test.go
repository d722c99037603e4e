package archive_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/archive"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// anew are lines of a journal that has other events under the same ids.
func anew(from, to int) []byte {
	return []byte(strings.ReplaceAll(string(lines(from, to)), "xxx", "yyy"))
}

// nameOf the last of some lines.
func nameOf(text []byte) string {
	all := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	return session.JournalName([]byte(all[len(all)-1]))
}

func earlier(t *testing.T, store archive.Reader, number int) string {
	t.Helper()
	return earlierFrom(t, store, number, 0)
}

func earlierFrom(t *testing.T, store archive.Reader, number, from int) string {
	t.Helper()
	var text strings.Builder
	err := store.Earlier(t.Context(), "u", number, from, func(_ int, event json.RawMessage) bool {
		text.Write(append(event, '\n'))
		return true
	})
	if err != nil {
		return err.Error()
	}
	return text.String()
}

func testAside(t *testing.T, address string) {
	store := open(t, address)
	appendTo(t, store, "u", 0, 3, 3)
	appendTo(t, store, "u", 3, 5, 5)
	fresh := session.JournalName([]byte(strings.TrimSuffix(string(anew(0, 1)), "\n")))
	if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: fresh, Lines: anew(0, 2)}); !errors.Is(err,
		archive.ErrOtherJournal) {
		t.Errorf("another journal: %v", err)
	}
	if err := store.Aside(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if position, err := store.Position(t.Context(), "u"); err != nil || position != (session.ArchivePosition{}) {
		t.Errorf("the position is %+v, %v", position, err)
	}
	position, err := store.Append(t.Context(), "u", archive.Segment{Journal: fresh, Lines: anew(0, 2)})
	if want := (session.ArchivePosition{Next: 2, Journal: fresh, Last: nameOf(anew(1, 2))}); err != nil ||
		position != want {
		t.Errorf("the position is %+v, %v, want %+v", position, err, want)
	}
	if err := store.Aside(t.Context(), "none"); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	remoteAddress, key := served(t, store, "u")
	for _, reader := range []archive.Reader{store, open(t, address), archive.NewRemote(remoteAddress,
		signed(key, session.AudienceArchive))} {
		if got := earlier(t, reader, 1); got != string(lines(0, 5)) {
			t.Errorf("put aside is %s", got)
		}
		if got := earlierFrom(t, reader, 1, 3); got != string(lines(3, 5)) {
			t.Errorf("put aside from the third on is %s", got)
		}
		if got := earlier(t, reader, 2); got != archive.ErrNothing.Error() {
			t.Errorf("before that there is %s", got)
		}
		if got := ids(t, reader, "u", 0); got != "0-1 of 2" {
			t.Errorf("there are %s", got)
		}
	}
	if err := store.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if got := earlier(t, store, 1); got != archive.ErrNothing.Error() {
		t.Errorf("deleted, there is %s", got)
	}
}

func TestAJournalThatIsPutAsideIsKept(t *testing.T) { testAside(t, inDirectory(t)) }

// A segment whose event before is another than what is kept would mix two journals.
func TestTwoJournalsThatBeganAlikeAreNotMixed(t *testing.T) {
	store := open(t, inDirectory(t))
	appendTo(t, store, "u", 0, 3, 3)
	for _, c := range []struct { // the one that is taken is the last
		previous []byte
		want     error
	}{{anew(2, 3), archive.ErrOtherJournal}, {lines(2, 3), nil}} {
		_, err := store.Append(t.Context(), "u", archive.Segment{Journal: name, Previous: nameOf(c.previous), From: 3,
			Lines: lines(3, 4)})
		if !errors.Is(err, c.want) {
			t.Errorf("after %s: %v, want %v", c.previous, err, c.want)
		}
	}
}

// A machine that fails while a segment is written may leave one that is empty or torn, of which
// nobody was told.
func TestASegmentThatWasCutOffIsWrittenAgain(t *testing.T) {
	for cut, text := range map[string]string{"before its first line": "", "in its first line": `{"id":3,"mess`,
		"in its second line": string(lines(3, 4)) + `{"id":4,"mess`, "in a long line": string(lines(3, 4)) + `{"id":4,"mess` +
			strings.Repeat("x", 200<<10)} {
		address := inDirectory(t)
		store := open(t, address)
		appendTo(t, store, "u", 0, 3, 3)
		file := filepath.Join(strings.TrimPrefix(address, "file://"), "u", "events", fmt.Sprintf("%012d", 3))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, fresh := range []*archive.Store{store, open(t, address)} {
			position, err := fresh.Position(t.Context(), "u")
			if err != nil {
				t.Fatal(err)
			}
			appendTo(t, fresh, "u", position.Next, position.Next+2, position.Next+2)
			if got, want := ids(t, open(t, address), "u", 0), fmt.Sprintf("0-%d of %d", position.Next+1,
				position.Next+2); got != want {
				t.Errorf("cut off %s there are %s, want %s", cut, got, want)
			}
		}
	}
}

// What is being written when the process dies is never taken for something.
func TestWhatWasNotWrittenToItsEndIsNotThere(t *testing.T) {
	address := inDirectory(t)
	store := open(t, address)
	appendTo(t, store, "u", 0, 3, 3)
	dir := filepath.Join(strings.TrimPrefix(address, "file://"), "u")
	if err := os.Mkdir(filepath.Join(dir, "earlier"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"events/000000000003.X.tmp", "earlier/x-000000000003.X.tmp", "ending.json.X.tmp"} {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(file)), lines(3, 4), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := ids(t, store, "u", 0); got != "0-2 of 3" {
		t.Errorf("there are %s", got)
	}
	if got := earlier(t, store, 1); got != archive.ErrNothing.Error() {
		t.Errorf("put aside is %s", got)
	}
	// The process that comes next makes room.
	other := filepath.Join(filepath.Dir(dir), "lost+found", "other.tmp")
	if err := errors.Join(os.Mkdir(filepath.Dir(other), 0o700), os.WriteFile(other, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, open(t, address), "u", 0); got != "0-2 of 3" {
		t.Errorf("opened again, there are %s", got)
	}
	testenv.Await(t, func() error {
		for _, pattern := range []string{"/*.tmp", "/*/*.tmp"} {
			if left, err := filepath.Glob(dir + pattern); err != nil || len(left) != 0 {
				return fmt.Errorf("there are still %q, %w", left, err)
			}
		}
		return nil
	})
	if _, err := os.Stat(other); err != nil {
		t.Errorf("what is not the archive's is gone: %v", err)
	}
	if err := store.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("deleted, the directory is there: %v", err)
	}
}
