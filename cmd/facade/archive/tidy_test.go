package archive_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/archive"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// segmentsOf a conversation, on the disk.
func segmentsOf(t *testing.T, address, uid string) int {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(strings.TrimPrefix(address, "file://"), uid, "events"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return len(all)
}

// inSegments appends 12 events in four segments.
func inSegments(t *testing.T, store *archive.Store, uid string) {
	t.Helper()
	for from := 0; from < 12; from += 3 {
		appendTo(t, store, uid, from, from+3, from+3)
	}
}

// held is a store whose compacting waits before it writes, until it may go on or is to end.
type held struct {
	goOn chan struct{}

	mu        sync.Mutex
	now, most int
}

func (h *held) fault(ctx context.Context, step, key string) error {
	if step != "write" || !strings.HasSuffix(key, "/events/000000000000") {
		return nil
	}
	count := func(by int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.now += by
		h.most = max(h.most, h.now)
	}
	count(1)
	defer count(-1)
	select {
	case <-h.goOn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *held) await(t *testing.T, want int) {
	t.Helper()
	testenv.Await(t, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.now != want {
			return fmt.Errorf("%d are under way", h.now)
		}
		return nil
	})
}

func TestASessionDoesNotWaitForCompacting(t *testing.T) {
	t.Parallel()
	address := inDirectory(t)
	store := open(t, address)
	inSegments(t, store, "u")
	holding := &held{goOn: make(chan struct{})}
	store.Fault(holding.fault)
	remote, key := served(t, store, "u")
	if got := post(t, remote, key, "u", session.ArchiveEnd+"?attempt=1", `{"patch":"diff"}`); got != http.StatusOK {
		t.Fatalf("its end is answered %d", got)
	}
	holding.await(t, 1)
	// Nor does the next attempt.
	if got := post(t, remote, key, "u", session.ArchiveEvents+"?attempt=2&from=12&journal="+name,
		string(lines(12, 15))); got != http.StatusOK {
		t.Errorf("what comes then is answered %d", got)
	}
	if position, err := store.Position(t.Context(), "u"); err != nil || position.Next != 15 {
		t.Errorf("the position is %+v, %v", position, err)
	}
	close(holding.goOn)
	store.Tidied()
	if got := segmentsOf(t, address, "u"); got != 2 {
		t.Errorf("there are %d segments, want one of those before and one that came since", got)
	}
	for _, store := range []*archive.Store{store, open(t, address)} {
		if got := ids(t, store, "u", 0); got != "0-14 of 15" {
			t.Errorf("there are %s", got)
		}
	}
}

func TestFewAreCompactedAtOnceAndNoneAfterTheEnd(t *testing.T) {
	t.Parallel()
	address := inDirectory(t)
	store := open(t, address)
	all := []string{"a", "b", "c", "d", "e"}
	for _, uid := range all {
		inSegments(t, store, uid)
	}
	holding := &held{goOn: make(chan struct{})}
	store.Fault(holding.fault)
	for _, uid := range all {
		if err := store.End(t.Context(), uid, 0, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	holding.await(t, 2)
	// What is deleted does not come back, and is not waited for.
	for _, uid := range all[:3] {
		if err := store.Delete(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(strings.TrimPrefix(address, "file://"), uid)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("of %s there is still something: %v", uid, err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if holding.now != 0 || holding.most != 2 {
		t.Errorf("%d are under way, and %d were at once", holding.now, holding.most)
	}
	for _, uid := range all[3:] {
		if got := ids(t, open(t, address), uid, 0); got != "0-11 of 12" {
			t.Errorf("of %s there are %s", uid, got)
		}
	}
}

// Wherever it is killed, each event is there once, and counts once to what may be kept of a
// conversation.
func TestWhatWasCutOffWhileItWasCompactedCountsOnce(t *testing.T) {
	t.Parallel()
	size := int64(len(lines(0, 15)))
	for last, cut := false, 1; !last; cut++ {
		address := inDirectory(t)
		store := open(t, address)
		inSegments(t, store, "u")
		done := 0
		store.Fault(func(context.Context, string, string) error {
			if done++; done > cut {
				return errors.New("killed")
			}
			return nil
		})
		if err := store.End(t.Context(), "u", 0, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		store.Tidied()
		last = done <= cut
		if got := segmentsOf(t, address, "u"); last != (got == 1) {
			t.Errorf("cut off after %d steps there are %d segments", cut, got)
		}
		again := open(t, address)
		again.Most(size)
		if got := ids(t, again, "u", 0); got != "0-11 of 12" {
			t.Errorf("cut off after %d steps there are %s", cut, got)
		}
		position, err := again.Append(t.Context(), "u", archive.Segment{Journal: name, Previous: nameOf(lines(11, 12)),
			From: 12, Lines: lines(12, 15)})
		if err != nil || position.Next != 15 {
			t.Errorf("cut off after %d steps the next is %d, %v", cut, position.Next, err)
		}
		if _, err := again.Append(t.Context(), "u", archive.Segment{Journal: name, From: 15, Lines: lines(15,
			16)}); !errors.Is(err, archive.ErrFull) {
			t.Errorf("cut off after %d steps more than may be kept is taken: %v", cut, err)
		}
		if err := again.End(t.Context(), "u", 0, []byte("{}")); err != nil { // and it can be done again
			t.Fatal(err)
		}
		again.Tidied()
		if got, left := ids(t, open(t, address), "u", 0), segmentsOf(t, address, "u"); got != "0-14 of 15" || left != 1 {
			t.Errorf("cut off after %d steps and compacted again there are %s in %d segments", cut, got, left)
		}
	}
}

// What is left then is nothing that would be worth to write all anew.
func TestWhatWasCutOffWhileItWasCompactedIsRemovedLater(t *testing.T) {
	t.Parallel()
	address := inDirectory(t)
	store := open(t, address)
	journal := ""
	for id := range 4 {
		large := fmt.Sprintf(`{"id":%d,"message":"%s"}`, id, strings.Repeat("x", 1<<20))
		if id == 0 {
			journal = session.JournalName([]byte(large))
		}
		if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: journal, From: id,
			Lines: []byte(large + "\n")}); err != nil {
			t.Fatal(err)
		}
	}
	store.Fault(func(_ context.Context, step, key string) error {
		if step == "remove" && strings.HasSuffix(key, "3") {
			return errors.New("killed")
		}
		return nil
	})
	if err := store.End(t.Context(), "u", 0, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	store.Tidied()
	if got := segmentsOf(t, address, "u"); got != 2 {
		t.Fatalf("cut off there are %d segments", got)
	}
	again := open(t, address)
	if _, err := again.Append(t.Context(), "u", archive.Segment{Journal: journal, From: 4,
		Lines: lines(4, 5)}); err != nil {
		t.Fatal(err)
	}
	if err := again.End(t.Context(), "u", 0, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	again.Tidied()
	if got, left := ids(t, open(t, address), "u", 0), segmentsOf(t, address, "u"); got != "0-4 of 5" || left != 2 {
		t.Errorf("there are %s in %d segments, want what came since in one of its own", got, left)
	}
}

// Another attempt may begin a journal anew while the one before is compacted, in this process or
// through another that has the same bucket. What it keeps must stay.
func TestAJournalThatBeginsAnewIsNotOverwrittenByCompacting(t *testing.T) {
	t.Parallel()
	for name, sameProcess := range map[string]bool{"in this process": true, "in another": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := inDirectory(t)
			store := open(t, address)
			inSegments(t, store, "u")
			next := store
			if !sameProcess {
				next = open(t, address)
			}
			store.Fault(func(_ context.Context, step, _ string) error {
				if step == "commit" {
					beginAnew(t, next)
				}
				return nil
			})
			if err := store.End(t.Context(), "u", 0, []byte("{}")); err != nil {
				t.Fatal(err)
			}
			store.Tidied()
			for _, store := range []*archive.Store{next, open(t, address)} {
				if got := ids(t, store, "u", 0); got != "0-4 of 5" {
					t.Errorf("there are %s", got)
				}
				if got := earlier(t, store, 1); got != string(lines(0, 12)) {
					t.Errorf("of the journal before there is %q", got)
				}
			}
		})
	}
}

// beginAnew puts a journal aside and keeps five events of another.
func beginAnew(t *testing.T, store *archive.Store) {
	t.Helper()
	if err := store.Aside(t.Context(), "u"); err != nil {
		t.Error(err)
	}
	if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: nameOf(anew(0, 1)),
		Lines: anew(0, 5)}); err != nil {
		t.Error(err)
	}
}

// Whoever asks about a conversation waits while what was compacted takes its place. By then the
// slow part is over.
func TestWhatIsCompactedIsWrittenBeforeAnybodyWaits(t *testing.T) {
	t.Parallel()
	address := inDirectory(t)
	store := open(t, address)
	inSegments(t, store, "u")
	written := ""
	store.Fault(func(_ context.Context, step, key string) error {
		if step != "commit" {
			return nil
		}
		asides, err := filepath.Glob(filepath.Join(strings.TrimPrefix(address, "file://"), key) + ".*.tmp")
		if err != nil || len(asides) != 1 {
			t.Errorf("it is written to %q, %v", asides, err)
			return nil
		}
		text, err := os.ReadFile(asides[0])
		written = string(text)
		return err
	})
	if err := store.End(t.Context(), "u", 0, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	store.Tidied()
	if written != string(lines(0, 12)) {
		t.Errorf("%d bytes of %d are written", len(written), len(lines(0, 12)))
	}
	if got := segmentsOf(t, address, "u"); got != 1 {
		t.Errorf("there are %d segments", got)
	}
}

// A session may end as often as it likes. What it says in between is all that it may make the
// archive write anew.
func TestManyEndsRewriteLittle(t *testing.T) {
	t.Parallel()
	store := open(t, inDirectory(t))
	const size, ends = 8 << 20, 24
	large := fmt.Sprintf(`{"id":0,"message":"%s"}`, strings.Repeat("x", size))
	journal := session.JournalName([]byte(large))
	if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: journal,
		Lines: []byte(large + "\n")}); err != nil {
		t.Fatal(err)
	}
	rewritten := 0
	store.Fault(func(_ context.Context, step, _ string) error {
		if step == "commit" {
			rewritten++
		}
		return nil
	})
	for id := 1; id <= ends; id++ {
		if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: journal, From: id, Lines: lines(id,
			id+1)}); err != nil {
			t.Fatal(err)
		}
		if err := store.End(t.Context(), "u", 0, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		store.Tidied()
	}
	if rewritten == 0 || rewritten > ends/8 {
		t.Errorf("%d ends rewrite %d MiB %d times", ends, size>>20, rewritten)
	}
	if got := ids(t, store, "u", 0); got != "0-24 of 25" {
		t.Errorf("there are %s", got)
	}
}
