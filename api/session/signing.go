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
// tokens. The manager creates and rotates the key; the facade mounts it.
const SigningSecret = "parley-session-signing"

// Keys in the data of the SigningSecret. Mounted files have the same names. SigningPrivateKey holds
// private keys (PKCS #8), and SigningPublicKey holds public keys (PKIX), as PEM. After a rotation,
// each of the two holds the current key and then the previous key.
const (
	SigningPrivateKey = "private"
	SigningPublicKey  = "public"
	// SnapshotSecret is the secret from which the snapshot keys of Conversations are derived.
	// PreviousSnapshotSecret is the secret before the last rotation. Only the manager reads these
	// secrets. They are not mounted anywhere.
	SnapshotSecret         = "snapshots"
	PreviousSnapshotSecret = "snapshots-previous"
	// AuthorityKey is the private key of the certificate authority. Only the manager reads it.
	// AuthorityCertificates are trusted by the clients of Parley's servers. ArchiveCertificate and
	// ArchiveKey are mounted into the archive. All are PEM.
	AuthorityKey          = "ca.key"
	AuthorityCertificates = "ca.crt"
	ArchiveCertificate    = "archive.crt"
	ArchiveKey            = "archive.key"
)

// Annotations of the SigningSecret. If a parley.dev/rotate-… annotation gets a new value, the
// manager rotates the key or secret that the annotation names. The manager then copies the value to
// the matching parley.dev/rotated-… annotation.
const (
	AnnotationRotateSigningKey      = "parley.dev/rotate-signing-key"
	AnnotationRotatedSigningKey     = "parley.dev/rotated-signing-key"
	AnnotationRotateSnapshotSecret  = "parley.dev/rotate-snapshot-secret"
	AnnotationRotatedSnapshotSecret = "parley.dev/rotated-snapshot-secret"
	AnnotationRotateAuthority       = "parley.dev/rotate-authority"
	AnnotationRotatedAuthority      = "parley.dev/rotated-authority"
)

// maxSigningKeys is the number of valid keys: the current and the previous one.
const maxSigningKeys = 2

// NewSigningKey returns the data of a SigningSecret with a new key.
func NewSigningKey() (map[string][]byte, error) {
	data := map[string][]byte{}
	return data, AddSigningKey(data)
}

// AddSigningKey adds a new signing key to the data of a SigningSecret. The key that was current, if
// any, becomes the previous key, and an older key is dropped.
func AddSigningKey(data map[string][]byte) error {
	_, current, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("make a signing key: %w", err)
	}
	keys := []ed25519.PrivateKey{current}
	if text := data[SigningPrivateKey]; len(text) > 0 {
		before, err := ParseSigningKeys(text)
		if err != nil {
			return err
		}
		keys = append(keys, before[0])
	}
	var private, public []byte
	for _, key := range keys {
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return fmt.Errorf("encode a signing key: %w", err)
		}
		open, err := x509.MarshalPKIXPublicKey(PublicHalf(key))
		if err != nil {
			return fmt.Errorf("encode a signing key: %w", err)
		}
		private = append(private, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...)
		public = append(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: open})...)
	}
	data[SigningPrivateKey], data[SigningPublicKey] = private, public
	return nil
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

// ParseSigningKeys parses the private keys: the current key and, if there is one, the previous key.
func ParseSigningKeys(text []byte) ([]ed25519.PrivateKey, error) {
	return parseKeys[ed25519.PrivateKey](text, x509.ParsePKCS8PrivateKey, errSigningKey)
}

// ParsePublicKeys parses the public keys: the current key and, if there is one, the previous key.
func ParsePublicKeys(text []byte) ([]ed25519.PublicKey, error) {
	return parseKeys[ed25519.PublicKey](text, x509.ParsePKIXPublicKey, errPublicKey)
}

func parseKeys[K any](text []byte, parse func([]byte) (any, error), invalid error) (keys []K, _ error) {
	for len(keys) < maxSigningKeys {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		parsed, err := parse(block.Bytes)
		key, ok := parsed.(K)
		if err != nil || !ok {
			return nil, invalid
		}
		keys, text = append(keys, key), rest
	}
	if len(keys) == 0 {
		return nil, invalid
	}
	return keys, nil
}

// PublicHalf returns the public key of a signing key.
func PublicHalf(key ed25519.PrivateKey) ed25519.PublicKey {
	public, _ := key.Public().(ed25519.PublicKey)
	return public
}
