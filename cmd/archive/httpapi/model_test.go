package httpapi_test

import (
	"crypto/ed25519"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func send(t testing.TB, key ed25519.PrivateKey, audience, subject, method, url, body string) (code int,
	header http.Header, answer string) {
	t.Helper()
	token, err := archivetest.Signer(key, audience)(subject)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

func askModel(t *testing.T, address string, key ed25519.PrivateKey, method, uid, audience, subject,
	body string) (code int, answer string) {
	t.Helper()
	code, _, answer = send(t, key, audience, subject, method, address+session.ArchiveRoot+uid+session.ArchiveModel, body)
	return code, answer
}

func TestOnlyTheManagerWritesModelSettings(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u v")
	for _, c := range []struct {
		name, method, uid, audience, subject, body string
		code                                       int
		answer                                     string
	}{
		{"nothing was written", "GET", "u", session.AudienceArchive, "u", "", 404, ""},
		{"the manager writes", "POST", "u", session.AudienceModel, "u", "sealed", 200, ""},
		{"the session reads", "GET", "u", session.AudienceArchive, "u", "", 200, "sealed"},
		{"the manager writes again", "POST", "u", session.AudienceModel, "u", "resealed", 200, ""},
		{"the session writes", "POST", "u", session.AudienceArchive, "u", "forged", 401, ""},
		{"a token of the facade for a session", "POST", "u", session.AudienceSession, "u", "forged", 401, ""},
		{"the manager's token for another conversation", "POST", "u", session.AudienceModel, "v", "forged", 401, ""},
		{"another session reads", "GET", "u", session.AudienceArchive, "v", "", 401, ""},
		{"the manager's token reads nothing", "GET", "u", session.AudienceModel, "u", "", 401, ""},
		{"an empty body", "POST", "u", session.AudienceModel, "u", "", 422, ""},
		{"a large body", "POST", "u", session.AudienceModel, "u", strings.Repeat("x", session.MaxModel+1), 422, ""},
		{"a deleted conversation", "POST", "gone", session.AudienceModel, "gone", "sealed", 410, ""},
		{"a conversation without model settings", "GET", "v", session.AudienceArchive, "v", "", 404, ""},
		{"the session reads the latest settings", "GET", "u", session.AudienceArchive, "u", "", 200, "resealed"},
	} {
		code, answer := askModel(t, address, key, c.method, c.uid, c.audience, c.subject, c.body)
		if code != c.code || c.answer != "" && answer != c.answer {
			t.Errorf("%s: %d %.60s, want %d %s", c.name, code, answer, c.code, c.answer)
		}
	}
}

func TestModelSettingsAreRemovedWithTheConversation(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u")
	if code, _ := askModel(t, address, key, "POST", "u", session.AudienceModel, "u", "sealed"); code != 200 {
		t.Fatalf("the manager's write gets %d", code)
	}
	// A sweep keeps the model settings while the Conversation exists.
	if _, err := s.Sweep(t.Context(), func(string) (string, error) { return "ada", nil }, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	if code, _ := askModel(t, address, key, "GET", "u", session.AudienceArchive, "u", ""); code != 200 {
		t.Errorf("after a sweep the session gets %d", code)
	}
	if err := s.Delete(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if code, _ := askModel(t, address, key, "GET", "u", session.AudienceArchive, "u", ""); code != 404 {
		t.Errorf("after the deletion the session gets %d", code)
	}
}
