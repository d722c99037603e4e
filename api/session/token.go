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
	// AudienceSession is the audience of tokens with which the facade calls a running session on
	// behalf of its user.
	AudienceSession = "session"
	// AudienceArchive is the audience of tokens with which a session uploads its journal and its
	// ending to the archive.
	AudienceArchive = "archive"
	// AudienceAttempt is the audience of tokens that tell the archive which attempt is current.
	// They are needed when an attempt uses the Secret of an earlier attempt. Such a token is not
	// secret, and gives no access without a token for AudienceArchive.
	AudienceAttempt = "archive-attempt"
	// AudienceTurns is the audience of tokens with which the manager reads the archive's list of
	// turn outcomes.
	AudienceTurns = "archive-turns"
	// AudienceModel is the audience of tokens with which the manager writes a session's
	// ModelSettings to the archive.
	AudienceModel = "archive-model"
	// AudienceLeave is the audience of tokens with which the manager asks an idle session to end.
	AudienceLeave = "leave"
	// AudienceUsage is the audience of tokens with which the facade reads costs from the archive's
	// ledger.
	AudienceUsage = "archive-usage"
)

// TurnsSubject is the subject of tokens for AudienceTurns. Such a token does not belong to a single
// conversation.
const TurnsSubject = "manager"

// Claims are the claims of a token: its audience, its conversation, its expiry and, in the token of
// a session, the attempt and the payer of the session.
type Claims struct {
	Audience string `json:"aud"`
	// UID is the subject of the token. It is the UID of a Conversation, or one of the constants
	// TurnsSubject and UsageSubject.
	UID string `json:"sub"`
	// Expires is the time of expiry in seconds since 1970.
	Expires int64 `json:"exp"`
	// Attempt is the attempt of the session, from 1. Zero means that the token is not for an attempt.
	Attempt int `json:"att,omitempty"`
	// Spend is only in tokens for AudienceArchive. It is nil in the tokens of sessions that an
	// older version of Parley started. The costs of these sessions are not in the ledger.
	Spend *SpendClaims `json:"spd,omitempty"`
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

// SignTokens creates one token with each key, and joins the tokens with spaces. During a rotation,
// the receiver may know only one of the keys.
func SignTokens(keys []ed25519.PrivateKey, claims Claims) (string, error) {
	var tokens []string
	for _, key := range keys {
		token, err := SignToken(key, claims)
		if err != nil {
			return "", err
		}
		tokens = append(tokens, token)
	}
	return strings.Join(tokens, " "), nil
}

// VerifyToken checks that the text contains a token for this audience and conversation, that one of
// these keys signed the token, and that the token has not expired.
func VerifyToken(keys []ed25519.PublicKey, text, audience, uid string, now time.Time) error {
	if claims, found := findToken(keys, text, audience, uid); !found || claims.expired(now) {
		return errToken
	}
	return nil
}

// VerifyArchiveToken returns the claims of the token for AudienceArchive in a text. If this token
// is for an attempt, and the text also contains a token for AudienceAttempt, the later attempt and
// the later expiry of the two tokens apply. It is an error if the text contains no token for
// AudienceArchive, or if the applicable expiry has passed.
func VerifyArchiveToken(keys []ed25519.PublicKey, text, uid string, now time.Time) (Claims, error) {
	claims, found := findToken(keys, text, AudienceArchive, uid)
	if claims.Attempt > 0 {
		later, _ := findToken(keys, text, AudienceAttempt, uid)
		claims.Attempt, claims.Expires = max(claims.Attempt, later.Attempt), max(claims.Expires, later.Expires)
	}
	if !found || claims.expired(now) {
		return Claims{}, errToken
	}
	return claims, nil
}

func (c Claims) expired(now time.Time) bool { return now.After(time.Unix(c.Expires, 0).Add(clockSkew)) }

// maxTokensSent bounds the tokens in a text, because each token is checked with each key.
const maxTokensSent = 2 * maxSigningKeys

// findToken returns the claims of the first token in the text that one of these keys signed for
// this audience and conversation.
func findToken(keys []ed25519.PublicKey, text, audience, uid string) (claims Claims, found bool) {
	tokens := strings.Fields(text)
	for _, token := range tokens[:min(len(tokens), maxTokensSent)] {
		body, signature, _ := strings.Cut(token, ".")
		raw, err := base64.RawURLEncoding.DecodeString(signature)
		payload, invalid := base64.RawURLEncoding.DecodeString(body)
		var claims Claims
		if err != nil || invalid != nil || json.Unmarshal(payload, &claims) != nil || claims.Audience != audience ||
			claims.UID != uid || uid == "" {
			continue
		}
		for _, key := range keys {
			if len(key) == ed25519.PublicKeySize && ed25519.Verify(key, []byte(body), raw) {
				return claims, true
			}
		}
	}
	return Claims{}, false
}
