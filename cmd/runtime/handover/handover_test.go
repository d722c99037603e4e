package handover

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

const uid = "u"

// testArchive is a real archive that a test can make unavailable. It can also drop responses.
type testArchive struct {
	t           *testing.T
	store       archivetest.Store
	url, token  string
	away, mute  atomic.Bool
	full        atomic.Bool
	deleted     atomic.Bool
	appendCalls atomic.Int64
}

func (k *testArchive) OwnerOf(context.Context, string) (string, error) {
	if k.deleted.Load() {
		return "", nil
	}
	return "somebody", nil
}

func (k *testArchive) NameOf(ctx context.Context, uid string) (string, error) {
	owner, err := k.OwnerOf(ctx, uid)
	return owner + "/" + uid, err
}

func (*testArchive) CheckAttempt(context.Context, string, int) error { return nil }

func newArchive(t *testing.T) *testArchive {
	t.Helper()
	return newLimitedArchive(t, 0)
}

func newLimitedArchive(t *testing.T, perUser int64) *testArchive {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	k := &testArchive{t: t, store: archivetest.OpenLimited(t, archivetest.InDirectory(t), perUser)}
	if k.token, err = session.SignToken(key, session.Claims{Audience: session.AudienceArchive, UID: uid,
		Expires: time.Now().Add(time.Hour).Unix()}); err != nil {
		t.Fatal(err)
	}
	handler := httpapi.NewHandler(k.store.Store, k, func() ([]ed25519.PublicKey, error) {
		return []ed25519.PublicKey{public}, nil
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k.away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, session.ArchiveEvents) {
			k.appendCalls.Add(1)
			if k.full.Load() {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
				return
			}
			if k.mute.Swap(false) { // the archive handles the request and drops the response
				handler.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
		}
		handler.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(server.Close)
	k.url = server.URL
	return k
}

func (k *testArchive) attempt(number int) *Archive {
	return New(k.url, "", uid, k.token, number, slog.New(slog.DiscardHandler))
}

func (k *testArchive) has(earlier int) string {
	k.t.Helper()
	var all []string
	err := k.store.Events(k.t.Context(), uid, earlier, 0, func(_ int, event json.RawMessage) bool {
		e, err := session.ParseEvent(event)
		if err != nil {
			k.t.Error(err)
		}
		all = append(all, e.Message)
		return true
	})
	if err != nil {
		return err.Error()
	}
	return strings.Join(all, " ")
}

func (k *testArchive) wants(earlier int, want string) {
	k.t.Helper()
	if got := k.has(earlier); got != want {
		k.t.Errorf("the archive has %q, want %q", got, want)
	}
}

func open(t *testing.T, file string, messages ...string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(file, func(s string) string { return s })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	write(t, j, messages...)
	return j
}

func write(t *testing.T, j *journal.Journal, messages ...string) {
	t.Helper()
	for _, message := range messages {
		if _, err := j.Append(session.Event{Source: session.FromUser, Message: message}); err != nil {
			t.Fatal(err)
		}
	}
}

func inFile(t *testing.T) string { return filepath.Join(t.TempDir(), "events.jsonl") }

func leaving(ending *session.Ending) func(context.Context) *session.Ending {
	return func(context.Context) *session.Ending { return ending }
}

func finish(t *testing.T, k *Keeper) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := k.Finish(ctx, leaving(&session.Ending{Patch: "p"})); err != nil {
		t.Fatal(err)
	}
}

func TestFailuresNeitherLoseNorRepeatEvents(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	j := open(t, inFile(t), "a", "b")
	keeper := k.attempt(1).Keep(j)
	k.mute.Store(true)
	finish(t, keeper)
	k.wants(0, "a b")
	write(t, j, "c")
	k.away.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := keeper.Finish(ctx, leaving(&session.Ending{})); err == nil {
		t.Error("Finish succeeded without an archive")
	}
	k.away.Store(false)
	finish(t, keeper)
	finish(t, k.attempt(1).Keep(j)) // as after a restart
	k.wants(0, "a b c")
	if ending, err := k.store.Ending(t.Context(), uid); err != nil || ending.Patch != "p" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

func TestAFlushArchivesAllEventsImmediately(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	j := open(t, inFile(t), "a")
	keeper := k.attempt(1).Keep(j)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keeper.Run(ctx)
	}()
	begun := time.Now()
	keeper.Flush(t.Context())
	k.wants(0, "a")
	write(t, j, "b", strings.Repeat("c", segmentBytes), "d")
	keeper.Flush(t.Context())
	k.wants(0, "a b "+strings.Repeat("c", segmentBytes)+" d")
	if took := time.Since(begun); took > segmentDelay {
		t.Errorf("the flushes took %s", took)
	}
	k.away.Store(true)
	write(t, j, "e")
	keeper.Flush(t.Context()) // waits until its timeout
	begun = time.Now()
	keeper.Flush(t.Context())
	if took := time.Since(begun); took > time.Second {
		t.Errorf("a flush without an archive took %s", took)
	}
	cancel()
	<-ended
	keeper.Flush(t.Context())
}

func TestALargeJournalIsArchivedInPieces(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	j := open(t, inFile(t))
	for range 8 {
		write(t, j, strings.Repeat("x", 100<<10))
	}
	finish(t, k.attempt(1).Keep(j))
	if got := k.appendCalls.Load(); got != 3 {
		t.Errorf("it came in %d pieces", got)
	}
}

func TestALostJournalIsRestoredAndContinued(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	finish(t, k.attempt(1).Keep(open(t, inFile(t), "a", "b")))
	file := inFile(t)
	second := k.attempt(2)
	if err := second.Restore(t.Context(), file, nil); err != nil {
		t.Fatal(err)
	}
	finish(t, second.Keep(open(t, file, "c")))
	k.wants(0, "a b c")
	k.wants(1, store.ErrNothing.Error())
}

// The archive was unavailable when the workspace was lost, so the session started a new journal.
func TestTheEarlierJournalIsKeptBesideANewOne(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	finish(t, k.attempt(1).Keep(open(t, inFile(t), "a", "b", "c")))
	finish(t, k.attempt(2).Keep(open(t, inFile(t), "x", "y")))
	k.wants(0, "x y")
	k.wants(1, "a b c")
}

// A volume that was restored from a backup has an older journal.
func TestAnOlderJournalIsCompletedFromTheArchive(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	file := inFile(t)
	j := open(t, file, "a", "b")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, j, "c", "d")
	finish(t, k.attempt(1).Keep(j))
	for torn, text := range map[string]string{"whole": string(old), "with a torn line": string(old) + `{"id":2,"mess`} {
		again := inFile(t)
		if err := os.WriteFile(again, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		second := k.attempt(2)
		if err := second.Restore(t.Context(), again, nil); err != nil {
			t.Fatal(err)
		}
		restored := open(t, again)
		if restored.Len() != 4 {
			t.Errorf("%s: it has %d events", torn, restored.Len())
		}
	}
}

func TestALargeJournalTakesLittleMemoryAtAStart(t *testing.T) {
	const count = 64 << 10
	k, file := newArchive(t), inFile(t)
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x", 1<<10)
	for id := range count {
		if _, err := fmt.Fprintf(out, "{\"id\":%d,\"message\":\"%s\"}\n", id, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := k.attempt(2).Restore(t.Context(), file, nil); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 16 {
		t.Errorf("it took %d MiB", took)
	}
}

// If the archive was unavailable when the session started, the archived journal and the new journal
// may begin with the same events and then differ.
func TestDivergedJournalsAreBothKept(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]string{"shorter": {"x"}, "longer": {"x", "y", "z"}} {
		k := newArchive(t)
		file := inFile(t)
		j := open(t, file, "a", "b")
		old, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, j, "c", "d")
		finish(t, k.attempt(1).Keep(j))
		again := inFile(t)
		if err := os.WriteFile(again, old, 0o600); err != nil {
			t.Fatal(err)
		}
		finish(t, k.attempt(2).Keep(open(t, again, more...)))
		if got, want := k.has(0)+" | "+k.has(1), fmt.Sprintf("a b %s | a b c d", strings.Join(more, " ")); got != want {
			t.Errorf("%s: archived are %s, want %s", name, got, want)
		}
	}
}

// An earlier attempt's pod may still run on a disconnected node.
func TestAStaleAttemptIsRefused(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	j := open(t, inFile(t), "a", "b")
	first := k.attempt(1).Keep(j)
	finish(t, first)
	file := inFile(t)
	if err := k.attempt(2).Restore(t.Context(), file, nil); err != nil {
		t.Fatal(err)
	}
	current := open(t, file, "second")
	second := k.attempt(2).Keep(current)
	finish(t, second)
	write(t, j, "first", "first again")
	if err := first.Finish(t.Context(), leaving(&session.Ending{})); !errors.Is(err, errRefused) {
		t.Errorf("the first attempt gets %v", err)
	}
	write(t, current, "third")
	finish(t, second)
	k.wants(0, "a b second third")
}

func TestNothingIsRetriedForADeletedConversation(t *testing.T) {
	t.Parallel()
	k := newArchive(t)
	k.deleted.Store(true)
	if err := k.attempt(2).Restore(t.Context(), inFile(t), nil); !errors.Is(err, ErrGone) {
		t.Errorf("the journal of a conversation that is gone: %v", err)
	}
	keeper := k.attempt(1).Keep(open(t, inFile(t), "a"))
	if err := keeper.Finish(t.Context(), leaving(&session.Ending{})); !errors.Is(err, ErrGone) {
		t.Errorf("handed over: %v", err)
	}
	done := make(chan struct{})
	go func() { keeper.Run(t.Context()); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("it still retries")
	}
}

func TestNoHandoverIsCreatedWithoutAnArchive(t *testing.T) {
	t.Parallel()
	if New("", "", uid, "t", 1, nil) != nil || New("http://x", "", uid, "", 1, nil) != nil {
		t.Error("there is one")
	}
}

// Only a complete error text can be masked reliably, so a long error text is not quoted.
func TestALongErrorTextIsOmitted(t *testing.T) {
	t.Parallel()
	said := "short"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, said,
			http.StatusForbidden)
	}))
	defer server.Close()
	ask := func() string {
		archive := New(server.URL, "", "uid", "token", 1, slog.New(slog.DiscardHandler))
		response, err := archive.ask(t.Context(), http.MethodGet,
			"", nil, nil)
		if err == nil {
			_ = response.Body.Close()
		}
		return fmt.Sprint(err)
	}
	if got := ask(); !strings.Contains(got, "answered 403 short") {
		t.Errorf("it says %q", got)
	}
	said = strings.Repeat("0123456789", 200)
	if got := ask(); strings.Contains(got, "01234567") {
		t.Errorf("it says %q", got)
	}
}
