package session

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// SigningSecret is the Secret in the operator's namespace with the signing key of the facade's
// tokens. The manager fills it once; the facade mounts it.
const SigningSecret = "parley-session-signing"

// Keys of the SigningSecret, and its mounted files: the two halves as PEM in PKCS #8 and PKIX.
const (
	SigningPrivateKey = "private"
	SigningPublicKey  = "public"
	// SnapshotSecret is the secret from which the snapshot keys of Conversations are derived. Only
	// the manager reads it: it is not mounted anywhere.
	SnapshotSecret = "snapshots"
)

// NewSigningKey returns the data of a SigningSecret with a new key.
func NewSigningKey() (map[string][]byte, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make a signing key: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("encode a signing key: %w", err)
	}
	open, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("encode a signing key: %w", err)
	}
	return map[string][]byte{
		SigningPrivateKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
		SigningPublicKey:  pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: open}),
	}, nil
}

// NewSnapshotSecret returns a new secret for snapshot keys.
func NewSnapshotSecret() []byte {
	secret := make([]byte, SnapshotKeySize)
	_, _ = rand.Read(secret) // never fails
	return secret
}

// errSigningKey never quotes the key.
var errSigningKey = errors.New("it is not a PEM-encoded PKCS #8 Ed25519 key")

var errPublicKey = errors.New("it is not a PEM-encoded PKIX Ed25519 public key")

// ParseSigningKey reads the private half.
func ParseSigningKey(text []byte) (ed25519.PrivateKey, error) {
	return parseKey[ed25519.PrivateKey](text, x509.ParsePKCS8PrivateKey, errSigningKey)
}

// ParsePublicKey reads the public half.
func ParsePublicKey(text []byte) (ed25519.PublicKey, error) {
	return parseKey[ed25519.PublicKey](text, x509.ParsePKIXPublicKey, errPublicKey)
}

func parseKey[K any](text []byte, parse func([]byte) (any, error), invalid error) (none K, _ error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return none, invalid
	}
	parsed, err := parse(block.Bytes)
	key, ok := parsed.(K)
	if err != nil || !ok {
		return none, invalid
	}
	return key, nil
}

// PublicHalf returns the public half of a signing key.
func PublicHalf(key ed25519.PrivateKey) ed25519.PublicKey {
	public, _ := key.Public().(ed25519.PublicKey)
	return public
}
