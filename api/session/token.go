package session

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"
)

// What a token is for.
const (
	// AudienceSession is a running session, which the facade speaks with on its user's behalf.
	AudienceSession = "session"
	// AudienceArchive is the facade's archive, which a session hands over to what is to be kept.
	AudienceArchive = "archive"
)

// Claims are what a token says: for what, of which conversation, until when.
type Claims struct {
	Audience string `json:"aud"`
	// UID of the Conversation.
	UID string `json:"sub"`
	// Expires in seconds since 1970.
	Expires int64 `json:"exp"`
}

// clockSkew is how far the clocks of two nodes may be apart.
const clockSkew = 30 * time.Second

// errToken says no more, since who presents a bad token needs no help.
var errToken = errors.New("the token is not valid")

// SignToken makes a token.
func SignToken(key ed25519.PrivateKey, claims Claims) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(payload)
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(text))), nil
}

// VerifyToken checks that a token was signed, is for this audience and conversation, and has not
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
