package archive_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/archive"
)

// having says which conversations there are.
type having string

func (h having) OwnerOf(_ context.Context, uid string) (string, error) {
	if !strings.Contains(string(h), uid) {
		return "", nil
	}
	owner, _, _ := strings.Cut(uid, "-") // of ada-1 and ada-2 it is ada
	return owner, nil
}

// signed makes tokens for the archive.
func signed(key ed25519.PrivateKey, audience string) func(uid string) (string, error) {
	return func(uid string) (string, error) {
		return session.SignToken(key, session.Claims{Audience: audience, UID: uid,
			Expires: time.Now().Add(time.Minute).Unix()})
	}
}

// served is an archive of a store, and the key of its tokens.
func served(t *testing.T, store *archive.Store, conversations having) (address string, key ed25519.PrivateKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(archive.NewHandler(store, conversations, func() (ed25519.PublicKey,
		error) {
		return public, nil
	}))
	t.Cleanup(server.Close)
	return server.URL, key
}

func TestAFacadeReadsWhatAnotherProcessKeeps(t *testing.T) {
	t.Parallel()
	store := open(t, inDirectory(t))
	appendTo(t, store, "u", 0, 3, 3)
	appendTo(t, store, "u", 3, 8, 8)
	appendTo(t, store, "deleted", 0, 1, 1)
	address, key := served(t, store, "u empty")
	remote := archive.NewRemote(address, signed(key, session.AudienceArchive))
	for from, want := range map[int]string{0: "0-7 of 8", 4: "4-7 of 4", 8: "none", 99: "none"} {
		if got := ids(t, remote, "u", from); got != want {
			t.Errorf("from %d there are %s, want %s", from, got, want)
		}
	}
	if position, err := remote.Position(t.Context(), "u"); err != nil || position.Next != 8 || position.Journal != name {
		t.Errorf("the position is %+v, %v", position, err)
	}
	if _, err := remote.Ending(t.Context(), "u"); !errors.Is(err, archive.ErrNothing) {
		t.Errorf("of one that goes on the ending is %v", err)
	}
	if err := store.End(t.Context(), "u", 0, []byte(`{"patch":"diff","repository":true}`)); err != nil {
		t.Fatal(err)
	}
	if ending, err := remote.Ending(t.Context(), "u"); err != nil || ending.Patch != "diff" {
		t.Errorf("the ending is %+v, %v", ending, err)
	}
	if got := ids(t, remote, "empty", 0); got != "none" {
		t.Errorf("of one that left nothing there are %s", got)
	}
	if got := ids(t, remote, "deleted", 0); got != archive.ErrNothing.Error() {
		t.Errorf("of one that is deleted there are %s", got)
	}
	visited := 0
	err := remote.Events(t.Context(), "u", 0, func(int, json.RawMessage) bool { visited++; return visited < 2 })
	if err != nil || visited != 2 {
		t.Errorf("who wants two gets %d, %v", visited, err)
	}
}

func TestAnArchiveThatCannotBeReadIsNotAnEmptyOne(t *testing.T) {
	t.Parallel()
	store := open(t, inDirectory(t))
	appendTo(t, store, "u", 0, 3, 3)
	address, key := served(t, store, "u")
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(lines(0, 2))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(cut.Close)
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	for what, remote := range map[string]*archive.Remote{
		"with a token of another key":       archive.NewRemote(address, signed(other, session.AudienceArchive)),
		"with a token for the session":      archive.NewRemote(address, signed(key, session.AudienceSession)),
		"of an archive that is away":        archive.NewRemote(away.URL, signed(key, session.AudienceArchive)),
		"of an archive that dies meanwhile": archive.NewRemote(cut.URL, signed(key, session.AudienceArchive)),
		"without a key": archive.NewRemote(address, func(string) (string, error) {
			return "", errors.New("there is none")
		}),
	} {
		err := remote.Events(t.Context(), "u", 0, func(int, json.RawMessage) bool { return true })
		if err == nil || errors.Is(err, archive.ErrNothing) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
