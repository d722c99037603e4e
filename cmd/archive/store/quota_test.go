package store_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestQuotasAreEnforcedPerUser(t *testing.T) {
	archivetest.TestQuota(t, archivetest.InDirectory(t))
}

func TestEverythingIsStoredIfThereIsNoQuota(t *testing.T) {
	t.Parallel()
	address, key := archivetest.Serve(t, archivetest.Open(t, archivetest.InDirectory(t)), "ada-1")
	if got := archivetest.HandOver(t, address, key, "ada-1", 0, 1000); got != http.StatusOK {
		t.Errorf("the answer is %d", got)
	}
}

func TestWritesDuringAMeasurementCountAgainstTheQuota(t *testing.T) {
	t.Parallel()
	s := archivetest.OpenLimited(t, archivetest.InDirectory(t), int64(len(archivetest.Lines(0, 9))))
	s.SetOwner("gone", "ada")
	archivetest.Append(t, s, "gone", 0, 1, 1)
	s.SetOwner("u", "ada")
	archivetest.Append(t, s, "u", 0, 5, 5)
	measure := sync.OnceFunc(func() {
		archivetest.Append(t, s, "u", 5, 8, 8)
		if err := s.Delete(t.Context(), "gone"); err != nil {
			t.Error(err)
		}
	})
	ownerOf := func(string) (string, error) { measure(); return "ada", nil }
	if _, err := s.Sweep(t.Context(), ownerOf, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	archivetest.Append(t, s, "u", 8, 9, 9)
	batch := store.Batch{Journal: archivetest.Journal, From: 9, Lines: archivetest.Lines(9, 10)}
	if _, err := s.Append(t.Context(), "u", 0, batch); !errors.Is(err, store.ErrOwnerFull) {
		t.Errorf("a batch above the quota: %v", err)
	}
}
