package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

// cookieLifetime is one working day. A cookie becomes invalid sooner if the session key changes or
// the person's ID token expires.
const cookieLifetime = 12 * time.Hour

const linkLifetime = 10 * time.Minute

// The name of the cookie is plainName; over TLS, securePrefix comes before it. Browsers accept a
// cookie with this prefix only over TLS and only from this host, so that no neighbouring host can
// replace the cookie.
const (
	securePrefix = "__Host-"
	plainName    = "parley"
)

// Secrets returns the secret that signs cookies and, after a rotation, the previous secret, which
// still verifies older cookies. All facades have the same secrets.
type Secrets func() ([][]byte, error)

// Cookies signs and verifies cookies.
type Cookies struct {
	secrets Secrets
	proxies Proxies
	// alwaysTLS is set if the external URL has the scheme https. The facade then knows that
	// browsers use TLS, even if no trusted proxy reports it.
	alwaysTLS bool
	now       func() time.Time
}

// NewCookies returns Cookies that sign with the first secret and verify with all secrets.
// externalURL is the URL at which browsers open the page, or empty.
func NewCookies(secrets Secrets, proxies Proxies, externalURL string) *Cookies {
	external, err := url.Parse(externalURL)
	return &Cookies{secrets: secrets, proxies: proxies, now: time.Now,
		alwaysTLS: err == nil && external.Scheme == "https"}
}

// claims are the contents of a cookie. They contain a hash of the session key, not the key itself.
// When the key changes, the cookie becomes invalid.
type claims struct {
	UID     types.UID `json:"uid,omitempty"`
	KeyHash string    `json:"key,omitempty"`
	// Username and Groups identify a person. Namespace and Name identify the settings that the
	// person chose.
	Username  string   `json:"username,omitempty"`
	Groups    []string `json:"groups,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Expires   int64    `json:"exp"`
	// ID identifies the cookie for revocation.
	ID string `json:"id"`
	// Link is set in the secret code of a sign-in link. Such a code can be exchanged for a cookie
	// one time.
	Link bool `json:"link,omitempty"`
	// Flow is set in the cookie of an unfinished sign-in.
	Flow *Flow `json:"flow,omitempty"`
}

// complete reports whether the claims contain exactly one of the following: a session key's hash, a
// person or an unfinished sign-in.
func (c *claims) complete() bool {
	named := 0
	for _, is := range []bool{c.UID != "" && c.KeyHash != "", c.Username != "", c.Flow != nil} {
		if is {
			named++
		}
	}
	return named == 1 && c.ID != ""
}

var encoding = base64.RawURLEncoding

func (c *Cookies) sign(claimed claims) (string, error) {
	secrets, err := c.secrets()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(claimed)
	if err != nil {
		return "", err
	}
	body := encoding.EncodeToString(text)
	return body + "." + encoding.EncodeToString(mac(secrets[0], body)), nil
}

func mac(secret []byte, body string) []byte {
	sum := hmac.New(sha256.New, secret)
	_, _ = sum.Write([]byte(body)) // a hash accepts every write
	return sum.Sum(nil)
}

// read returns the claims of a cookie. valid is false if the signature is wrong or the cookie has
// expired.
func (c *Cookies) read(value string) (claimed claims, valid bool) {
	body, signature, found := strings.Cut(value, ".")
	given, err := encoding.DecodeString(signature)
	if !found || err != nil {
		return claimed, false
	}
	secrets, err := c.secrets()
	signed := func(secret []byte) bool { return hmac.Equal(given, mac(secret, body)) }
	if err != nil || !slices.ContainsFunc(secrets, signed) {
		return claimed, false
	}
	text, err := encoding.DecodeString(body)
	if err != nil || json.Unmarshal(text, &claimed) != nil {
		return claimed, false
	}
	return claimed, claimed.complete() && c.now().Unix() < claimed.Expires
}

// Credential returns the credential of a request's cookie, if the cookie is valid.
func (c *Cookies) Credential(r *http.Request) (Credential, bool) {
	sent, err := r.Cookie(c.name(r, plainName))
	if err != nil {
		return Credential{}, false
	}
	return c.credential(sent.Value, false)
}

// Linked returns the credential of a link's code. It does not check whether the link was used.
func (c *Cookies) Linked(code string) (Credential, bool) { return c.credential(code, true) }

func (c *Cookies) credential(value string, link bool) (Credential, bool) {
	claimed, valid := c.read(value)
	if !valid || claimed.Link != link || claimed.Flow != nil {
		return Credential{}, false
	}
	return Credential{Method: ByCookie, KeyHash: claimed.KeyHash, UID: claimed.UID,
		Expires: time.Unix(claimed.Expires, 0), ID: claimed.ID, Username: claimed.Username, Groups: claimed.Groups,
		Settings: types.NamespacedName{Namespace: claimed.Namespace, Name: claimed.Name}}, true
}

func (c *Cookies) issue(claimed claims) (string, error) {
	value, err := c.sign(claimed)
	if err != nil {
		return "", answer.Later(http.StatusServiceUnavailable, "The facade has no signing key yet; retry later",
			5*time.Second)
	}
	return value, nil
}

func (c *Cookies) claims(u *User, keyHash string, lifetime time.Duration) claims {
	return claims{UID: u.UID, KeyHash: keyHash, Expires: c.now().Add(lifetime).Unix(), ID: rand.Text()}
}

// Link returns the code of a sign-in link. The link works one time.
func (c *Cookies) Link(u *User, keyHash string) (code string, err error) {
	claimed := c.claims(u, keyHash, linkLifetime)
	claimed.Link = true
	return c.issue(claimed)
}

// Set sends the cookie to a user who signed in with a session key.
func (c *Cookies) Set(w http.ResponseWriter, r *http.Request, u *User, keyHash string) error {
	return c.send(w, r, plainName, http.SameSiteStrictMode, c.claims(u, keyHash, cookieLifetime))
}

// SetPerson sends the cookie to a person. The cookie expires with the credential, but after
// cookieLifetime at the latest.
func (c *Cookies) SetPerson(w http.ResponseWriter, r *http.Request, person Credential) error {
	latest := c.now().Add(cookieLifetime).Unix()
	return c.send(w, r, plainName, http.SameSiteStrictMode, claims{Username: person.Username, Groups: person.Groups,
		Namespace: person.Settings.Namespace, Name: person.Settings.Name, ID: person.ID,
		Expires: min(latest, person.Expires.Unix())})
}

func (c *Cookies) send(w http.ResponseWriter, r *http.Request, name string, site http.SameSite, claimed claims) error {
	value, err := c.issue(claimed)
	if err == nil {
		http.SetCookie(w, c.cookie(r, name, site, value, int(claimed.Expires-c.now().Unix())))
	}
	return err
}

// Clear removes the cookie from the browser.
func (c *Cookies) Clear(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, c.cookie(r, plainName, http.SameSiteStrictMode, "", -1))
}

func (c *Cookies) cookie(r *http.Request, name string, site http.SameSite, value string, seconds int) *http.Cookie {
	return &http.Cookie{
		Name: c.name(r, name), Value: value, Path: "/", MaxAge: seconds,
		HttpOnly: true, Secure: c.secure(r), SameSite: site,
	}
}

// secure reports whether browsers must send the cookie over TLS only.
func (c *Cookies) secure(r *http.Request) bool { return c.alwaysTLS || c.proxies.overTLS(r) }

func (c *Cookies) name(r *http.Request, name string) string {
	if c.secure(r) {
		return securePrefix + name
	}
	return name
}
