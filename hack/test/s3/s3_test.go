package s3_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

// inS3 returns the address of an in-memory S3 server. A full S3 server would take minutes to build.
func inS3(t *testing.T) string {
	t.Helper()
	return inS3After(t, func(*http.Request) {})
}

// inS3After returns the address of an S3 server that calls before() before it handles a request.
func inS3After(t *testing.T, before func(r *http.Request)) string {
	t.Helper()
	s3 := gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return at(t, "archive", server.URL)
}

func at(t *testing.T, bucket, endpoint string) string {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "key")
	return "s3://" + bucket + "?region=us-east-1&use_path_style=true&endpoint=" + endpoint
}

func TestEventsAreStoredOnceAndInOrderInABucket(t *testing.T) {
	address := inS3(t)
	archivetest.TestSegments(t, address)
	if err := archivetest.Open(t, address).Ready(t.Context()); err != nil {
		t.Errorf("the store is not ready: %v", err)
	}
}

func TestAnEarlierJournalIsStoredBesideTheNextOne(t *testing.T) {
	archivetest.TestEarlierJournalIsKept(t, inS3(t))
}

func TestAUserWithAFullQuotaTakesNoSpaceFromOthers(t *testing.T) {
	archivetest.TestQuota(t, inS3(t))
}

func TestOutcomesOfTurnsAreListedByEveryReplica(t *testing.T) { archivetest.TestTurns(t, inS3(t)) }

// Two installations can share a bucket. Neither may see the other's data.
func TestAPrefixSeparatesInstallations(t *testing.T) {
	address := inS3(t)
	one, other := archivetest.Open(t, address+"&prefix=one/"), archivetest.Open(t, address+"&prefix=other/")
	archivetest.Append(t, one, "u", 0, 3, 3)
	if got := archivetest.IDs(t, other, "u", 0); got != store.ErrNothing.Error() {
		t.Errorf("the other holds %s", got)
	}
	if err := other.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if got := archivetest.IDs(t, one, "u", 0); got != "0-2 of 3" {
		t.Errorf("the archive holds %s", got)
	}
}

// During an upload by attempt 1, attempt 2 writes through another process. The upload must not
// change the data of attempt 2.
func TestASupersededAttemptOverwritesNothing(t *testing.T) {
	segment := "/u/events/000000000000"
	for name, c := range map[string]struct {
		path           string
		concurrent     func(ctx context.Context, other archivetest.Store) error
		write          func(ctx context.Context, s archivetest.Store) error
		want           error
		ids, lastNamed string
	}{
		"the later attempt appends": {
			path: segment, concurrent: appendAsAttempt2, write: appendAsAttempt1, want: store.ErrSuperseded,
			ids: "0-4 of 5", lastNamed: archivetest.NameOf(archivetest.OtherLines(4, 5)),
		},
		"the later attempt starts a new journal": {
			path: segment, concurrent: startNewJournal, write: appendAsAttempt1,
			ids: "0-7 of 8", lastNamed: archivetest.NameOf(archivetest.OtherLines(7, 8)),
		},
		"both attempts close the journal": {
			path: "/u/events-1/000000000000", concurrent: startNewJournal, want: store.ErrSuperseded,
			write: func(ctx context.Context, s archivetest.Store) error { return s.StartJournal(ctx, "u", 1) },
			ids:   "0-7 of 8", lastNamed: archivetest.NameOf(archivetest.OtherLines(7, 8)),
		},
		"both attempts send an ending": {
			path: "/u/ending.json",
			concurrent: func(ctx context.Context, other archivetest.Store) error {
				return other.End(ctx, "u", 2, []byte(`{"patch":"later"}`))
			},
			write: func(ctx context.Context, s archivetest.Store) error {
				return s.End(ctx, "u", 1, []byte(`{"patch":"earlier"}`))
			},
			want: store.ErrSuperseded, ids: "0-2 of 3", lastNamed: archivetest.NameOf(archivetest.Lines(2, 3)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var uploading atomic.Pointer[func()]
			address := inS3After(t, func(r *http.Request) {
				if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, c.path) {
					if do := uploading.Swap(nil); do != nil {
						(*do)()
					}
				}
			})
			s, other := archivetest.Open(t, address), archivetest.Open(t, address)
			archivetest.Append(t, s, "u", 0, 3, 3)
			if err := s.Claim(t.Context(), "u", 1); err != nil {
				t.Fatal(err)
			}
			do := func() {
				if err := c.concurrent(t.Context(), other); err != nil {
					t.Error(err)
				}
			}
			uploading.Store(&do)
			if err := c.write(t.Context(), s); !errors.Is(err, c.want) {
				t.Errorf("the upload returned %v, want %v", err, c.want)
			}
			if uploading.Load() != nil {
				t.Error("nothing was uploaded")
			}
			fresh := archivetest.Open(t, address)
			if got := archivetest.IDs(t, fresh, "u", 0); got != c.ids {
				t.Errorf("the archive holds %s, want %s", got, c.ids)
			}
			if position, err := fresh.Position(t.Context(), "u"); err != nil || position.Last != c.lastNamed {
				t.Errorf("the position is %+v, %v", position, err)
			}
			if ending, err := fresh.Ending(t.Context(), "u"); err == nil && ending.Patch != "later" {
				t.Errorf("the ending is %+v", ending)
			}
		})
	}
}

func appendAsAttempt1(ctx context.Context, s archivetest.Store) error {
	_, err := s.Append(ctx, "u", 1, store.Batch{Journal: archivetest.Journal, From: 3, Lines: archivetest.Lines(3, 6)})
	return err
}

// appendAsAttempt2 appends two events as attempt 2. appendAsAttempt1 appends other events with the
// same IDs.
func appendAsAttempt2(ctx context.Context, s archivetest.Store) error {
	_, err := s.Append(ctx, "u", 2, store.Batch{Journal: archivetest.Journal, From: 3,
		Lines: archivetest.OtherLines(3, 5)})
	return err
}

// startNewJournal closes the current journal and starts a new journal, in the name of attempt 2.
func startNewJournal(ctx context.Context, s archivetest.Store) error {
	err := s.StartJournal(ctx, "u", 2)
	for _, part := range [][2]int{{0, 6}, {6, 8}} {
		if err == nil {
			_, err = s.Append(ctx, "u", 2, store.Batch{Journal: archivetest.NameOf(archivetest.OtherLines(0, 1)), From: part[0],
				Lines: archivetest.OtherLines(part[0], part[1])})
		}
	}
	return err
}

func TestAnArchiveWithoutItsBucketIsNotReady(t *testing.T) {
	server := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
	t.Cleanup(server.Close)
	if archivetest.Open(t, at(t, "none", server.URL)).Ready(t.Context()) == nil {
		t.Error("an archive without its bucket is ready")
	}
}

func TestSnapshotsAreReplacedAtomically(t *testing.T) { archivetest.TestSnapshots(t, inS3(t)) }

func TestInterruptedUploadsAreRemoved(t *testing.T) { archivetest.TestInterruptedUploads(t, inS3(t)) }

func TestSnapshotsCountAgainstTheQuota(t *testing.T) { archivetest.TestSnapshotQuota(t, inS3(t)) }

func TestArchivedChangesSurviveAnAttemptThatCouldNotRestoreFiles(t *testing.T) {
	archivetest.TestUnrestoredEnding(t, inS3(t))
}
