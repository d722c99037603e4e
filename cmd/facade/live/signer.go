// Package live sends users' requests to their running sessions.
package live

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-dev/parley/api/session"
)

// tokenLifetime is short, and each token is valid for one session only, so that a session cannot
// misuse the tokens that it receives.
const tokenLifetime = time.Minute

// errNoKey reports that the signing key does not exist yet. At its first start, the manager creates
// the key.
var errNoKey = errors.New("no signing key yet")

// Signer signs the facade's tokens for sessions.
type Signer struct {
	file, authorities string
	now               func() time.Time
}

// NewSigner returns a signer with the keys in dir, where the Secret session.SigningSecret is
// mounted.
func NewSigner(dir string) *Signer {
	return &Signer{file: filepath.Join(dir, session.SigningPrivateKey),
		authorities: filepath.Join(dir, session.AuthorityCertificates), now: time.Now}
}

// Token returns a token for the session of a Conversation.
func (s *Signer) Token(uid string) (string, error) { return s.sign(session.AudienceSession, uid) }

// ArchiveToken returns a token for the archived data of a Conversation.
func (s *Signer) ArchiveToken(uid string) (string, error) {
	return s.sign(session.AudienceArchive, uid)
}

// UsageToken returns a token for the costs in the archive's ledger.
func (s *Signer) UsageToken() (string, error) {
	return s.sign(session.AudienceUsage, session.UsageSubject)
}

func (s *Signer) sign(audience, uid string) (string, error) {
	if uid == "" {
		return "", errors.New("a token needs the UID of a conversation")
	}
	keys, err := s.keys()
	if err != nil {
		return "", err
	}
	return session.SignTokens(keys, session.Claims{Audience: audience, UID: uid,
		Expires: s.now().Add(tokenLifetime).Unix()})
}

// Secrets derives a secret for a purpose from each signing key. The secret of the current key is
// first. All facades derive the same secrets, so no secret needs to be stored.
func (s *Signer) Secrets(purpose string) (secrets [][]byte, err error) {
	keys, err := s.keys()
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		secret, err := hkdf.Key(sha256.New, key.Seed(), nil, "parley "+purpose, sha256.Size)
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}

// Authorities returns the mounted CA certificates that verify the certificates of sessions.
func (s *Signer) Authorities() (*x509.CertPool, error) {
	text, err := os.ReadFile(s.authorities)
	if err != nil {
		return nil, fmt.Errorf("read the certificate authorities: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool, nil
}

// Ready returns the reason why no token can be signed, or nil.
func (s *Signer) Ready() error {
	_, err := s.keys()
	return err
}

// keys reads the keys each time, because the kubelet may add or replace them. Reading the small
// file is cheap.
func (s *Signer) keys() ([]ed25519.PrivateKey, error) {
	text, err := os.ReadFile(s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0:
		return nil, errNoKey
	case err != nil:
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	keys, err := session.ParseSigningKeys(text)
	if err != nil {
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	return keys, nil
}
