package signin

import (
	"errors"
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
	value, err := c.sign(claims{UID: "1", KeyHash: "h", Expires: now.Add(life).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(life - time.Second)
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
	said := claims{UID: "1", KeyHash: "h", Expires: now.Add(life).Unix()}
	good, err := c.sign(said)
	if err != nil {
		t.Fatal(err)
	}
	other, err := cookiesAt(&now, "another").sign(said)
	if err != nil {
		t.Fatal(err)
	}
	eve, err := c.sign(claims{UID: "2", KeyHash: "h", Expires: said.Expires})
	if err != nil {
		t.Fatal(err)
	}
	body, signature, _ := strings.Cut(good, ".")
	eveBody, _, _ := strings.Cut(eve, ".")
	for name, value := range map[string]string{
		"of another secret": other, "of another body": eveBody + "." + signature, "unsigned": body, "with an empty signature": body + ".",
		"with more": good + "A", "empty": "", "no base64": "%.%", "nobody's": mustSign(t, c, claims{KeyHash: "h", Expires: said.Expires}),
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
