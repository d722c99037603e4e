package session_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

func TestThePublicKeyVerifiesTokensOfTheSigningKey(t *testing.T) {
	data, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := session.ParseSigningKeys(data[session.SigningPrivateKey])
	if err != nil || len(keys) != 1 {
		t.Fatal(len(keys), err)
	}
	key := keys[0]
	token, err := session.SignToken(key, session.Claims{Audience: session.AudienceSession, UID: "u",
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	if err := session.VerifyToken([]ed25519.PublicKey{session.PublicHalf(key)}, token, session.AudienceSession, "u",
		time.Now()); err != nil {
		t.Error(err)
	}
	block, _ := pem.Decode(data[session.SigningPublicKey])
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil || !bytes.Equal(public.(ed25519.PublicKey), session.PublicHalf(key)) {
		t.Errorf("the public half differs: %v", err)
	}
}

func TestASigningKeyMustBeAnEd25519Key(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"an empty text": nil, "a text that is not PEM": []byte("key"),
		"PEM without a key":     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("key")}),
		"a key of another kind": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		if _, err := session.ParseSigningKeys(text); err == nil {
			t.Errorf("%s is accepted as a key", name)
		}
	}
}

// The signer or the receiver of a token may not know the newest key yet: a running session keeps
// the keys of its start, and the kubelet updates mounted keys with a delay.
func TestATokenStaysValidAcrossOneRotation(t *testing.T) {
	first, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	states := []map[string][]byte{first}
	for range 2 {
		next := maps.Clone(states[len(states)-1])
		if err := session.AddSigningKey(next); err != nil {
			t.Fatal(err)
		}
		states = append(states, next)
	}
	for signed, of := range states {
		private, err := session.ParseSigningKeys(of[session.SigningPrivateKey])
		if err != nil {
			t.Fatal(err)
		}
		token, err := session.SignTokens(private, session.Claims{Audience: session.AudienceSession, UID: "u",
			Expires: time.Now().Add(time.Minute).Unix()})
		if err != nil {
			t.Fatal(err)
		}
		for verified, by := range states {
			public, err := session.ParsePublicKeys(by[session.SigningPublicKey])
			if err != nil {
				t.Fatal(err)
			}
			// A token stays valid across one rotation, but not across two.
			want := signed-verified < 2 && verified-signed < 2
			if err := session.VerifyToken(public, token, session.AudienceSession, "u", time.Now()); (err == nil) != want {
				t.Errorf("a token signed after %d rotations, and verified after %d: %v", signed, verified, err)
			}
		}
	}
}
