package session

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"
)

// Audiences of tokens.
const (
	// AudienceSession is a running session. The facade calls it for the session's user.
	AudienceSession = "session"
	// AudienceArchive is the archive. A session uploads its journal and its ending to it.
	AudienceArchive = "archive"
	// AudienceTurns is the archive's list of turn outcomes, which the manager reads.
	AudienceTurns = "archive-turns"
	// AudienceModel is the archive's storage of a session's ModelSettings, which the manager writes.
	AudienceModel = "archive-model"
)

// TurnsSubject is the subject of tokens for AudienceTurns, which are for no single conversation.
const TurnsSubject = "manager"

// Claims are the claims of a token: its audience, its conversation and its expiry.
type Claims struct {
	Audience string `json:"aud"`
	// UID of the Conversation, or TurnsSubject.
	UID string `json:"sub"`
	// Expires in seconds since 1970
	Expires int64 `json:"exp"`
}

// clockSkew is the tolerated difference between the clocks of two nodes.
const clockSkew = 30 * time.Second

// errToken has no details, so that it does not help an attacker.
var errToken = errors.New("the token is invalid")

// SignToken creates a token.
func SignToken(key ed25519.PrivateKey, claims Claims) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(payload)
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(text))), nil
}

// VerifyToken checks that a token is signed, is for this audience and conversation, and has not
// expired.
func VerifyToken(key ed25519.PublicKey, token, audience, uid string, now time.Time) error {
	text, signature, _ := strings.Cut(token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, []byte(text), raw) {
		return errToken
	}
	payload, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return errToken
	}
	var claims Claims
	if json.Unmarshal(payload, &claims) != nil || claims.Audience != audience || claims.UID != uid || uid == "" {
		return errToken
	}
	if now.After(time.Unix(claims.Expires, 0).Add(clockSkew)) {
		return errToken
	}
	return nil
}
