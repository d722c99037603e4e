package openid

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
)

// Sign returns a token with these claims.
func (i *Issuer) Sign(claims Claims) string { return i.SignAs("JWT", claims) }

// SignAs returns a token with this type in its header.
func (i *Issuer) SignAs(kind string, claims Claims) string {
	k := i.current()
	return k.sign(map[string]string{"alg": "RS256", "typ": kind, "kid": k.id}, claims)
}

// SignUnknown returns a token that is signed with a key that the issuer does not publish.
func (i *Issuer) SignUnknown(claims Claims) string {
	return newKey().sign(map[string]string{"alg": "RS256", "kid": rand.Text()}, claims)
}

// Forge returns a token that is signed with another key, but names the issuer's key in its header.
func (i *Issuer) Forge(claims Claims) string {
	return newKey().sign(map[string]string{"alg": "RS256", "kid": i.current().id}, claims)
}

// SignNone returns a token without a signature.
func (i *Issuer) SignNone(claims Claims) string {
	return unsigned(map[string]string{"alg": "none", "kid": i.current().id}, claims) + "."
}

// SignHMAC returns a token whose signature uses the public key as a shared secret.
func (i *Issuer) SignHMAC(claims Claims) string {
	k := i.current()
	public, err := x509.MarshalPKIXPublicKey(&k.private.PublicKey)
	if err != nil {
		panic(err)
	}
	body := unsigned(map[string]string{"alg": "HS256", "kid": k.id}, claims)
	sum := hmac.New(sha256.New, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	_, _ = sum.Write([]byte(body)) // a hash accepts every write
	return body + "." + encode(sum.Sum(nil))
}

func newKey() *key {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return &key{id: rand.Text(), private: private}
}

func (k *key) sign(header map[string]string, claims Claims) string {
	body := unsigned(header, claims)
	sum := sha256.Sum256([]byte(body))
	signature, err := rsa.SignPKCS1v15(rand.Reader, k.private, crypto.SHA256, sum[:])
	if err != nil {
		panic(err)
	}
	return body + "." + encode(signature)
}

func unsigned(header map[string]string, claims Claims) string {
	head, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	return encode(head) + "." + encode(payload)
}
