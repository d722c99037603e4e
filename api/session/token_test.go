package session_test

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

func TestForgedExpiredAndMisdirectedTokensAreRefused(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	token, err := session.SignToken(private, session.Claims{Audience: session.AudienceSession, UID: "u1",
		Expires: now.Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	text, signature, _ := strings.Cut(token, ".")
	for name, c := range map[string]struct {
		key                  ed25519.PublicKey
		token, audience, uid string
		at                   time.Time
		good                 bool
	}{
		"unchanged":               {public, token, session.AudienceSession, "u1", now, true},
		"another conversation":    {public, token, session.AudienceSession, "u2", now, false},
		"no conversation":         {public, token, session.AudienceSession, "", now, false},
		"another audience":        {public, token, session.AudienceArchive, "u1", now, false},
		"later":                   {public, token, session.AudienceSession, "u1", now.Add(2 * time.Minute), false},
		"another key":             {other, token, session.AudienceSession, "u1", now, false},
		"no key":                  {nil, token, session.AudienceSession, "u1", now, false},
		"changed":                 {public, text + "A." + signature, session.AudienceSession, "u1", now, false},
		"without a signature":     {public, text, session.AudienceSession, "u1", now, false},
		"with an empty signature": {public, text + ".", session.AudienceSession, "u1", now, false},
		"empty":                   {public, "", session.AudienceSession, "u1", now, false},
	} {
		if err := session.VerifyToken([]ed25519.PublicKey{c.key}, c.token, c.audience, c.uid, c.at); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
