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
	c := NewCookies(func() ([]byte, error) { return []byte(secret), nil }, nil)
	c.now = func() time.Time { return *now }
	return c
}

func TestACookieIsGoodForHalfADay(t *testing.T) {
	now := time.Date(2026, 1, 1, 8, 0, 0, 0, time.UTC)
	c := cookiesAt(&now, "secret")
	value, err := c.sign(claims{UID: "1", KeyHash: "h", Expires: now.Add(cookieLifetime).Unix(), ID: "i"})
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(cookieLifetime - time.Second)
	if said, valid := c.read(value); !valid || said.UID != "1" || said.KeyHash != "h" {
		t.Errorf("read %+v, %v", said, valid)
	}
	now = now.Add(time.Second)
	if _, valid := c.read(value); valid {
		t.Error("it is good for longer")
	}
}

func TestAForgedCookieIsNone(t *testing.T) {
	now := time.Now()
	c := cookiesAt(&now, "secret")
	said := claims{UID: "1", KeyHash: "h", Expires: now.Add(cookieLifetime).Unix(), ID: "i"}
	good, err := c.sign(said)
	if err != nil {
		t.Fatal(err)
	}
	other, err := cookiesAt(&now, "another").sign(said)
	if err != nil {
		t.Fatal(err)
	}
	eve, err := c.sign(claims{UID: "2", KeyHash: "h", Expires: said.Expires, ID: "i"})
	if err != nil {
		t.Fatal(err)
	}
	body, signature, _ := strings.Cut(good, ".")
	eveBody, _, _ := strings.Cut(eve, ".")
	for name, value := range map[string]string{
		"of another secret": other, "of another body": eveBody + "." + signature, "unsigned": body,
		"with an empty signature": body + ".",
		"without an id":           mustSign(t, c, claims{UID: "1", KeyHash: "h", Expires: said.Expires}),
		"with more":               good + "A", "empty": "", "no base64": "%.%", "nobody's": mustSign(t, c,
			claims{KeyHash: "h", Expires: said.Expires, ID: "i"}),
	} {
		if _, valid := c.read(value); valid {
			t.Errorf("one %s is taken", name)
		}
	}
	none := NewCookies(func() ([]byte, error) { return nil, errors.New("no key") }, nil)
	if _, valid := none.read(good); valid {
		t.Error("one is taken without a secret")
	}
}

func mustSign(t *testing.T, c *Cookies, said claims) string {
	t.Helper()
	value, err := c.sign(said)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestALinkIsNoCookieAndACookieIsNoLink(t *testing.T) {
	now := time.Date(2026, 1, 1, 8, 0, 0, 0, time.UTC)
	c := cookiesAt(&now, "secret")
	code, err := c.Link(&User{UID: "1"}, "h")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "http://parley.example.com/", nil)
	r.AddCookie(&http.Cookie{Name: plainName, Value: code})
	if _, is := c.Credential(r); is {
		t.Error("a link is taken for a cookie")
	}
	if shown, is := c.Linked(code); !is || shown.UID != "1" || shown.KeyHash != "h" || shown.ID == "" {
		t.Errorf("the link is of %+v, %v", shown, is)
	}
	if _, is := c.Linked(mustSign(t, c, claims{UID: "1", KeyHash: "h", Expires: now.Add(cookieLifetime).Unix(),
		ID: "i"})); is {
		t.Error("a cookie is taken for a link")
	}
	now = now.Add(linkLifetime)
	if _, is := c.Linked(code); is {
		t.Error("it is good for longer")
	}
}
