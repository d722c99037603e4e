package store_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

// A session that is told that there is nothing begins its work anew.
func TestADirectoryThatCannotBeReadIsNotAnEmptyOne(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	archivetest.Append(t, s, "u", 0, 3, 3)
	events := filepath.Join(archivetest.Dir(address), "u", "events")
	if err := os.Rename(events, events+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(events, events); err != nil { // who opens it is told of an error
		t.Fatal(err)
	}
	for _, fresh := range []archivetest.Store{s, archivetest.Open(t, address)} {
		if position, err := fresh.Position(t.Context(), "u"); err == nil {
			t.Errorf("the position is %+v", position)
		}
		if got := archivetest.IDs(t, fresh, "u", 0); got == store.ErrNothing.Error() {
			t.Errorf("there are %s", got)
		}
	}
	remoteAddress, key := archivetest.Serve(t, s, "u")
	remote := archiveclient.New(remoteAddress, archivetest.Signed(key, session.AudienceArchive))
	if position, err := remote.Position(t.Context(), "u"); err == nil {
		t.Errorf("the archive answers that the position is %+v", position)
	}
	if got := archivetest.Post(t, remoteAddress, key, "u", session.ArchiveEvents+"?from=0&journal="+archivetest.Journal,
		string(archivetest.Lines(0, 1))); got != http.StatusServiceUnavailable {
		t.Errorf("the first events again are answered with %d", got)
	}
	if err := errors.Join(os.Remove(events), os.Rename(events+".away", events)); err != nil {
		t.Fatal(err)
	}
	if got := archivetest.IDs(t, s, "u", 0); got != "0-2 of 3" {
		t.Errorf("back again there are %s", got)
	}
}

// Whichever process it asks, and whatever that has seen: a pod on a node that was cut off may come
// back any time.
func TestAnAttemptThatWasReplacedStaysSo(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	one, other := archivetest.Open(t, address), archivetest.Open(t, address)
	for _, c := range []struct {
		store   archivetest.Store
		attempt int
		want    error
	}{
		{one, 0, nil},
		{one, 1, nil},
		{other, 1, nil},
		{other, 2, nil},
		{one, 1, store.ErrSuperseded},
		{archivetest.Open(t, address), 1, store.ErrSuperseded},
		{archivetest.Open(t, address), 0, store.ErrSuperseded},
		{archivetest.Open(t, address), 2, nil},
	} {
		if err := c.store.Claim(t.Context(), "u", c.attempt); !errors.Is(err, c.want) {
			t.Errorf("the attempt %d is answered with %v, want %v", c.attempt, err, c.want)
		}
	}
}

// meanwhile is a body that is sent after something has happened.
type meanwhile struct {
	io.Reader
	happen func()
}

func (m *meanwhile) Read(p []byte) (int, error) {
	m.happen()
	return m.Reader.Read(p)
}

// Its body may be slow, and what it leaves is not what the session that goes on would.
func TestAnAttemptThatIsReplacedWhileItEndsLeavesNothing(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s, other := archivetest.Open(t, address), archivetest.Open(t, address)
	archivetest.Append(t, s, "u", 0, 12, 12)
	remote, key := archivetest.Serve(t, s, "u")
	token, err := archivetest.Signed(key, session.AudienceArchive)("u")
	if err != nil {
		t.Fatal(err)
	}
	replace := sync.OnceFunc(func() {
		if err := other.Claim(t.Context(), "u", 2); err != nil {
			t.Error(err)
		}
		if err := other.End(t.Context(), "u", 2, []byte(`{"patch":"later"}`)); err != nil {
			t.Error(err)
		}
	})
	body := &meanwhile{strings.NewReader(`{"patch":"earlier"}`), replace}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, remote+session.ArchiveRoot+"u"+
		session.ArchiveEnd+"?attempt=1", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	request.Header.Set("Expect", "100-continue") // it is admitted before its body is read
	response, err := (&http.Transport{ExpectContinueTimeout: time.Minute, DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("it is answered with %d", response.StatusCode)
	}
	if ending, err := archivetest.Open(t, address).Ending(t.Context(), "u"); err != nil || ending.Patch != "later" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

// A session that ends and one that begins anew write at once.
func TestAJournalThatWasPutAsideDoesNotComeBack(t *testing.T) {
	t.Parallel()
	fresh := archivetest.NameOf(archivetest.Others(0, 1))
	for range 30 {
		s := archivetest.Open(t, archivetest.InDirectory(t))
		for from := 0; from < 400; from += 100 {
			archivetest.Append(t, s, "u", from, from+100, from+100)
		}
		var all sync.WaitGroup
		all.Go(func() {
			if err := s.End(t.Context(), "u", 0, []byte("{}")); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := s.Aside(t.Context(), "u", 0); err != nil {
				t.Error(err)
			}
			batch := store.Batch{Journal: fresh, Lines: archivetest.Others(0, 2)}
			if _, err := s.Append(t.Context(), "u", 0, batch); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if got := archivetest.IDs(t, s, "u", 0); got != "0-1 of 2" {
			t.Fatalf("there are %s", got)
		}
		if got := archivetest.Earlier(t, s, 1, 0); got != string(archivetest.Lines(0, 400)) {
			t.Fatalf("put aside are %d bytes", len(got))
		}
	}
}

func TestTheSweepGoesOnAfterWhatItCannotRead(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	for _, uid := range []string{"a", "b"} {
		archivetest.Append(t, s, uid, 0, 1, 1)
	}
	damaged := filepath.Join(archivetest.Dir(address), "a", "orphaned")
	if err := os.MkdirAll(filepath.Join(damaged, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	now, removed := time.Now(), 0
	for _, after := range []time.Duration{0, 25 * time.Hour} {
		count, err := s.Sweep(t.Context(), func(string) (string, error) { return "", nil }, 24*time.Hour,
			now.Add(after))
		if err == nil || !strings.Contains(err.Error(), "a: ") {
			t.Errorf("what is wrong is told as %v", err)
		}
		removed += count
	}
	if got := archivetest.IDs(t, s, "b", 0); removed != 1 || got != store.ErrNothing.Error() {
		t.Errorf("it removed %d, and of the other there are %s", removed, got)
	}
}

// notKept is how often something was not kept, by reason.
func notKept(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "parley_archive_not_kept_total" {
			for _, metric := range family.GetMetric() {
				counts[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return counts
}

func TestWhatIsNotKeptIsCounted(t *testing.T) {
	address := archivetest.InDirectory(t)
	remoteAddress, key := archivetest.Serve(t, archivetest.Open(t, address), "u v")
	before := notKept(t)
	if len(before) != 2 {
		t.Errorf("before anything is counted there are %v", before)
	}
	// Where its directory should be is a file: nothing of it can be written.
	if err := os.WriteFile(filepath.Join(archivetest.Dir(address), "u"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid, path, body string
		code            int
	}{
		{"u", session.ArchiveEvents + "?attempt=1&from=0&journal=" + archivetest.Journal, string(archivetest.Lines(0, 1)),
			http.StatusServiceUnavailable},
		{"v", session.ArchiveEvents + "?attempt=1&from=0&journal=" + archivetest.Journal, string(archivetest.Lines(0, 1)),
			http.StatusOK},
		{"v", session.ArchiveEnd + "?attempt=1", strings.Repeat(" ", session.MaxArchived+1),
			http.StatusRequestEntityTooLarge},
	} {
		if got := archivetest.Post(t, remoteAddress, key, c.uid, c.path, c.body); got != c.code {
			t.Errorf("%s of %s is answered with %d", c.path, c.uid, got)
		}
	}
	after := notKept(t)
	for _, reason := range []string{"full", "failed"} {
		if got := after[reason] - before[reason]; got != 1 {
			t.Errorf("%s is counted %v times", reason, got)
		}
	}
}

func TestAnArchiveWhoseDirectoryIsGoneIsNotReady(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
	if err := os.RemoveAll(archivetest.Dir(address)); err != nil {
		t.Fatal(err)
	}
	if s.Ready(t.Context()) == nil {
		t.Error("it is ready")
	}
}
