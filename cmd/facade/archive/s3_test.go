package archive_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/archive"
)

// inS3 is the address of a small server that speaks S3's protocol, in memory: no store of anybody's,
// which would take minutes to build.
func inS3(t *testing.T) string {
	t.Helper()
	return inS3After(t, func(*http.Request) {})
}

// inS3After is one that does something before each request takes effect.
func inS3After(t *testing.T, before func(r *http.Request)) string {
	t.Helper()
	s3 := gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "key")
	return "s3://archive?region=us-east-1&use_path_style=true&disable_https=true&endpoint=" + server.URL
}

func TestSegmentsArriveOnceAndInOrderInS3(t *testing.T) {
	address := inS3(t)
	testSegments(t, address)
	testAside(t, address)
	if err := open(t, address).Ready(t.Context()); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
}

// Segments of a journal that begins anew have the names of those that another facade writes anew, or
// removes, for the attempt before.
func TestALaterAttemptEndsCompactingInAnotherFacade(t *testing.T) {
	for at, want := range map[string]struct {
		events  string
		removed int
	}{"commit": {"0-11 of 12", 0}, "remove": {"0-7 of 8", 1}} {
		t.Run(at, func(t *testing.T) {
			address := inS3(t)
			store, other := open(t, address), open(t, address)
			if err := store.Claim(t.Context(), "u", 1); err != nil {
				t.Fatal(err)
			}
			inSegments(t, store, "u")
			begun, removed := false, 0
			store.Fault(func(_ context.Context, step, _ string) error {
				if step == "remove" {
					removed++
				}
				if step != at || begun {
					return nil
				}
				begun = true
				if err := other.Claim(t.Context(), "u", 2); err != nil || at == "commit" {
					return err
				}
				return beginAnewInTwo(t.Context(), other)
			})
			if err := store.End(t.Context(), "u", 1, []byte("{}")); err != nil {
				t.Fatal(err)
			}
			store.Tidied()
			if !begun || removed != want.removed {
				t.Errorf("another attempt began: %v; removed are %d segments", begun, removed)
			}
			if got := ids(t, open(t, address), "u", 0); got != want.events {
				t.Errorf("there are %s", got)
			}
		})
	}
}

// Whatever was looked at before, what is uploaded takes its place only when all of it has arrived.
func TestAJournalThatBeginsAnewWhileTheOneBeforeIsUploadedStays(t *testing.T) {
	var uploaded atomic.Pointer[func()]
	address := inS3After(t, func(r *http.Request) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/u/events/000000000000") {
			if begin := uploaded.Swap(nil); begin != nil {
				(*begin)()
			}
		}
	})
	store, other := open(t, address), open(t, address)
	inSegments(t, store, "u")
	begin := func() {
		if err := errors.Join(other.Claim(t.Context(), "u", 2), beginAnewInTwo(t.Context(), other)); err != nil {
			t.Error(err)
		}
	}
	uploaded.Store(&begin)
	if err := store.End(t.Context(), "u", 1, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	store.Tidied()
	if uploaded.Load() != nil {
		t.Error("nothing was uploaded")
	}
	fresh := open(t, address)
	if position, err := fresh.Position(t.Context(), "u"); err != nil || position.Journal != nameOf(anew(0, 1)) {
		t.Errorf("the position is %+v, %v", position, err)
	}
	if got := ids(t, fresh, "u", 0); got != "0-7 of 8" {
		t.Errorf("there are %s", got)
	}
	if got := earlier(t, fresh, 1); got != string(lines(0, 12)) {
		t.Errorf("of the journal before there is %q", got)
	}
}

// What an earlier attempt began is not finished, since a later one claimed the conversation.
func TestALaterAttemptIsCompactedAfterTheOneBefore(t *testing.T) {
	store := open(t, inS3(t))
	inSegments(t, store, "u")
	ended := false
	store.Fault(func(_ context.Context, step, _ string) error {
		if step != "commit" || ended {
			return nil
		}
		ended = true
		return errors.Join(store.Claim(t.Context(), "u", 2), store.End(t.Context(), "u", 2, []byte("{}")))
	})
	if err := store.End(t.Context(), "u", 1, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	store.Tidied()
	if got, err := store.Segments(t.Context(), "u"); err != nil || got != 1 || !ended {
		t.Errorf("there are %d segments, %v; the later one ended: %v", got, err, ended)
	}
	if got := ids(t, store, "u", 0); got != "0-11 of 12" {
		t.Errorf("there are %s", got)
	}
}

func TestNothingIsWrittenForAnAttemptThatWasReplacedBeforeItIsCompacted(t *testing.T) {
	address := inS3(t)
	store, other := open(t, address), open(t, address)
	inSegments(t, store, "u")
	written := 0
	store.Fault(func(_ context.Context, step, key string) error {
		switch {
		case step == "write" && key == "u/ending.json":
			return other.Claim(t.Context(), "u", 2)
		case step == "write":
			written++
		}
		return nil
	})
	if err := store.End(t.Context(), "u", 1, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	store.Tidied()
	if written != 0 {
		t.Errorf("it is written anew %d times", written)
	}
}

// A session may claim its conversation for another attempt whenever all of it was written anew.
func TestManyEndsThatAreCompactedInVainRewriteLittle(t *testing.T) {
	store := open(t, inS3(t))
	large := fmt.Sprintf(`{"id":0,"message":"%s"}`, strings.Repeat("x", 4<<20))
	journal, next := session.JournalName([]byte(large)), 1
	if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: journal,
		Lines: []byte(large + "\n")}); err != nil {
		t.Fatal(err)
	}
	inFive := func() {
		for range 5 {
			if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: journal, From: next, Lines: lines(next,
				next+1)}); err != nil {
				t.Fatal(err)
			}
			next++
		}
	}
	end := func(attempt int) {
		if err := store.End(t.Context(), "u", attempt, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		store.Tidied()
	}
	inFive()
	const ends = 6
	attempt, rewritten := 1, 0
	store.Fault(func(_ context.Context, step, _ string) error {
		if step != "commit" {
			return nil
		}
		rewritten++
		attempt++
		return store.Claim(t.Context(), "u", attempt)
	})
	for range ends {
		end(attempt)
	}
	if rewritten != 1 {
		t.Errorf("%d ends rewrite all %d times", ends, rewritten)
	}
	// What it says since is worth it.
	store.Fault(nil)
	inFive()
	end(attempt)
	if got, err := store.Segments(t.Context(), "u"); err != nil || got != 1 {
		t.Errorf("there are %d segments, %v", got, err)
	}
}

// beginAnewInTwo puts a journal aside and keeps two segments of another. The second has the name of
// one that was put aside.
func beginAnewInTwo(ctx context.Context, store *archive.Store) error {
	err := store.Aside(ctx, "u")
	for _, part := range [][2]int{{0, 6}, {6, 8}} {
		if err == nil {
			_, err = store.Append(ctx, "u", archive.Segment{Journal: nameOf(anew(0, 1)), From: part[0], Lines: anew(part[0],
				part[1])})
		}
	}
	return err
}

func TestAnArchiveWithoutItsBucketIsNotReady(t *testing.T) {
	server := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "key")
	if open(t, "s3://none?region=us-east-1&use_path_style=true&disable_https=true&endpoint="+
		server.URL).Ready(t.Context()) == nil {
		t.Error("it is ready")
	}
}
