package archivetest

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
)

// TestSegments checks that each event is stored one time and in order, even if two processes write.
func TestSegments(t *testing.T, address string) {
	t.Helper()
	one, other := Open(t, address), Open(t, address) // two processes share the store
	if got := IDs(t, one, "u", 0); got != store.ErrNothing.Error() {
		t.Errorf("an empty archive holds %s", got)
	}
	Append(t, one, "u", 0, 3, 3)
	Append(t, other, "u", 3, 5, 5)
	Append(t, one, "u", 3, 5, 5)  // a retry after a lost response
	Append(t, one, "u", 9, 11, 5) // a gap
	Append(t, one, "u", 0, 3, 5)  // a repeat from the start
	Append(t, one, "u", 5, 8, 8)
	Append(t, other, "v", 0, 1, 1)
	for _, s := range []Store{one, other, Open(t, address)} {
		if got := IDs(t, s, "u", 0); got != "0-7 of 8" {
			t.Errorf("the archive holds %s", got)
		}
		if got := IDs(t, s, "u", 4); got != "4-7 of 4" {
			t.Errorf("the archive's events from ID 4 onwards are %s", got)
		}
		if position, err := s.Position(t.Context(), "u"); err != nil || position.Next != 8 || position.Journal != Journal {
			t.Errorf("the position is %+v, %v", position, err)
		}
	}
	if _, err := one.Append(t.Context(), "u", 0, store.Batch{Journal: "another", From: 8,
		Lines: Lines(8, 9)}); !errors.Is(err, store.ErrOtherJournal) {
		t.Errorf("another journal: %v", err)
	}
	if err := other.End(t.Context(), "u", 0, []byte(`{"patch":"diff","repository":true}`)); err != nil {
		t.Fatal(err)
	}
	if got := IDs(t, one, "u", 0); got != "0-7 of 8" {
		t.Errorf("after the session's ending is stored, the archive's events are %s", got)
	}
	Append(t, one, "u", 8, 10, 10)
	Append(t, other, "u", 10, 3000, 3000) // more than fits into one segment
	Append(t, one, "u", 3000, 3002, 3002)
	if got := IDs(t, Open(t, address), "u", 7); got != "7-3001 of 2995" {
		t.Errorf("the archive's events from ID 7 onwards are %s", got)
	}
	if ending, err := one.Ending(t.Context(), "u"); err != nil || ending.Patch != "diff" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
	if _, err := one.Ending(t.Context(), "v"); !errors.Is(err, archiveclient.ErrNothing) {
		t.Errorf("the ending of a session that has not ended: %v", err)
	}
	if err := one.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if got := IDs(t, other, "u", 0); got != store.ErrNothing.Error() {
		t.Errorf("after deletion the archive holds %s", got)
	}
	if got := IDs(t, other, "v", 0); got != "0-0 of 1" {
		t.Errorf("the archive of the other session holds %s", got)
	}
}

// TestEarlierJournalIsKept checks that a session can store a new journal after a call of
// StartJournal, and that both journals stay readable.
func TestEarlierJournalIsKept(t *testing.T, address string) {
	t.Helper()
	s := Open(t, address)
	Append(t, s, "u", 0, 3, 3)
	Append(t, s, "u", 3, 5, 5)
	batch := store.Batch{Journal: NameOf(OtherLines(0, 1)), Lines: OtherLines(0, 2)}
	if _, err := s.Append(t.Context(), "u", 0, batch); !errors.Is(err, store.ErrOtherJournal) {
		t.Errorf("another journal: %v", err)
	}
	for range 2 { // the second is a retry after a lost response
		if err := s.StartJournal(t.Context(), "u", 0); err != nil {
			t.Fatal(err)
		}
	}
	if position, err := s.Position(t.Context(), "u"); err != nil || position != (session.ArchivePosition{}) {
		t.Errorf("the position is %+v, %v", position, err)
	}
	position, err := s.Append(t.Context(), "u", 0, batch)
	if want := (session.ArchivePosition{Next: 2, Journal: batch.Journal, Last: NameOf(OtherLines(1, 2))}); err != nil ||
		position != want {
		t.Errorf("the position is %+v, %v, want %+v", position, err, want)
	}
	if err := s.StartJournal(t.Context(), "none", 0); err != nil {
		t.Errorf("closing a missing journal: %v", err)
	}
	remote, key := Serve(t, s, "u")
	for _, reader := range []archiveclient.Reader{s, Open(t, address),
		archiveclient.New(remote, "", Signer(key, session.AudienceArchive))} {
		for from, want := range map[int]string{0: string(Lines(0, 5)), 3: string(Lines(3, 5))} {
			if got := EarlierLines(t, reader, 1, from); got != want {
				t.Errorf("the closed journal's events from ID %d onwards are %s", from, got)
			}
		}
		if got := EarlierLines(t, reader, 2, 0); got != archiveclient.ErrNothing.Error() {
			t.Errorf("the archive holds a journal older than the closed one: %s", got)
		}
		if got := IDs(t, reader, "u", 0); got != "0-1 of 2" {
			t.Errorf("the archive holds %s", got)
		}
	}
	if err := s.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if got := EarlierLines(t, s, 1, 0); got != store.ErrNothing.Error() {
		t.Errorf("after deletion the archive holds %s", got)
	}
}

// TestQuota checks that a user cannot exceed the quota, and that one user's full quota does not
// affect other users.
func TestQuota(t *testing.T, at string) {
	t.Helper()
	const existing = Existing("ada-1 ada-2 bob-1")
	most := int64(len(Lines(0, 9)))
	address, key := Serve(t, OpenLimited(t, at, most), existing)
	answers := func(uid string, from, to, want int) {
		t.Helper()
		if got := HandOver(t, address, key, uid, from, to); got != want {
			t.Errorf("sending the events %[2]d to %[3]d of %[1]s gets the status %[4]d, want %[5]d", uid, from, to, got, want)
		}
	}
	answers("ada-1", 0, 5, http.StatusOK)
	answers("ada-1", 0, 5, http.StatusOK) // a retry after a lost response is stored once
	answers("ada-2", 0, 4, http.StatusOK)
	answers("ada-1", 5, 6, http.StatusRequestEntityTooLarge)
	answers("ada-2", 4, 5, http.StatusRequestEntityTooLarge)
	answers("bob-1", 0, 9, http.StatusOK)

	// An ending contains the cost, so a small ending is stored even if the quota is full. A large
	// ending is refused.
	if got := Post(t, address, key, "ada-1", session.ArchiveEnd, `{"cost":"1.5"}`); got != http.StatusOK {
		t.Errorf("storing a small end record returns the status %d", got)
	}
	large := `{"patch":"` + strings.Repeat("x", 100<<10) + `"}`
	if got := Post(t, address, key, "ada-1", session.ArchiveEnd, large); got != http.StatusRequestEntityTooLarge {
		t.Errorf("storing a large end record returns the status %d", got)
	}
	// reopen simulates a restarted archive, which computes each user's usage from the store.
	reopen := func(limit int64) Store {
		s := OpenLimited(t, at, limit)
		ownerOf := func(uid string) (string, error) { return existing.OwnerOf(t.Context(), uid) }
		if _, err := s.Sweep(t.Context(), ownerOf, time.Hour, time.Now()); err != nil {
			t.Fatal(err)
		}
		address, key = Serve(t, s, existing)
		return s
	}
	reopen(most + int64(len(large)))
	// An ending replaces the previous ending of the session, so repeated endings need no additional
	// space.
	for range 3 {
		if got := Post(t, address, key, "bob-1", session.ArchiveEnd, large); got != http.StatusOK {
			t.Errorf("an ending that replaces another gets the status %d", got)
		}
	}
	s := reopen(most)
	answers("ada-2", 4, 5, http.StatusRequestEntityTooLarge)
	if err := s.Delete(t.Context(), "ada-1"); err != nil {
		t.Fatal(err)
	}
	answers("bob-1", 9, 10, http.StatusRequestEntityTooLarge)
	answers("ada-2", 4, 5, http.StatusOK)
	if got := IDs(t, s, "ada-2", 0); got != "0-4 of 5" {
		t.Errorf("the archive holds %s", got)
	}
}

// TestTurns checks that every process lists the outcome of a turn until the outcome is cleared.
func TestTurns(t *testing.T, address string) {
	t.Helper()
	one, other := Open(t, address), Open(t, address)
	set := func(s Store, uid string, attempt int, reason string) error {
		var turn *v1alpha1.ConversationTurn
		if reason != "" {
			turn = &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: reason}
		}
		return s.SetTurn(t.Context(), uid, "ns/"+uid, attempt, turn)
	}
	tags := map[Store]string{}
	// wants waits until the outcomes have changed since its previous call. Both processes must then
	// list exactly the wanted outcomes.
	wants := func(want string) {
		t.Helper()
		for _, s := range []Store{one, other} {
			list, tag, err := s.Turns(t.Context(), tags[s], "", time.Minute)
			var got []string
			for _, reported := range list.Turns {
				got = append(got, reported.Conversation+" "+reported.Turn.Reason)
			}
			if text := strings.Join(got, ", "); err != nil || text != want || list.Next != "" {
				t.Errorf("the outcomes are %q, then %q, %v, want %q", text, list.Next, err, want)
			}
			tags[s] = tag
		}
		if tags[one] != tags[other] {
			t.Errorf("the tags are %s and %s", tags[one], tags[other])
		}
	}
	wants("")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(set(one, "u", 1, "NoModel"))
	wants("ns/u NoModel")
	must(set(other, "v", 1, "TurnFailed"))
	wants("ns/u NoModel, ns/v TurnFailed")
	must(set(other, "u", 2, "ModelFailed"))
	wants("ns/u ModelFailed, ns/v TurnFailed")
	// Reports of a stale attempt are refused. A repeated report changes nothing.
	for _, reason := range []string{"", "NoModel"} {
		if err := set(one, "u", 1, reason); !errors.Is(err, store.ErrSuperseded) {
			t.Errorf("a stale attempt reports %q: %v", reason, err)
		}
	}
	must(set(one, "u", 2, "ModelFailed"))
	if _, tag, err := Open(t, address).Turns(t.Context(), tags[one], "", 0); err != nil || tag != tags[one] {
		t.Errorf("the tag was %s and is %s, %v", tags[one], tag, err)
	}
	must(set(one, "u", 2, ""))
	must(set(one, "u", 2, ""))
	wants("ns/v TurnFailed")
	must(set(one, "u", 2, "TurnFailed"))
	wants("ns/u TurnFailed, ns/v TurnFailed")
	must(one.Delete(t.Context(), "u"))
	wants("ns/v TurnFailed")
	// The Conversation v was deleted without a request to the archive. A sweep must remove its
	// outcome. The sweep returns 0, because it does not count Conversations that have only an
	// outcome.
	must(set(one, "w", 1, "TurnFailed"))
	wants("ns/v TurnFailed, ns/w TurnFailed")
	existing := Existing("w")
	ownerOf := func(uid string) (string, error) { return existing.OwnerOf(t.Context(), uid) }
	if removed, err := one.Sweep(t.Context(), ownerOf, time.Hour, time.Now()); err != nil || removed != 0 {
		t.Errorf("the sweep removed %d conversations, %v", removed, err)
	}
	wants("ns/w TurnFailed")
}
