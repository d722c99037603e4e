package archive_test

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
	"github.com/parley-dev/parley/cmd/facade/archive"
)

// A session that is told that there is nothing begins its work anew.
func TestADirectoryThatCannotBeReadIsNotAnEmptyOne(t *testing.T) {
	t.Parallel()
	address := inDirectory(t)
	store := open(t, address)
	appendTo(t, store, "u", 0, 3, 3)
	events := filepath.Join(strings.TrimPrefix(address, "file://"), "u", "events")
	if err := os.Rename(events, events+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(events, events); err != nil { // who opens it is told of an error
		t.Fatal(err)
	}
	for _, fresh := range []*archive.Store{store, open(t, address)} {
		if position, err := fresh.Position(t.Context(), "u"); err == nil {
			t.Errorf("the position is %+v", position)
		}
		if got := ids(t, fresh, "u", 0); got == archive.ErrNothing.Error() {
			t.Errorf("there are %s", got)
		}
	}
	remoteAddress, key := served(t, store, "u")
	if position, err := archive.NewRemote(remoteAddress, signed(key, session.AudienceArchive)).Position(t.Context(),
		"u"); err == nil {
		t.Errorf("the archive answers that the position is %+v", position)
	}
	if got := post(t, remoteAddress, key, "u", session.ArchiveEvents+"?from=0&journal="+name,
		string(lines(0, 1))); got != http.StatusServiceUnavailable {
		t.Errorf("the first events again are answered with %d", got)
	}
	if err := errors.Join(os.Remove(events), os.Rename(events+".away", events)); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, store, "u", 0); got != "0-2 of 3" {
		t.Errorf("back again there are %s", got)
	}
}

// Whichever process it asks, and whatever that has seen: a pod on a node that was cut off may come
// back any time.
func TestAnAttemptThatWasReplacedStaysSo(t *testing.T) {
	t.Parallel()
	address := inDirectory(t)
	one, other := open(t, address), open(t, address)
	for _, c := range []struct {
		store   *archive.Store
		attempt int
		want    error
	}{
		{one, 0, nil},
		{one, 1, nil},
		{other, 1, nil},
		{other, 2, nil},
		{one, 1, archive.ErrSuperseded},
		{open(t, address), 1, archive.ErrSuperseded},
		{open(t, address), 0, archive.ErrSuperseded},
		{open(t, address), 2, nil},
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
	address := inDirectory(t)
	store, other := open(t, address), open(t, address)
	inSegments(t, store, "u")
	remote, key := served(t, store, "u")
	token, err := signed(key, session.AudienceArchive)("u")
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
	if ending, err := open(t, address).Ending(t.Context(), "u"); err != nil || ending.Patch != "later" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
}

// What is compacted is read first, and written last: another journal may have taken its place
// meanwhile.
func TestAJournalThatWasPutAsideDoesNotComeBack(t *testing.T) {
	t.Parallel()
	fresh := nameOf(anew(0, 1))
	for range 30 {
		store := open(t, inDirectory(t))
		for from := 0; from < 400; from += 100 {
			appendTo(t, store, "u", from, from+100, from+100)
		}
		var all sync.WaitGroup
		all.Go(func() {
			if err := store.End(t.Context(), "u", 0, []byte("{}")); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := store.Aside(t.Context(), "u"); err != nil {
				t.Error(err)
			}
			if _, err := store.Append(t.Context(), "u", archive.Segment{Journal: fresh, Lines: anew(0, 2)}); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		store.Tidied()
		if got := ids(t, store, "u", 0); got != "0-1 of 2" {
			t.Fatalf("there are %s", got)
		}
		if got := earlier(t, store, 1); got != string(lines(0, 400)) {
			t.Fatalf("put aside are %d bytes", len(got))
		}
	}
}

func TestTheSweepGoesOnAfterWhatItCannotRead(t *testing.T) {
	t.Parallel()
	address := inDirectory(t)
	store := open(t, address)
	for _, uid := range []string{"a", "b"} {
		appendTo(t, store, uid, 0, 1, 1)
	}
	damaged := filepath.Join(strings.TrimPrefix(address, "file://"), "a", "orphaned")
	if err := os.MkdirAll(filepath.Join(damaged, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	now, removed := time.Now(), 0
	for _, after := range []time.Duration{0, 25 * time.Hour} {
		count, err := store.Sweep(t.Context(), func(string) bool { return false }, 24*time.Hour, now.Add(after))
		if err == nil || !strings.Contains(err.Error(), "a: ") {
			t.Errorf("what is wrong is told as %v", err)
		}
		removed += count
	}
	if got := ids(t, store, "b", 0); removed != 1 || got != archive.ErrNothing.Error() {
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
	address := inDirectory(t)
	remoteAddress, key := served(t, open(t, address), "u v")
	before := notKept(t)
	if len(before) != 2 {
		t.Errorf("before anything is counted there are %v", before)
	}
	// Where its directory should be is a file: nothing of it can be written.
	if err := os.WriteFile(filepath.Join(strings.TrimPrefix(address, "file://"), "u"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid, path, body string
		code            int
	}{
		{"u", session.ArchiveEvents + "?attempt=1&from=0&journal=" + name, string(lines(0, 1)),
			http.StatusServiceUnavailable},
		{"v", session.ArchiveEvents + "?attempt=1&from=0&journal=" + name, string(lines(0, 1)), http.StatusOK},
		{"v", session.ArchiveEnd + "?attempt=1", strings.Repeat(" ", session.MaxArchived+1),
			http.StatusRequestEntityTooLarge},
	} {
		if got := post(t, remoteAddress, key, c.uid, c.path, c.body); got != c.code {
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
	address := inDirectory(t)
	store := open(t, address)
	if err := store.Ready(t.Context()); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
	if err := os.RemoveAll(strings.TrimPrefix(address, "file://")); err != nil {
		t.Fatal(err)
	}
	if store.Ready(t.Context()) == nil {
		t.Error("it is ready")
	}
}
