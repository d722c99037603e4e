package session

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
)

// ArchiveModel is the archive's path for a session's sealed ModelSettings. It follows /sessions/
// and the Conversation's UID. The manager writes the settings with a token for AudienceModel.
const ArchiveModel = "/model"

// MaxModel bounds sealed ModelSettings, whose key has at most MaxSecret bytes.
const MaxModel = MaxSecret + 28<<10

// ModelSettings are the changed model settings of a running session.
type ModelSettings struct {
	// Revision identifies the settings and the version of the Secret with the key.
	Revision string `json:"revision"`
	Model    string `json:"model,omitempty"`
	BaseURL  string `json:"baseURL,omitempty"`
	Key      string `json:"key,omitempty"`
}

// errModel has no details, because they might quote a key.
var errModel = errors.New("the model settings were altered, or encrypted with another key")

// NewCipher returns an AES-256-GCM cipher. The key must have SnapshotKeySize bytes.
func NewCipher(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// modelCipher derives the cipher of a session's model settings from the session's key, which the
// archive and the facade do not have. Each start by a user creates a new session key, so a
// session cannot read the model settings of an earlier start.
func modelCipher(sessionKey, uid string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, []byte(sessionKey), nil, "parley model settings "+uid, SnapshotKeySize)
	if err != nil || sessionKey == "" {
		return nil, errModel
	}
	return NewCipher(key)
}

// SealModel encrypts model settings for the session that has this key.
func SealModel(sessionKey, uid string, settings ModelSettings) ([]byte, error) {
	aead, err := modelCipher(sessionKey, uid)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, text, nil), nil
}

// OpenModel decrypts model settings.
func OpenModel(sessionKey, uid string, sealed []byte) (settings ModelSettings, err error) {
	aead, err := modelCipher(sessionKey, uid)
	if err != nil {
		return settings, err
	}
	text, err := aead.Open(nil, nil, sealed, nil)
	if err != nil || json.Unmarshal(text, &settings) != nil {
		return ModelSettings{}, errModel
	}
	return settings, nil
}
