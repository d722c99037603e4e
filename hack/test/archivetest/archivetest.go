// Package archivetest contains helpers for tests of the archive and its clients.
package archivetest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
)

// Store lets tests read an archive's store without a server. It implements the interface through
// which the facade reads the archive.
type Store struct{ *store.Store }

var _ archiveclient.Reader = Store{}

// Open opens a store without a quota.
func Open(t testing.TB, address string) Store {
	t.Helper()
	return OpenLimited(t, address, 0)
}

// OpenLimited opens a store with a quota per user, in bytes.
func OpenLimited(t testing.TB, address string, perUser int64) Store {
	t.Helper()
	opened, err := store.Open(t.Context(), address, perUser)
	if err != nil {
		t.Fatal(err)
	}
	return Store{opened}
}

// InDirectory returns the address of a store in a new directory.
func InDirectory(t testing.TB) string {
	t.Helper()
	return "file://" + filepath.Join(t.TempDir(), "archive")
}

// Dir returns the directory in the address of a store.
func Dir(address string) string { return strings.TrimPrefix(address, "file://") }

// Events calls visit() for each event with an ID >= from. It stops when visit returns
// false.
func (s Store) Events(ctx context.Context, uid string, earlier, from int,
	visit func(id int, event json.RawMessage) bool) error {
	var text bytes.Buffer
	if err := s.Copy(ctx, uid, earlier, from, &text); err != nil {
		if errors.Is(err, store.ErrNothing) {
			return archiveclient.ErrNothing
		}
		return err
	}
	for line := range bytes.Lines(text.Bytes()) {
		if !visit(from, bytes.TrimSuffix(line, []byte("\n"))) {
			return nil
		}
		from++
	}
	return nil
}

// Ending returns the ending of a session.
func (s Store) Ending(ctx context.Context, uid string) (*session.Ending, error) {
	text, _, err := s.Store.Ending(ctx, uid)
	if errors.Is(err, store.ErrNothing) {
		return nil, archiveclient.ErrNothing
	}
	if err != nil {
		return nil, err
	}
	defer text.Close()
	ending := &session.Ending{}
	return ending, json.NewDecoder(text).Decode(ending)
}

// Lines returns a line for each event with from <= ID < to.
func Lines(from, to int) []byte {
	var text strings.Builder
	for id := from; id < to; id++ {
		fmt.Fprintf(&text, "{\"id\":%d,\"message\":\"%s\"}\n", id, strings.Repeat("x", 100))
	}
	return []byte(text.String())
}

// OtherLines returns the lines of another journal. Its events have the same IDs as the events of
// Lines, but different contents.
func OtherLines(from, to int) []byte {
	return bytes.ReplaceAll(Lines(from, to), []byte("xxx"), []byte("yyy"))
}

// Journal is the name of the journal whose events Lines() returns.
var Journal = NameOf(Lines(0, 1))

// NameOf returns the result of session.JournalName for the last line of a text.
func NameOf(text []byte) string {
	all := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	return session.JournalName([]byte(all[len(all)-1]))
}

// Append appends the events of Lines(from, to), and checks the id that the store expects next.
func Append(t testing.TB, s Store, uid string, from, to, wantNext int) {
	t.Helper()
	position, err := s.Append(t.Context(), uid, 0, store.Batch{Journal: Journal, From: from, Lines: Lines(from, to)})
	if err != nil || position.Next != wantNext {
		t.Fatalf("after Lines(%d, %d) the next id is %d, %v, want %d", from, to, position.Next, err, wantNext)
	}
}

// IDs describes the archived events with an ID >= from. The text "0-2 of 3" means three events with
// the IDs 0 to 2.
func IDs(t testing.TB, reader archiveclient.Reader, uid string, from int) string {
	t.Helper()
	var got []int
	err := reader.Events(t.Context(), uid, 0, from, func(id int, event json.RawMessage) bool {
		if e, err := session.ParseEvent(event); err != nil || e.ID != id {
			t.Errorf("event %d is %s", id, event)
		}
		got = append(got, id)
		return true
	})
	if err != nil {
		return err.Error()
	}
	if len(got) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d-%d of %d", got[0], got[len(got)-1], len(got))
}

// EarlierLines returns the lines of one of the earlier journals of the Conversation with the UID
// "u". It omits events with an ID < from.
func EarlierLines(t testing.TB, reader archiveclient.Reader, number, from int) string {
	t.Helper()
	var text strings.Builder
	err := reader.Events(t.Context(), "u", number, from, func(_ int, event json.RawMessage) bool {
		text.Write(append(event, '\n'))
		return true
	})
	if err != nil {
		return err.Error()
	}
	return text.String()
}

// Existing lists the UIDs of all existing Conversations, separated by spaces.
type Existing string

// OwnerOf returns the owner of an existing Conversation. The owner is the UID's part before the
// dash: ada owns ada-1 and ada-2.
func (e Existing) OwnerOf(_ context.Context, uid string) (string, error) {
	if !strings.Contains(string(e), uid) {
		return "", nil
	}
	owner, _, _ := strings.Cut(uid, "-")
	return owner, nil
}

// NameOf returns "ns/<uid>" for an existing Conversation, and an empty string otherwise.
func (e Existing) NameOf(ctx context.Context, uid string) (string, error) {
	if owner, err := e.OwnerOf(ctx, uid); owner == "" {
		return "", err
	}
	return "ns/" + uid, nil
}

// CheckAttempt accepts every attempt.
func (Existing) CheckAttempt(context.Context, string, int) error { return nil }

// Signer returns a function that signs a token for a Conversation.
func Signer(key ed25519.PrivateKey, audience string) func(uid string) (string, error) {
	return func(uid string) (string, error) {
		return session.SignToken(key, session.Claims{Audience: audience, UID: uid,
			Expires: time.Now().Add(time.Minute).Unix()})
	}
}

// Serve serves a store over HTTP. It returns the server's URL, and the key that must sign tokens.
func Serve(t testing.TB, s Store, existing Existing) (address string, key ed25519.PrivateKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(httpapi.NewHandler(s.Store, existing, func() ([]ed25519.PublicKey, error) {
		return []ed25519.PublicKey{public}, nil
	}))
	t.Cleanup(server.Close)
	return server.URL, key
}

// Post sends a request to the archive in the name of a Conversation's session. It returns the HTTP
// status.
func Post(t testing.TB, address string, key ed25519.PrivateKey, uid, path, body string) int {
	t.Helper()
	token, err := Signer(key, session.AudienceArchive)(uid)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+session.ArchiveRoot+uid+path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	client := http.Client{Timeout: 2 * time.Minute}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

// HandOver sends the events of Lines(from, to) to the archive in the name of a Conversation's
// session. It returns the HTTP status.
func HandOver(t testing.TB, address string, key ed25519.PrivateKey, uid string, from, to int) int {
	t.Helper()
	path := fmt.Sprintf("%s?from=%d&journal=%s", session.ArchiveEvents, from, Journal)
	return Post(t, address, key, uid, path, string(Lines(from, to)))
}
