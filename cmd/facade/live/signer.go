// Package live speaks with running sessions on behalf of their users.
package live

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-dev/parley/api/session"
)

// tokenLife is how long a token is good for. A session that was shown one can do nothing with it
// elsewhere, and not for long.
const tokenLife = time.Minute

// errNoKey says that there is no key yet: the manager makes it when it first starts.
var errNoKey = errors.New("there is no key to sign tokens with yet")

// Signer makes the tokens with which the facade speaks with sessions.
type Signer struct {
	file string
	now  func() time.Time
}

// NewSigner takes the key from a directory in which the Secret session.SigningSecret is mounted.
func NewSigner(dir string) *Signer {
	return &Signer{file: filepath.Join(dir, session.SigningPrivateKey), now: time.Now}
}

// Token for the session of one Conversation, by its UID.
func (s *Signer) Token(uid string) (string, error) { return s.sign(session.AudienceSession, uid) }

// ArchiveToken is for what is kept of one Conversation, by its UID.
func (s *Signer) ArchiveToken(uid string) (string, error) {
	return s.sign(session.AudienceArchive, uid)
}

func (s *Signer) sign(audience, uid string) (string, error) {
	if uid == "" {
		return "", errors.New("a token is for one conversation")
	}
	key, err := s.key()
	if err != nil {
		return "", err
	}
	return session.SignToken(key, session.Claims{Audience: audience, UID: uid, Expires: s.now().Add(tokenLife).Unix()})
}

// Secret for a purpose, derived from the key: the same in all facades that have it mounted, and
// none has to be made or kept for it.
func (s *Signer) Secret(purpose string) ([]byte, error) {
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	return hkdf.Key(sha256.New, key.Seed(), nil, "parley "+purpose, sha256.Size)
}

// Ready says why no token can be made; nil if one can.
func (s *Signer) Ready() error {
	_, err := s.key()
	return err
}

// key as it is now: a kubelet may bring it, or another one, at any time. It is a small file, so
// that nothing is gained by keeping it.
func (s *Signer) key() (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0:
		return nil, errNoKey
	case err != nil:
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	key, err := session.ParseSigningKey(text)
	if err != nil {
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	return key, nil
}
