// Package snapshot saves the work of a session without a volume: unpushed commits, changed files
// and the agent's memory. A snapshot is compressed and encrypted, and the archive stores it in
// chunks. A later attempt restores it.
package snapshot

import (
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// Contents says how old the files of a snapshot are: they include the effects of all events up to
// Event.
type Contents struct {
	// Journal is the journal's name. Event is the ID of the last event before the snapshot, or -1
	// if the journal was empty.
	Journal string `json:"journal,omitempty"`
	Event   int    `json:"event"`
	// Attempt is the number of the attempt that took the snapshot.
	Attempt int `json:"attempt"`
}

// Key encrypts a Conversation's snapshots with AES-256-GCM. After a rotation, it can still decrypt
// snapshots that the previous key encrypted.
type Key struct {
	aeads []cipher.AEAD // the current key is first
	uid   string
}

var (
	errKey = errors.New("the session's snapshot key is invalid")
	// ErrAltered says that a snapshot was not encrypted with this key, or has an invalid form.
	ErrAltered = errors.New("the archived snapshot was altered, or encrypted with another key")
)

// NewKey returns a Conversation's key. The text contains the current key and the previous keys in
// base64, separated by white space.
func NewKey(text, uid string) (*Key, error) {
	key := &Key{uid: uid}
	for field := range strings.FieldsSeq(text) {
		raw, err := base64.StdEncoding.DecodeString(field)
		if err != nil || len(raw) != session.SnapshotKeySize {
			return nil, errKey // the cause might quote the key
		}
		aead, err := session.NewCipher(raw)
		if err != nil {
			return nil, errKey
		}
		key.aeads = append(key.aeads, aead)
	}
	if len(key.aeads) == 0 {
		return nil, errKey
	}
	return key, nil
}

func (k *Key) encrypt(text, data []byte) []byte { return k.aeads[0].Seal(nil, nil, text, data) }

func (k *Key) decrypt(sealed, data []byte) ([]byte, error) {
	for _, aead := range k.aeads {
		if text, err := aead.Open(nil, nil, sealed, data); err == nil {
			return text, nil
		}
	}
	return nil, ErrAltered
}

// chunkData returns the additional data that the encryption of a chunk authenticates: the
// Conversation, the snapshot and the chunk's position. Chunks therefore cannot be exchanged,
// reordered or cut off.
func (k *Key) chunkData(id string, index int, last bool) []byte {
	return fmt.Appendf(nil, "parley snapshot chunk 1\n%s\n%s\n%d\n%t", k.uid, id, index, last)
}

func (k *Key) sealData(id string, chunks int) []byte {
	return fmt.Appendf(nil, "parley snapshot seal 1\n%s\n%s\n%d", k.uid, id, chunks)
}

func (k *Key) sealChunk(id string, index int, last bool, text []byte) []byte {
	return k.encrypt(text, k.chunkData(id, index, last))
}

func (k *Key) openChunk(id string, index int, last bool, chunk []byte) ([]byte, error) {
	return k.decrypt(chunk, k.chunkData(id, index, last))
}

func (k *Key) seal(id string, chunks int, contents Contents) ([]byte, error) {
	text, err := json.Marshal(contents)
	if err != nil {
		return nil, err
	}
	return k.encrypt(text, k.sealData(id, chunks)), nil
}

func (k *Key) unseal(of session.Snapshot) (contents Contents, err error) {
	text, err := k.decrypt(of.Seal, k.sealData(of.ID, of.Chunks))
	if err != nil || json.Unmarshal(text, &contents) != nil {
		return contents, ErrAltered
	}
	return contents, nil
}
