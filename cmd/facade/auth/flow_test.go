package auth

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Each unfinished sign-in has a cookie. Too many cookies would make the headers so long that
// proxies refuse the requests.
func TestABrowserKeepsOnlyAFewUnfinishedSignIns(t *testing.T) {
	now := time.Now()
	c := cookiesAt(&now, "secret")
	at, err := url.Parse("http://parley.example.com/")
	if err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	request := func() *http.Request {
		r := httptest.NewRequest("GET", at.String(), nil)
		for _, cookie := range jar.Cookies(at) {
			r.AddCookie(cookie)
		}
		return r
	}
	jar.SetCookies(at, []*http.Cookie{{Name: flowPrefix + "forged", Value: "x"}, {Name: plainName, Value: "session"}})
	const begun = 10
	for i := range begun {
		now = now.Add(time.Second)
		w := httptest.NewRecorder()
		if err := c.SetFlow(w, request(), Flow{ID: fmt.Sprint("state", i)}); err != nil {
			t.Fatal(err)
		}
		jar.SetCookies(at, w.Result().Cookies())
	}
	var names []string
	for _, cookie := range jar.Cookies(at) {
		names = append(names, cookie.Name)
	}
	if len(names) != maxFlows+1 || strings.Contains(strings.Join(names, " "), "forged") {
		t.Errorf("the browser has the cookies %v", names)
	}
	for i := range begun {
		_, valid := c.TakeFlow(httptest.NewRecorder(), request(), fmt.Sprint("state", i))
		if newest := i >= begun-maxFlows; valid != newest {
			t.Errorf("sign-in %d is valid: %v", i, valid)
		}
	}
}
