package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

// life of a cookie: a working day. Another key of the user ends it before.
const life = 12 * time.Hour

// linkLife is how long a link that signs in may be used.
const linkLife = 10 * time.Minute

// The cookie's name. Browsers take the first only over TLS, for this very host and from it, so that
// no page of a neighbouring host can sign somebody in as somebody else.
const (
	secureName = "__Host-parley"
	plainName  = "parley"
)

// Secret that cookies are signed with: the same in all facades.
type Secret func() ([]byte, error)

// Cookies signs and reads them.
type Cookies struct {
	secret  Secret
	proxies Proxies
	now     func() time.Time
}

// NewCookies are signed with a secret. Proxies are trusted to say whether a request came to them
// over TLS.
func NewCookies(secret Secret, proxies Proxies) *Cookies {
	return &Cookies{secret: secret, proxies: proxies, now: time.Now}
}

// claims of a cookie. The hash is of the session key, so that the cookie says nothing of it and
// ends with it.
type claims struct {
	UID     types.UID `json:"uid"`
	KeyHash string    `json:"key"`
	Expires int64     `json:"exp"`
	// ID by which it can be ended before its time.
	ID string `json:"id"`
	// Link says that it is no cookie, but gives one, once.
	Link bool `json:"link,omitempty"`
}

var encoding = base64.RawURLEncoding

func (c *Cookies) sign(said claims) (string, error) {
	secret, err := c.secret()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(said)
	if err != nil {
		return "", err
	}
	body := encoding.EncodeToString(text)
	return body + "." + encoding.EncodeToString(mac(secret, body)), nil
}

func mac(secret []byte, body string) []byte {
	sum := hmac.New(sha256.New, secret)
	_, _ = sum.Write([]byte(body)) // it never fails
	return sum.Sum(nil)
}

// read what a cookie says, if it was signed here and its time is not over.
func (c *Cookies) read(value string) (said claims, valid bool) {
	body, signature, found := strings.Cut(value, ".")
	given, err := encoding.DecodeString(signature)
	if !found || err != nil {
		return said, false
	}
	secret, err := c.secret()
	if err != nil || !hmac.Equal(given, mac(secret, body)) {
		return said, false
	}
	text, err := encoding.DecodeString(body)
	if err != nil || json.Unmarshal(text, &said) != nil {
		return said, false
	}
	return said, said.UID != "" && said.KeyHash != "" && said.ID != "" && c.now().Unix() < said.Expires
}

// Credential of the cookie that came with a request; none where there is no valid one.
func (c *Cookies) Credential(r *http.Request) (Credential, bool) {
	sent, err := r.Cookie(c.name(r))
	if err != nil {
		return Credential{}, false
	}
	return c.credential(sent.Value, false)
}

// Linked is the credential of a link's code. It does not say whether the link was used already.
func (c *Cookies) Linked(code string) (Credential, bool) { return c.credential(code, true) }

func (c *Cookies) credential(value string, link bool) (Credential, bool) {
	said, valid := c.read(value)
	if !valid || said.Link != link {
		return Credential{}, false
	}
	return Credential{KeyHash: said.KeyHash, UID: said.UID, Expires: time.Unix(said.Expires, 0), ID: said.ID}, true
}

// issue a signed value for a user.
func (c *Cookies) issue(u *User, keyHash string, life time.Duration, link bool) (string, error) {
	value, err := c.sign(claims{UID: u.UID, KeyHash: keyHash, Expires: c.now().Add(life).Unix(), ID: rand.Text(),
		Link: link})
	if err != nil {
		return "", answer.Later(http.StatusServiceUnavailable, "The facade has no key yet to sign people in with",
			5*time.Second)
	}
	return value, nil
}

// Link is a code that signs a user in, once and soon.
func (c *Cookies) Link(u *User, keyHash string) (code string, err error) {
	return c.issue(u, keyHash, linkLife, true)
}

// Give a user the cookie.
func (c *Cookies) Give(w http.ResponseWriter, r *http.Request, u *User, keyHash string) error {
	value, err := c.issue(u, keyHash, life, false)
	if err == nil {
		http.SetCookie(w, c.cookie(r, value, int(life.Seconds())))
	}
	return err
}

// Take the cookie away.
func (c *Cookies) Take(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, c.cookie(r, "", -1))
}

func (c *Cookies) cookie(r *http.Request, value string, seconds int) *http.Cookie {
	return &http.Cookie{
		Name: c.name(r), Value: value, Path: "/", MaxAge: seconds,
		HttpOnly: true, Secure: c.proxies.overTLS(r), SameSite: http.SameSiteStrictMode,
	}
}

func (c *Cookies) name(r *http.Request) string {
	if c.proxies.overTLS(r) {
		return secureName
	}
	return plainName
}
