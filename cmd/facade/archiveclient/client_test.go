package archiveclient_test

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestTheClientReadsEventsAndFinalReports(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	archivetest.Append(t, s, "u", 0, 3, 3)
	archivetest.Append(t, s, "u", 3, 8, 8)
	archivetest.Append(t, s, "deleted", 0, 1, 1)
	address, key := archivetest.Serve(t, s, "u empty")
	remote := archiveclient.New(address, "", archivetest.Signer(key, session.AudienceArchive))
	for from, want := range map[int]string{0: "0-7 of 8", 4: "4-7 of 4", 8: "none", 99: "none"} {
		if got := archivetest.IDs(t, remote, "u", from); got != want {
			t.Errorf("events from %d are %s, want %s", from, got, want)
		}
	}
	position, err := remote.Position(t.Context(), "u")
	if err != nil || position.Next != 8 || position.Journal != archivetest.Journal {
		t.Errorf("the position is %+v, %v", position, err)
	}
	if _, err := remote.Ending(t.Context(), "u"); !errors.Is(err, archiveclient.ErrNothing) {
		t.Errorf("the ending of a running session is %v", err)
	}
	if err := s.End(t.Context(), "u", 0, []byte(`{"patch":"diff","repository":true}`)); err != nil {
		t.Fatal(err)
	}
	if ending, err := remote.Ending(t.Context(), "u"); err != nil || ending.Patch != "diff" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
	if got := archivetest.IDs(t, remote, "empty", 0); got != "none" {
		t.Errorf("events of an empty session are %s", got)
	}
	if got := archivetest.IDs(t, remote, "deleted", 0); got != archiveclient.ErrNothing.Error() {
		t.Errorf("events of a deleted session are %s", got)
	}
	visited := 0
	err = remote.Events(t.Context(), "u", 0, 0, func(int, json.RawMessage) bool { visited++; return visited < 2 })
	if err != nil || visited != 2 {
		t.Errorf("visited %d events instead of two, %v", visited, err)
	}
}

func TestReadErrorsAreNotReportedAsAnEmptyArchive(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	archivetest.Append(t, s, "u", 0, 3, 3)
	address, key := archivetest.Serve(t, s, "u")
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(archivetest.Lines(0, 2))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(cut.Close)
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	for what, remote := range map[string]*archiveclient.Client{
		"with a token of another key":  archiveclient.New(address, "", archivetest.Signer(other, session.AudienceArchive)),
		"with a token for the session": archiveclient.New(address, "", archivetest.Signer(key, session.AudienceSession)),
		"of an unreachable archive":    archiveclient.New(away.URL, "", archivetest.Signer(key, session.AudienceArchive)),
		"of a dying archive":           archiveclient.New(cut.URL, "", archivetest.Signer(key, session.AudienceArchive)),
		"without a key": archiveclient.New(address, "", func(string) (string, error) {
			return "", errors.New("no key")
		}),
	} {
		err := remote.Events(t.Context(), "u", 0, 0, func(int, json.RawMessage) bool { return true })
		if err == nil || errors.Is(err, archiveclient.ErrNothing) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A journal may have hundreds of MiB, and is read in pages. The client must ask the archive only
// for the event with the given ID and for later events.
func TestAnEarlierJournalIsReadFromAGivenEventID(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	archive := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.RawQuery
		_, _ = w.Write(archivetest.Lines(4, 6))
	}))
	t.Cleanup(archive.Close)
	remote := archiveclient.New(archive.URL, "", func(string) (string, error) { return "token", nil })
	var ids []int
	err := remote.Events(t.Context(), "u", 2, 4, func(id int, _ json.RawMessage) bool {
		ids = append(ids, id)
		return true
	})
	if query := <-asked; err != nil || query != "earlier=2&from=4" || !slices.Equal(ids, []int{4, 5}) {
		t.Errorf("asked %s for %v, %v", query, ids, err)
	}
}
