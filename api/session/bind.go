package session

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
)

// BindPath is the path at which a warm pod accepts a sealed Bind. The response is a sealed Bound.
// With the query parameter "wait", the pod responds when the session is ready, or after a few
// seconds.
const BindPath = "/bind"

// BindKeyFile is the name of an entry in the Secret of a warm pod. The entry contains the base64
// text of an encryption key of BindKeySize bytes. This key seals Binds for the pod. A pod with
// the variable SecretVariable(BindKeyFile) is warm: it waits for a Bind.
const (
	BindKeyFile = "bind-key"
	BindKeySize = 32
	// MaxBind limits a sealed Bind, in bytes. A Secret has at most 1 MiB, and JSON encodes its
	// values in base64.
	MaxBind = 4 << 20
)

// Bind assigns a session to a warm pod. A pod accepts Binds for only one UID and attempt.
type Bind struct {
	// UID is the UID of the Conversation.
	UID string `json:"uid"`
	// Attempt is the number of this attempt. RanAttempt is the number of the last attempt that ran;
	// zero means none.
	Attempt    int `json:"attempt"`
	RanAttempt int `json:"ranAttempt,omitempty"`
	// Data is the data of the session's Secret, including the document.
	Data map[string][]byte `json:"data"`
}

// Bound is the response to a Bind.
type Bound struct {
	UID     string `json:"uid"`
	Attempt int    `json:"attempt"`
	Ready   bool   `json:"ready"`
}

// errSealed has no details, so that it does not help an attacker.
var errSealed = errors.New("the sealed text is invalid")

// SealBind encrypts a Bind for the warm pod that has this key.
func SealBind(key []byte, bind *Bind) ([]byte, error) { return seal(key, bind, "bind") }

// OpenBind decrypts a Bind in the warm pod that has this key.
func OpenBind(key, sealed []byte) (*Bind, error) {
	bind := &Bind{}
	return bind, open(key, sealed, bind, "bind")
}

// SealBound encrypts the response to a sealed Bind.
func SealBound(key, sealedBind []byte, bound *Bound) ([]byte, error) {
	return seal(key, bound, boundContext(sealedBind))
}

// OpenBound decrypts the response to a sealed Bind. A response to another Bind is an error.
func OpenBound(key, sealedBind, sealed []byte) (*Bound, error) {
	bound := &Bound{}
	return bound, open(key, sealed, bound, boundContext(sealedBind))
}

func boundContext(sealedBind []byte) string {
	sum := sha256.Sum256(sealedBind)
	return "bound " + string(sum[:])
}

func seal(key []byte, value any, context string) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	sealer, err := newSealer(key)
	if err != nil {
		return nil, err
	}
	return sealer.Seal(nil, nil, text, []byte(context)), nil
}

func open(key, sealed []byte, value any, context string) error {
	sealer, err := newSealer(key)
	if err != nil {
		return err
	}
	text, err := sealer.Open(nil, nil, sealed, []byte(context))
	if err != nil || json.Unmarshal(text, value) != nil {
		return errSealed
	}
	return nil
}

func newSealer(key []byte) (cipher.AEAD, error) {
	if len(key) != BindKeySize {
		return nil, fmt.Errorf("a bind key must have %d bytes", BindKeySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
