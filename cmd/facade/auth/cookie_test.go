package auth

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func cookiesAt(now *time.Time, secret string) *Cookies {
	c := NewCookies(func() ([][]byte, error) { return [][]byte{[]byte(secret)}, nil }, nil, "")
	c.now = func() time.Time { return *now }
	return c
}

func TestACookieIsValidForHalfADay(t *testing.T) {
	now := time.Date(2026, 1, 1, 8, 0, 0, 0, time.UTC)
	c := cookiesAt(&now, "secret")
	value, err := c.sign(claims{UID: "1", KeyHash: "h", Expires: now.Add(cookieLifetime).Unix(), ID: "i"})
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(cookieLifetime - time.Second)
	if claimed, valid := c.read(value); !valid || claimed.UID != "1" || claimed.KeyHash != "h" {
		t.Errorf("read %+v, %v", claimed, valid)
	}
	now = now.Add(time.Second)
	if _, valid := c.read(value); valid {
		t.Error("it is valid after its expiry")
	}
}

func TestForgedCookiesAreRefused(t *testing.T) {
	now := time.Now()
	c := cookiesAt(&now, "secret")
	claimed := claims{UID: "1", KeyHash: "h", Expires: now.Add(cookieLifetime).Unix(), ID: "i"}
	good, err := c.sign(claimed)
	if err != nil {
		t.Fatal(err)
	}
	other, err := cookiesAt(&now, "another").sign(claimed)
	if err != nil {
		t.Fatal(err)
	}
	eve, err := c.sign(claims{UID: "2", KeyHash: "h", Expires: claimed.Expires, ID: "i"})
	if err != nil {
		t.Fatal(err)
	}
	body, signature, _ := strings.Cut(good, ".")
	eveBody, _, _ := strings.Cut(eve, ".")
	for name, value := range map[string]string{
		"of another secret": other, "of another body": eveBody + "." + signature, "unsigned": body,
		"with an empty signature": body + ".",
		"without an id":           mustSign(t, c, claims{UID: "1", KeyHash: "h", Expires: claimed.Expires}),
		"with a suffix":           good + "A", "empty": "", "of invalid base64": "%.%", "without a user": mustSign(t, c,
			claims{KeyHash: "h", Expires: claimed.Expires, ID: "i"}),
	} {
		if _, valid := c.read(value); valid {
			t.Errorf("a cookie %s is accepted", name)
		}
	}
	none := NewCookies(func() ([][]byte, error) { return nil, errors.New("no key") }, nil, "")
	if _, valid := none.read(good); valid {
		t.Error("a cookie is accepted without a secret")
	}
}

func mustSign(t *testing.T, c *Cookies, claimed claims) string {
	t.Helper()
	value, err := c.sign(claimed)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestSignInLinksAndCookiesAreNotInterchangeable(t *testing.T) {
	now := time.Date(2026, 1, 1, 8, 0, 0, 0, time.UTC)
	c := cookiesAt(&now, "secret")
	code, err := c.Link(&User{UID: "1"}, "h")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "http://parley.example.com/", nil)
	r.AddCookie(&http.Cookie{Name: plainName, Value: code})
	if _, is := c.Credential(r); is {
		t.Error("a link is accepted as a cookie")
	}
	if credential, is := c.Linked(code); !is || credential.UID != "1" || credential.KeyHash != "h" || credential.ID == "" {
		t.Errorf("the link is of %+v, %v", credential, is)
	}
	if _, is := c.Linked(mustSign(t, c, claims{UID: "1", KeyHash: "h", Expires: now.Add(cookieLifetime).Unix(),
		ID: "i"})); is {
		t.Error("a cookie is accepted as a link")
	}
	now = now.Add(linkLifetime)
	if _, is := c.Linked(code); is {
		t.Error("it is valid after its expiry")
	}
}

func TestUsersStaySignedInAfterARotationOfTheSigningKey(t *testing.T) {
	secrets := [][]byte{[]byte("first")}
	c := NewCookies(func() ([][]byte, error) { return secrets, nil }, nil, "")
	cookie := func() string {
		return mustSign(t, c, claims{UID: "1", KeyHash: "h", Expires: time.Now().Add(time.Hour).Unix(), ID: "i"})
	}
	before := cookie()
	secrets = [][]byte{[]byte("second"), []byte("first")}
	if _, valid := c.read(before); !valid {
		t.Error("a cookie from before the rotation is refused")
	}
	after := cookie()
	secrets = [][]byte{[]byte("third"), []byte("second")}
	if _, valid := c.read(after); !valid {
		t.Error("a cookie from after the rotation is refused after the next rotation")
	}
	if _, valid := c.read(before); valid {
		t.Error("a cookie of a dropped secret is accepted")
	}
}

// The shipped Ingress terminates TLS, so the facade gets requests over plain HTTP. It cannot trust
// the headers of the Ingress, because it does not know the address of the Ingress. Cookies are
// therefore marked secure if the external URL has the scheme https.
func TestCookiesAreMarkedSecureIfTheExternalURLIsHTTPS(t *testing.T) {
	for external, want := range map[string]string{"https://parley.example.com": securePrefix + plainName,
		"HTTPS://parley.example.com": securePrefix + plainName, "http://127.0.0.1:3000": plainName, "": plainName} {
		c := NewCookies(func() ([][]byte, error) { return [][]byte{[]byte("secret")}, nil }, nil, external)
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "http://parley.example.com/", nil)
		if err := c.Set(w, r, &User{UID: "1"}, "h"); err != nil {
			t.Fatal(err)
		}
		cookie := w.Result().Cookies()[0]
		if cookie.Name != want || cookie.Secure != (want != plainName) {
			t.Errorf("%q: the cookie is %s", external, cookie)
		}
		r.AddCookie(cookie)
		if _, signedIn := c.Credential(r); !signedIn {
			t.Errorf("%q: the cookie is not accepted", external)
		}
	}
}
