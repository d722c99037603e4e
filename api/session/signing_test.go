package session_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

func TestThePublicHalfVerifiesTokensOfASigningKey(t *testing.T) {
	data, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := session.ParseSigningKey(data[session.SigningPrivateKey])
	if err != nil {
		t.Fatal(err)
	}
	token, err := session.SignToken(key, session.Claims{Audience: session.AudienceSession, UID: "u",
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	if err := session.VerifyToken(session.PublicHalf(key), token, session.AudienceSession, "u", time.Now()); err != nil {
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
		"nothing": nil, "no PEM": []byte("key"), "no key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY",
			Bytes: []byte("key")}),
		"of another kind": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		if _, err := session.ParseSigningKey(text); err == nil {
			t.Errorf("%s is accepted as a key", name)
		}
	}
}
