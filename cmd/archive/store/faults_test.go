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

// A session would repeat its work if the archive reported an unreadable directory as empty.
func TestAnUnreadableDirectoryIsNotReportedAsEmpty(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	archivetest.Append(t, s, "u", 0, 3, 3)
	events := filepath.Join(archivetest.Dir(address), "u", "events")
	if err := os.Rename(events, events+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(events, events); err != nil { // opening it fails
		t.Fatal(err)
	}
	for _, fresh := range []archivetest.Store{s, archivetest.Open(t, address)} {
		if position, err := fresh.Position(t.Context(), "u"); err == nil {
			t.Errorf("the position is %+v", position)
		}
		if got := archivetest.IDs(t, fresh, "u", 0); got == store.ErrNothing.Error() {
			t.Errorf("the events are %s", got)
		}
	}
	remoteAddress, key := archivetest.Serve(t, s, "u")
	remote := archiveclient.New(remoteAddress, "", archivetest.Signer(key, session.AudienceArchive))
	if position, err := remote.Position(t.Context(), "u"); err == nil {
		t.Errorf("the archive returns the position %+v", position)
	}
	if got := archivetest.Post(t, remoteAddress, key, "u", session.ArchiveEvents+"?from=0&journal="+archivetest.Journal,
		string(archivetest.Lines(0, 1))); got != http.StatusServiceUnavailable {
		t.Errorf("the answer to repeated events is %d", got)
	}
	if err := errors.Join(os.Remove(events), os.Rename(events+".away", events)); err != nil {
		t.Fatal(err)
	}
	if got := archivetest.IDs(t, s, "u", 0); got != "0-2 of 3" {
		t.Errorf("after the repair the events are %s", got)
	}
}

// The pod of a superseded attempt may run on a disconnected node. When the node reconnects, the pod
// may call any archive process.
func TestEveryProcessRefusesASupersededAttempt(t *testing.T) {
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
			t.Errorf("attempt %d: %v, want %v", c.attempt, err, c.want)
		}
	}
}

// hookedBody is a request body that calls a function before each read.
type hookedBody struct {
	io.Reader
	happen func()
}

func (m *hookedBody) Read(p []byte) (int, error) {
	m.happen()
	return m.Reader.Read(p)
}

// An attempt reports its end in a request, whose body may arrive slowly. A later attempt may write
// before the body is complete. The report of the earlier attempt must not replace the report of the
// later attempt.
func TestNothingIsStoredIfAnAttemptIsSupersededWhileItEnds(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s, other := archivetest.Open(t, address), archivetest.Open(t, address)
	archivetest.Append(t, s, "u", 0, 12, 12)
	remote, key := archivetest.Serve(t, s, "u")
	token, err := archivetest.Signer(key, session.AudienceArchive)("u")
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
	body := &hookedBody{strings.NewReader(`{"patch":"earlier"}`), replace}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, remote+session.ArchiveRoot+"u"+
		session.ArchiveEnd+"?attempt=1", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	request.Header.Set("Expect", "100-continue") // the archive admits the request before it reads the body
	response, err := (&http.Transport{ExpectContinueTimeout: time.Minute, DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("the answer is %d", response.StatusCode)
	}
	if ending, err := archivetest.Open(t, address).Ending(t.Context(), "u"); err != nil || ending.Patch != "later" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

// A session sends its final report and starts a new journal at the same time. Afterwards, the new
// journal must be the current one, and the earlier journal must be complete.
func TestTheFinalReportDoesNotRestoreAnEarlierJournal(t *testing.T) {
	t.Parallel()
	fresh := archivetest.NameOf(archivetest.OtherLines(0, 1))
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
			if err := s.StartJournal(t.Context(), "u", 0); err != nil {
				t.Error(err)
			}
			batch := store.Batch{Journal: fresh, Lines: archivetest.OtherLines(0, 2)}
			if _, err := s.Append(t.Context(), "u", 0, batch); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if got := archivetest.IDs(t, s, "u", 0); got != "0-1 of 2" {
			t.Fatalf("the events are %s", got)
		}
		if got := archivetest.EarlierLines(t, s, 1, 0); got != string(archivetest.Lines(0, 400)) {
			t.Fatalf("the earlier journal has %d bytes", len(got))
		}
	}
}

func TestTheSweepContinuesAfterUnreadableData(t *testing.T) {
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
			t.Errorf("the error is %v", err)
		}
		removed += count
	}
	if got := archivetest.IDs(t, s, "b", 0); removed != 1 || got != store.ErrNothing.Error() {
		t.Errorf("removed %d, and the events of the other are %s", removed, got)
	}
}

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

func TestRefusedUploadsAreCounted(t *testing.T) {
	address := archivetest.InDirectory(t)
	remoteAddress, key := archivetest.Serve(t, archivetest.Open(t, address), "u v")
	before := notKept(t)
	if len(before) != 2 {
		t.Errorf("the initial counts are %v", before)
	}
	// A file in place of the Conversation's directory makes all writes fail.
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
			t.Errorf("%s of %s: the answer is %d", c.path, c.uid, got)
		}
	}
	after := notKept(t)
	for _, reason := range []string{"full", "failed"} {
		if got := after[reason] - before[reason]; got != 1 {
			t.Errorf("%s is counted %v times", reason, got)
		}
	}
}

func TestAnArchiveWithoutItsDirectoryIsNotReady(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("the archive is not ready: %v", err)
	}
	if err := os.RemoveAll(archivetest.Dir(address)); err != nil {
		t.Fatal(err)
	}
	if s.Ready(t.Context()) == nil {
		t.Error("the archive is ready")
	}
}
