package live

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

// mount writes a key as the kubelet does: into a new directory, which replaces the old directory
// atomically.
func mount(t testing.TB, dir, version string) map[string][]byte {
	t.Helper()
	data, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, version)
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range data {
		if err := os.WriteFile(filepath.Join(target, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "..data_tmp")
	if err := errors.Join(os.Symlink(version, link), os.Rename(link, filepath.Join(dir, "..data"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join("..data", session.SigningPrivateKey), filepath.Join(dir,
		session.SigningPrivateKey)); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return data
}

// verify checks a token against the public half of a key, as a session does.
func verify(t *testing.T, data map[string][]byte, token, uid string, at time.Time) error {
	t.Helper()
	keys, err := session.ParsePublicKeys(data[session.SigningPublicKey])
	if err != nil {
		t.Fatal(err)
	}
	return session.VerifyToken(keys, token, session.AudienceSession, uid, at)
}

func TestATokenIsValidForOneConversationAndOneMinute(t *testing.T) {
	dir := t.TempDir()
	data := mount(t, dir, "1")
	now := time.Now()
	signer := NewSigner(dir)
	signer.now = func() time.Time { return now }
	token, err := signer.Token("u1")
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(t, data, token, "u1", now.Add(time.Minute)); err != nil {
		t.Errorf("after a minute: %v", err)
	}
	if verify(t, data, token, "u2", now) == nil {
		t.Error("the token is valid for another conversation")
	}
	// Sessions accept a token for half a minute after it expires, because clocks may differ. After
	// two minutes, they must refuse it.
	if verify(t, data, token, "u1", now.Add(2*time.Minute)) == nil {
		t.Error("the token is valid after two minutes")
	}
	if _, err := signer.Token(""); err == nil {
		t.Error("a token without a conversation is signed")
	}
}

func TestTheSignerUsesTheMountedKey(t *testing.T) {
	dir := t.TempDir()
	signer := NewSigner(dir)
	if _, err := signer.Token("u"); !errors.Is(err, errNoKey) || !errors.Is(signer.Ready(), errNoKey) {
		t.Errorf("without a key: %v", err)
	}
	first := mount(t, dir, "1")
	if token, err := signer.Token("u"); err != nil || verify(t, first, token, "u", time.Now()) != nil {
		t.Errorf("after the key was mounted: %v", err)
	}
	second := mount(t, dir, "2")
	token, err := signer.Token("u")
	if err != nil || verify(t, second, token, "u", time.Now()) != nil || verify(t, first, token, "u", time.Now()) == nil {
		t.Errorf("after the key was replaced: %v", err)
	}
}

func TestErrorsDoNotContainTheInvalidKey(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, session.SigningPrivateKey), []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewSigner(dir).Token("u"); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}
