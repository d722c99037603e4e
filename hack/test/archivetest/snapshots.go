package archivetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/store"
)

// snapshotID returns a valid snapshot ID, which begins with the number of the attempt.
func snapshotID(attempt, name string) string { return attempt + "-" + strings.Repeat(name, 16) }

// upload uploads chunks of a snapshot for the Conversation u.
func (s Store) upload(t testing.TB, attempt int, id string, chunks ...string) session.Snapshot {
	t.Helper()
	uploaded := session.Snapshot{ID: id, Chunks: len(chunks)}
	for index, chunk := range chunks {
		if err := s.PutChunk(t.Context(), "u", attempt, id, index, []byte(chunk)); err != nil {
			t.Fatal(err)
		}
		uploaded.Size += int64(len(chunk))
	}
	return uploaded
}

// commit makes the snapshot the current snapshot of the Conversation u.
func (s Store) commit(t testing.TB, attempt int, replaces string, next session.Snapshot) error {
	t.Helper()
	text, err := json.Marshal(next)
	if err != nil {
		t.Fatal(err)
	}
	return s.CommitSnapshot(t.Context(), "u", attempt, replaces, text)
}

// snapshotText returns the joined chunks of the current snapshot of u, or the text of the error.
func (s Store) snapshotText(t testing.TB) string {
	t.Helper()
	found, err := s.Snapshot(t.Context(), "u")
	if err != nil {
		return err.Error()
	}
	var text bytes.Buffer
	for index := range found.Chunks {
		chunk, _, err := s.Chunk(t.Context(), "u", found.ID, index)
		if err != nil {
			return err.Error()
		}
		_, err = io.Copy(&text, chunk)
		if err := errors.Join(err, chunk.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

func wantsSnapshot(t testing.TB, s Store, want string) {
	t.Helper()
	if got := s.snapshotText(t); got != want {
		t.Errorf("the snapshot is %q, want %q", got, want)
	}
}

func wantsError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestSnapshots checks that the commit of a new snapshot must name the stored snapshot that it
// replaces. It also checks that stale attempts and invalid IDs are refused.
func TestSnapshots(t *testing.T, address string) {
	t.Helper()
	one, other := Open(t, address), Open(t, address)
	wantsSnapshot(t, one, store.ErrNothing.Error())
	first, second := snapshotID("1", "A"), snapshotID("1", "B")
	uploaded := one.upload(t, 1, first, "a", "b")
	wantsSnapshot(t, other, store.ErrNothing.Error())
	wantsError(t, "the first", one.commit(t, 1, "", uploaded), nil)
	wantsError(t, "a retry", other.commit(t, 1, "", uploaded), nil)
	wantsSnapshot(t, other, "ab")

	next := other.upload(t, 1, second, "c")
	wantsSnapshot(t, one, "ab")
	wantsError(t, "a snapshot that does not replace the current one", one.commit(t, 1, "", next), store.ErrOtherSnapshot)
	wantsSnapshot(t, one, "ab")
	short := next
	short.Chunks, short.Size = 2, 2
	wantsError(t, "an incomplete snapshot", one.commit(t, 1, first, short), store.ErrNoSnapshot)
	wantsError(t, "the second", one.commit(t, 1, first, next), nil)
	wantsSnapshot(t, other, "c")
	if _, _, err := one.Chunk(t.Context(), "u", first, 0); !errors.Is(err, store.ErrNothing) {
		t.Errorf("reading a chunk of the replaced snapshot returns the error %v, want ErrNothing", err)
	}

	third := snapshotID("2", "C")
	later := other.upload(t, 2, third, "d")
	wantsError(t, "a chunk of a stale attempt", one.PutChunk(t.Context(), "u", 1, snapshotID("1", "D"), 0, nil),
		store.ErrSuperseded)
	wantsError(t, "a chunk with the ID of another attempt",
		one.PutChunk(t.Context(), "u", 2, snapshotID("1", "D"), 0, nil), store.ErrNoSnapshot)
	wantsError(t, "a stale attempt", one.commit(t, 1, second, next), store.ErrSuperseded)
	wantsError(t, "the later attempt", one.commit(t, 2, second, later), nil)
	wantsSnapshot(t, one, "d")
	for _, id := range []string{"", "2", "2-", "../../x", "2-../" + strings.Repeat("A", 16), snapshotID("02", "A"),
		snapshotID("2", "a")} {
		wantsError(t, "a chunk of "+id, one.PutChunk(t.Context(), "u", 2, id, 0, nil), store.ErrNoSnapshot)
		_, _, err := one.Chunk(t.Context(), "u", id, 0)
		wantsError(t, "reading "+id, err, store.ErrNoSnapshot)
	}
	wantsError(t, "too many chunks", one.PutChunk(t.Context(), "u", 2, third, 40, nil), store.ErrNoSnapshot)
	if err := one.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	wantsSnapshot(t, other, store.ErrNothing.Error())
}

// TestInterruptedUploads checks that the next snapshot or the second sweep deletes the chunks of an
// interrupted upload.
func TestInterruptedUploads(t *testing.T, address string) {
	t.Helper()
	s := Open(t, address)
	left, first, second := snapshotID("1", "L"), snapshotID("1", "A"), snapshotID("2", "B")
	has := func(id string) bool {
		chunk, _, err := s.Chunk(t.Context(), "u", id, 0)
		if err == nil {
			_ = chunk.Close()
		}
		return err == nil
	}
	s.upload(t, 1, left, "lost")
	uploaded := s.upload(t, 1, first, "a")
	wantsError(t, "the snapshot", s.commit(t, 1, "", uploaded), nil)
	if has(left) {
		t.Error("the next snapshot left the chunks of the interrupted one")
	}
	s.upload(t, 2, second, "lost")
	for sweep, want := range []bool{true, false} {
		if _, err := s.Sweep(t.Context(), func(string) (string, error) { return "ada", nil }, time.Hour,
			time.Now()); err != nil {
			t.Fatal(err)
		}
		if has(second) != want {
			t.Errorf("after sweep %d the chunks of the interrupted upload exist: %t", sweep+1, !want)
		}
	}
	wantsSnapshot(t, s, "a")
}

// TestSnapshotQuota checks that snapshots count against the quota, before and after a restart.
func TestSnapshotQuota(t *testing.T, address string) {
	t.Helper()
	for _, restart := range []bool{false, true} {
		s := OpenLimited(t, address, 10)
		if restart {
			if _, err := s.Sweep(t.Context(), func(string) (string, error) { return "ada", nil }, time.Hour,
				time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		s.SetOwner("u", "ada")
		s.SetOwner("v", "ada")
		if !restart {
			uploaded := s.upload(t, 1, snapshotID("1", "A"), "12345678")
			wantsError(t, "the snapshot", s.commit(t, 1, "", uploaded), nil)
		}
		wantsError(t, "a chunk above the quota", s.PutChunk(t.Context(), "v", 1, snapshotID("1", "A"), 0, []byte("123")),
			store.ErrOwnerFull)
		wantsError(t, "a chunk within the quota", s.PutChunk(t.Context(), "v", 1, snapshotID("1", "A"), 0, []byte("12")), nil)
		if err := s.Delete(t.Context(), "v"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnrestoredEnding checks the ending of an attempt that could not restore the files of earlier
// attempts. Such an ending replaces the archived changes only if it contains changes and the
// archive has no snapshot. The archived usage must never decrease.
func TestUnrestoredEnding(t *testing.T, address string) {
	t.Helper()
	s := Open(t, address)
	for _, step := range []struct{ ending, patch, cost string }{
		{`{"changes":[],"unrestored":true,"calls":1,"cost":"1"}`, "", "1"},
		{`{"changes":[{"status":"M","path":"f"}],"patch":"<f>","repository":true,"calls":2,"cost":"2"}`, "<f>", "2"},
		{`{"changes":[],"unrestored":true,"calls":3,"cost":"3"}`, "<f>", "3"},
		{`{"changes":[],"patch":"omitted","unrestored":true}`, "<f>", "3"}, // the attempt ended before it read the usage
		{`{"changes":[{"status":"M","path":"g"}],"patch":"g","unrestored":true,"calls":4,"cost":"4"}`, "g", "4"},
		{"snapshot", "g", "4"},
		{`{"changes":[{"status":"M","path":"h"}],"patch":"h","unrestored":true,"calls":5,"cost":"5"}`, "g", "5"},
		{`{"changes":[],"repository":true,"calls":6,"cost":"6"}`, "", "6"},
		{`{"changes":[]}`, "", "6"},
	} {
		if step.ending == "snapshot" {
			if err := s.commit(t, 1, "", s.upload(t, 1, snapshotID("1", "A"), "chunk")); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := s.End(t.Context(), "u", 1, []byte(step.ending)); err != nil {
			t.Fatal(err)
		}
		ending, err := s.Ending(t.Context(), "u")
		if err != nil || ending.Patch != step.patch || ending.Cost != step.cost ||
			len(ending.Changes) != min(1, len(step.patch)) {
			t.Errorf("after %s the ending is %+v, %v", step.ending, ending, err)
		}
	}
}
