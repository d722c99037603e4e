package archive_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/archive"
)

// handOver events of a session, and say how that is answered.
func handOver(t *testing.T, address string, key ed25519.PrivateKey, uid string, from, to int) int {
	t.Helper()
	path := fmt.Sprintf("%s?from=%d&journal=%s", session.ArchiveEvents, from, name)
	return post(t, address, key, uid, path, string(lines(from, to)))
}

func TestAUserWhoFillsTheArchiveTakesNothingFromOthers(t *testing.T) {
	t.Run("directory", func(t *testing.T) { testShares(t, inDirectory(t)) })
	t.Run("S3", func(t *testing.T) { testShares(t, inS3(t)) })
}

func testShares(t *testing.T, at string) {
	t.Helper()
	const conversations = having("ada-1 ada-2 bob-1")
	most := int64(len(lines(0, 9)))
	store := open(t, at)
	store.BoundOwners(most)
	address, key := served(t, store, conversations)
	answers := func(uid string, from, to, want int) {
		t.Helper()
		if got := handOver(t, address, key, uid, from, to); got != want {
			t.Errorf("%s hands over %d to %d and is answered %d, want %d", uid, from, to, got, want)
		}
	}
	answers("ada-1", 0, 5, http.StatusOK)
	answers("ada-1", 0, 5, http.StatusOK) // the answer was lost, and it is kept once
	answers("ada-2", 0, 4, http.StatusOK)
	answers("ada-1", 5, 6, http.StatusRequestEntityTooLarge)
	answers("ada-2", 4, 5, http.StatusRequestEntityTooLarge)
	answers("bob-1", 0, 9, http.StatusOK)

	// What it cost is kept all the same, and what is large is not.
	if got := post(t, address, key, "ada-1", session.ArchiveEnd, `{"cost":"1.5"}`); got != http.StatusOK {
		t.Errorf("a small ending is answered %d", got)
	}
	large := `{"patch":"` + strings.Repeat("x", 100<<10) + `"}`
	if got := post(t, address, key, "ada-1", session.ArchiveEnd, large); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a large ending is answered %d", got)
	}
	store.Tidied()
	// bob's may end again, and be repeated: one takes the place of the other.
	store.BoundOwners(most + int64(len(large)))
	for range 3 {
		if got := post(t, address, key, "bob-1", session.ArchiveEnd, large); got != http.StatusOK {
			t.Errorf("an ending that takes the place of another is answered %d", got)
		}
	}
	store.Tidied()

	// Another process knows it as well.
	store = open(t, at)
	store.BoundOwners(most)
	if err := store.Measure(t.Context(), func(uid string) (string, error) {
		return conversations.OwnerOf(t.Context(),
			uid)
	}); err != nil {
		t.Fatal(err)
	}
	address, key = served(t, store, conversations)
	answers("ada-2", 4, 5, http.StatusRequestEntityTooLarge)
	if err := store.Delete(t.Context(), "ada-1"); err != nil {
		t.Fatal(err)
	}
	answers("bob-1", 9, 10, http.StatusRequestEntityTooLarge)
	answers("ada-2", 4, 5, http.StatusOK)
	if got := ids(t, store, "ada-2", 0); got != "0-4 of 5" {
		t.Errorf("kept is %s", got)
	}
}

func TestWithoutABoundOfUsersAllIsKept(t *testing.T) {
	t.Parallel()
	address, key := served(t, open(t, inDirectory(t)), "ada-1")
	if got := handOver(t, address, key, "ada-1", 0, 1000); got != http.StatusOK {
		t.Errorf("it is answered %d", got)
	}
}

func TestWhatComesWhileItIsMeasuredCounts(t *testing.T) {
	t.Parallel()
	store := open(t, inDirectory(t))
	store.BoundOwners(int64(len(lines(0, 9))))
	store.OwnedBy("gone", "ada")
	appendTo(t, store, "gone", 0, 1, 1)
	store.OwnedBy("u", "ada")
	appendTo(t, store, "u", 0, 5, 5)
	measure := sync.OnceFunc(func() {
		appendTo(t, store, "u", 5, 8, 8)
		if err := store.Delete(t.Context(), "gone"); err != nil {
			t.Error(err)
		}
	})
	if err := store.Measure(t.Context(), func(string) (string, error) { measure(); return "ada", nil }); err != nil {
		t.Fatal(err)
	}
	appendTo(t, store, "u", 8, 9, 9)
	if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: name, From: 9, Lines: lines(9, 10)}); !errors.Is(
		err, archive.ErrOwnerFull) {
		t.Errorf("more than there is room for: %v", err)
	}
}
