package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// reviewer is a stub of an API server that knows one token.
type reviewer struct {
	cluster.API
	reviews  int
	username string
	err      error
}

func (r *reviewer) ReviewToken(_ context.Context, token string) (string, []string, error) {
	if r.reviews++; token != goodToken {
		return "", nil, r.err
	}
	return r.username, nil, r.err
}

const (
	goodToken = "a.b.c"
	pipeline  = "system:serviceaccount:team:pipeline"
)

func TestATokenCausesAtMostOneTokenReviewInTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &reviewer{username: pipeline}
		tokens := NewTokens(nil, api)
		for range 100 {
			if got, err := tokens.Credential(t.Context(), goodToken, "a"); err != nil || got.Username != pipeline {
				t.Fatalf("the credential is %+v, %v", got, err)
			}
		}
		if api.reviews != 1 {
			t.Errorf("%d reviews of a valid token", api.reviews)
		}
		time.Sleep(trustFor) // in the fake time of synctest
		api.username = ""    // the ServiceAccount was deleted
		if _, err := tokens.Credential(t.Context(), goodToken, "a"); !errors.Is(err, answer.Unauthorized) {
			t.Errorf("after its deletion: %v", err)
		}
		api.username, api.err = pipeline, errors.New("no connection")
		if _, err := tokens.Credential(t.Context(), goodToken, "a"); !errors.Is(err, answer.Unavailable) {
			t.Errorf("without the API server: %v", err)
		}
	})
}

// Requests with invalid tokens cause a bounded number of TokenReviews. Such requests do not lock
// out clients with a valid token.
func TestInvalidTokensCauseFewTokenReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &reviewer{username: pipeline}
		tokens := NewTokens(nil, api)
		if _, err := tokens.Credential(t.Context(), goodToken, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(trustFor) // in the fake time of synctest
		for i := range 10000 {
			_, err := tokens.Credential(t.Context(), fmt.Sprintf("a.b.%d", i), fmt.Sprint(i%100))
			if code := answer.CodeOf(err); code != http.StatusUnauthorized && code != http.StatusServiceUnavailable {
				t.Fatalf("a wrong token is answered with %v", err)
			}
		}
		if api.reviews > newTokensBurst+1 {
			t.Errorf("%d reviews", api.reviews)
		}
		if _, err := tokens.Credential(t.Context(), goodToken, "a"); err != nil {
			t.Errorf("a valid token is refused: %v", err)
		}
		if len(tokens.verified) > 1 {
			t.Errorf("%d tokens are in memory", len(tokens.verified))
		}
	})
}

func TestInvalidTokensFromOneAddressDoNotAffectOtherAddresses(t *testing.T) {
	tokens := NewTokens(nil, &reviewer{username: pipeline})
	refused := 0
	for i := range 1000 {
		_, err := tokens.Credential(t.Context(), fmt.Sprintf("a.b.%d", i), "attacker")
		if answer.CodeOf(err) == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused < 500 {
		t.Errorf("only %d requests are refused", refused)
	}
	if _, err := tokens.Credential(t.Context(), goodToken, "other"); err != nil {
		t.Errorf("a new client of another address is refused: %v", err)
	}
}

func TestOnlyServiceAccountsAuthenticateWithKubernetesTokens(t *testing.T) {
	for _, username := range []string{"system:admin", "oidc:ada@example.com", "ada", "system:anonymous", ""} {
		if got, err := NewTokens(nil, &reviewer{username: username}).Credential(t.Context(), goodToken, "a"); err == nil {
			t.Errorf("%s is accepted as %+v", username, got)
		}
	}
}

func TestTheNumberOfVerifiedTokensInMemoryIsBounded(t *testing.T) {
	tokens := NewTokens(nil, &reviewer{})
	for i := range 2 * maxTokens {
		tokens.remember([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, Credential{}, nil)
	}
	if len(tokens.verified) > maxTokens {
		t.Errorf("%d tokens are in memory", len(tokens.verified))
	}
}

// A cookie that was issued for one purpose must be refused for every other purpose. For example,
// the cookie of an unfinished sign-in must not sign a person in.
func TestACookieIsValidOnlyForItsPurpose(t *testing.T) {
	now := time.Now()
	c := cookiesAt(&now, "secret")
	expires := now.Add(time.Hour).Unix()
	with := func(name, value string) *http.Request {
		r := httptest.NewRequest("GET", "http://parley.example.com/", nil)
		r.AddCookie(&http.Cookie{Name: name, Value: value})
		return r
	}
	flow := mustSign(t, c, claims{ID: "state", Expires: expires, Flow: &Flow{Nonce: "n"}})
	person := mustSign(t, c, claims{ID: "state", Expires: expires, Username: "oidc:ada"})
	if _, is := c.Credential(with(plainName, flow)); is {
		t.Error("an unfinished sign-in is accepted as a cookie")
	}
	if _, is := c.Linked(flow); is {
		t.Error("an unfinished sign-in is accepted as a link")
	}
	if _, is := c.TakeFlow(httptest.NewRecorder(), with(flowPrefix+"state", person), "state"); is {
		t.Error("a cookie of a person is accepted as an unfinished sign-in")
	}
	if credential, is := c.Credential(with(plainName, person)); !is || credential.Username != "oidc:ada" {
		t.Errorf("the cookie is of %+v, %v", credential, is)
	}
	if _, is := c.TakeFlow(httptest.NewRecorder(), with(flowPrefix+"state", flow), "state"); !is {
		t.Error("an unfinished sign-in is refused")
	}
	both := mustSign(t, c, claims{ID: "i", Expires: expires, Username: "oidc:ada", UID: "1", KeyHash: "h"})
	if _, is := c.Credential(with(plainName, both)); is {
		t.Error("a cookie of a person and a key is accepted")
	}
}

func TestACookieOfAPersonExpiresWithTheTokenOrAfterHalfADay(t *testing.T) {
	now := time.Date(2026, 1, 1, 8, 0, 0, 0, time.UTC)
	c := cookiesAt(&now, "secret")
	for token, want := range map[time.Duration]int{time.Hour: 3600, 24 * time.Hour: 43200} {
		w := httptest.NewRecorder()
		person := Credential{Username: "oidc:ada", ID: "i", Expires: now.Add(token)}
		if err := c.SetPerson(w, httptest.NewRequest("GET", "/", nil), person); err != nil {
			t.Fatal(err)
		}
		cookie := w.Result().Cookies()[0]
		if cookie.MaxAge != want || !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode {
			t.Errorf("with a token of %s, the cookie is %s", token, cookie)
		}
	}
}

// A cookie with the longest names must not exceed the limit of browsers.
func TestACookieOfAPersonIsSmallEnoughForBrowsers(t *testing.T) {
	now := time.Now()
	c := cookiesAt(&now, "secret")
	var owned []v1alpha1.UserSettings
	var groups []string
	for i := range 100 {
		group := fmt.Sprintf("oidc:%0100d", i)
		owned = append(owned, v1alpha1.UserSettings{Spec: v1alpha1.UserSettingsSpec{
			Owner: &v1alpha1.SettingsOwner{Username: "oidc:ada", Group: ptr.To(group)}}})
		groups = append(groups, group, "oidc:irrelevant"+group)
	}
	long := fmt.Sprintf("%0253d", 0)
	w := httptest.NewRecorder()
	person := Credential{Username: "oidc:" + long[:251], ID: "i", Expires: now.Add(time.Hour),
		Groups: GroupsOf(owned, groups)}
	person.Settings.Namespace, person.Settings.Name = long[:63], long
	if err := c.SetPerson(w, httptest.NewRequest("GET", "/", nil), person); err != nil {
		t.Fatal(err)
	}
	if size := len(w.Header().Get("Set-Cookie")); size > 4096 || len(person.Groups) < 10 {
		t.Errorf("the cookie has %d bytes and %d groups", size, len(person.Groups))
	}
}

// owners is a stub of a cluster. All its UserSettings belong to one owner.
type owners struct {
	cluster.API
	all []v1alpha1.UserSettings
}

func (o *owners) UsersByOwner(context.Context, string) ([]v1alpha1.UserSettings, error) {
	return o.all, nil
}

func TestSettingsThatAreBeingDeletedCannotBeUsed(t *testing.T) {
	settings := v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "ada"},
		Spec: v1alpha1.UserSettingsSpec{Owner: &v1alpha1.SettingsOwner{Username: "oidc:ada"}}}
	objects := &owners{all: []v1alpha1.UserSettings{settings}}
	if _, err := Authenticate(t.Context(), objects, Credential{Username: "oidc:ada"}); err != nil {
		t.Errorf("before: %v", err)
	}
	objects.all[0].DeletionTimestamp = ptr.To(metav1.Now())
	if _, err := Authenticate(t.Context(), objects, Credential{Username: "oidc:ada"}); !errors.Is(err, NoSettings) {
		t.Errorf("while they are being deleted: %v", err)
	}
}

func TestOnlyTrustedProxiesMayReportTheClientAddress(t *testing.T) {
	proxies, err := ParseProxies("10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, forwarded, want string }{
		{"203.0.113.1:1", "", "203.0.113.1"},
		{"203.0.113.1:1", "198.51.100.1", "203.0.113.1"},
		{"10.0.0.1:1", "198.51.100.1", "198.51.100.1"},
		{"10.0.0.1:1", "1.2.3.4, 198.51.100.1, 10.0.0.2", "198.51.100.1"},
		{"10.0.0.1:1", "nonsense", "10.0.0.1"},
		{"10.0.0.1:1", "198.51.100.1, nonsense", "10.0.0.1"},
		{"[::ffff:10.0.0.1]:1", "2001:db8::1", "2001:db8::1"},
		{"pipe", "198.51.100.1", ""},
		{"[2001:db8::1:2]:1", "", "2001:db8::1:2"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.from
		r.Header.Set("X-Forwarded-For", c.forwarded)
		if got := proxies.ClientAddress(r); got != c.want {
			t.Errorf("from %s with %q: %s, want %s", c.from, c.forwarded, got, c.want)
		}
	}
}
