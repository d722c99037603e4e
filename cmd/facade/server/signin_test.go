package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// rotating is a cluster with one user, whose session key the test can change.
type rotating struct {
	stubCluster
	key string
}

func (c *rotating) UsersByKeyHash(_ context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	if hash == auth.CredentialOf(c.key).KeyHash {
		return []v1alpha1.UserSettings{*stubSettings()}, nil
	}
	return nil, nil
}

type browser struct {
	t       *testing.T
	handler http.Handler
	// from is the client's address; forwarded is the protocol that a proxy reports.
	from, forwarded, origin string
	cookie                  *http.Cookie
	// key, if set, is sent instead of the cookie.
	key string
}

func newBrowser(t *testing.T, objects cluster.API, options Options) *browser {
	t.Helper()
	options.SigningKeyDir = signingKey(t)
	return &browser{t: t, handler: New(objects, options, prometheus.NewRegistry()), from: "10.0.0.1:1234",
		origin: "http://parley.example.com"}
}

func signingKey(t *testing.T) string {
	t.Helper()
	data, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, session.SigningPrivateKey), data[session.SigningPrivateKey],
		0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (b *browser) do(method, path, body string) (int, http.Header) {
	b.t.Helper()
	r := httptest.NewRequest(method, "http://parley.example.com"+path, strings.NewReader(body))
	r.RemoteAddr = b.from
	if b.forwarded != "" {
		r.Header.Set("X-Forwarded-Proto", b.forwarded)
	}
	if b.origin != "" {
		r.Header.Set("Origin", b.origin)
	}
	if b.cookie != nil {
		r.AddCookie(b.cookie)
	}
	if b.key != "" {
		r.Header.Set(rest.KeyHeader, b.key)
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	response := w.Result()
	_ = response.Body.Close()
	for _, cookie := range response.Cookies() {
		if b.cookie = cookie; cookie.MaxAge < 0 {
			b.cookie = nil
		}
	}
	return response.StatusCode, response.Header
}

func (b *browser) wants(code int, method, path, body string) http.Header {
	b.t.Helper()
	got, header := b.do(method, path, body)
	if got != code {
		b.t.Errorf("%s %s is answered with %d, want %d", method, path, got, code)
	}
	return header
}

func TestASignedInUserNeedsNoKey(t *testing.T) {
	b := newBrowser(t, &stubCluster{}, DefaultOptions())
	b.wants(401, "GET", "/api/conversations", "")
	b.wants(401, "POST", "/api/signin", `{"key": "wrong"}`)
	b.wants(422, "POST", "/api/signin", `{}`)
	b.wants(413, "POST", "/api/signin", `{"key": "`+strings.Repeat("x", maxSignIn)+`"}`)
	said := b.wants(200, "POST", "/api/signin", `{"key": "`+stubKey+`"}`).Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Max-Age=43200", "Path=/"} {
		if !strings.Contains(said, want) {
			t.Errorf("the cookie is %s, without %s", said, want)
		}
	}
	if strings.Contains(said, "Secure") || strings.Contains(said, stubKey) {
		t.Errorf("the cookie is %s", said)
	}
	b.wants(200, "GET", "/api/conversations", "")
	b.wants(200, "POST", "/api/settings", `{"language": "en"}`)
	kept := b.cookie
	b.wants(200, "POST", "/api/signout", "")
	if b.cookie != nil {
		t.Error("the cookie is still there")
	}
	b.wants(401, "GET", "/api/conversations", "")
	b.cookie = kept // a copy of the old cookie
	b.wants(401, "GET", "/api/conversations", "")
	b.wants(200, "POST", "/api/signout", "")
	b.cookie = &http.Cookie{Name: kept.Name, Value: kept.Value[:len(kept.Value)-2] + "AA"}
	b.wants(401, "GET", "/api/conversations", "")
}

func TestANewSessionKeyRevokesTheCookie(t *testing.T) {
	cluster := &rotating{key: stubKey}
	b := newBrowser(t, cluster, DefaultOptions())
	b.wants(200, "POST", "/api/signin", `{"key": "`+stubKey+`"}`)
	b.wants(200, "GET", "/api/conversations", "")
	cluster.key = "another"
	b.wants(401, "GET", "/api/conversations", "")
	b.wants(200, "GET", "/api/session", "")
}

func TestWritesWithACookieMustComeFromTheFacadesOwnPage(t *testing.T) {
	options := DefaultOptions()
	options.CORSOrigins = []string{"*"}
	b := newBrowser(t, &stubCluster{}, options)
	b.wants(200, "POST", "/api/signin", `{"key": "`+stubKey+`"}`)
	for _, origin := range []string{"", "null", "http://elsewhere.example.com", "http://parley.example.com.evil.example",
		"ftp://parley.example.com"} {
		b.origin = origin
		for method, path := range map[string]string{
			"POST": "/api/settings", "DELETE": "/api/conversations/x", "PATCH": "/api/conversations/x", "PUT": "/api/secrets/x",
		} {
			b.wants(403, method, path, "{}")
		}
		b.wants(403, "POST", "/api/signout", "")
		b.wants(403, "POST", "/api/signin", `{"key": "`+stubKey+`"}`)
		b.wants(403, "GET", "/socket.io/?EIO=4&transport=websocket&conversation_id=x", "")
		b.wants(200, "GET", "/api/conversations", "")
	}
}

// The facade does not check the origin of a request with a key, because another site can make a
// browser send the cookie, but not the key.
func TestAKeyIsAcceptedFromAnyOrigin(t *testing.T) {
	b := newBrowser(t, &stubCluster{}, DefaultOptions())
	r := httptest.NewRequest("POST", "http://parley.example.com/api/settings", strings.NewReader("{}"))
	r.Header.Set("Origin", "http://elsewhere.example.com")
	r.Header.Set(rest.KeyHeader, stubKey)
	w := httptest.NewRecorder()
	if b.handler.ServeHTTP(w, r); w.Code != 200 {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
}

func TestOnlyTrustedProxiesMayReportTLS(t *testing.T) {
	proxies, err := auth.ParseProxies("10.0.0.0/8, 192.168.0.1")
	if err != nil {
		t.Fatal(err)
	}
	options := DefaultOptions()
	options.TrustedProxies = proxies
	for from, secure := range map[string]bool{"10.1.2.3:1": true, "192.168.0.1:1": true, "192.168.0.2:1": false,
		"[::ffff:10.0.0.1]:1": true} {
		b := newBrowser(t, &stubCluster{}, options)
		b.from, b.forwarded, b.origin = from, "https", "https://parley.example.com"
		b.wants(200, "POST", "/api/signin", `{"key": "`+stubKey+`"}`)
		if b.cookie.Secure != secure || strings.HasPrefix(b.cookie.Name, "__Host-") != secure {
			t.Errorf("from %s the cookie is %s", from, b.cookie)
		}
		if b.wants(200, "GET", "/api/conversations", ""); secure {
			// An attacker can inject a page into a plain HTTP connection. The origin of this page
			// begins with http, not https, so the facade refuses its writes.
			b.origin = "http://parley.example.com"
			b.wants(403, "POST", "/api/settings", "{}")
		}
	}
	if _, err := auth.ParseProxies("10.0.0.0/99"); err == nil {
		t.Error("an invalid range is accepted")
	}
}

func TestSignInFailsWithoutASigningKey(t *testing.T) {
	b := newBrowser(t, &stubCluster{}, DefaultOptions())
	b.handler = New(&stubCluster{}, DefaultOptions(), prometheus.NewRegistry())
	b.wants(503, "POST", "/api/signin", `{"key": "`+stubKey+`"}`)
	b.wants(200, "GET", "/api/session", "")
}

// A copied cookie must not create sign-ins that are valid longer than the cookie.
func TestACookieCannotCreateASignInLink(t *testing.T) {
	b := newBrowser(t, &stubCluster{}, DefaultOptions())
	b.wants(200, "POST", "/api/signin", `{"key": "`+stubKey+`"}`)
	b.wants(403, "POST", "/api/signin/link", "")
	b.key = stubKey
	b.wants(200, "POST", "/api/signin/link", "")
}

// A second use of a link is the only sign that another person saw the link.
func TestReusedSignInLinksAreCounted(t *testing.T) {
	cluster := &lagging{}
	b := newBrowser(t, cluster, DefaultOptions())
	code, err := b.handler.(*Handler).server.cookies.Link(&auth.User{UID: "1"}, auth.CredentialOf(stubKey).KeyHash)
	if err != nil {
		t.Fatal(err)
	}
	body := `{"code": "` + code + `", "replace": true}`
	b.wants(200, "POST", "/api/signin", body)
	for failures := 1; failures <= 2; failures++ {
		b.wants(401, "POST", "/api/signin", body)
		if got := testutil.ToFloat64(b.handler.(*Handler).server.metrics.authFailures); got != float64(failures) {
			t.Errorf("after the link was used %d times, %v failures are counted", failures+1, got)
		}
		cluster.seen = true // the cache now shows that the link was used
	}
}

// Without a confirmation, a victim who follows an attacker's link would store keys in the
// attacker's account. A link therefore needs a confirmation even in a browser in which no user is
// signed in.
func TestALinkSignsAUserInOnlyAfterConsent(t *testing.T) {
	b := newBrowser(t, &crowd{}, DefaultOptions())
	code := func(user string) string {
		code, err := b.handler.(*Handler).server.cookies.Link(&auth.User{UID: types.UID(user)},
			auth.CredentialOf(user).KeyHash)
		if err != nil {
			t.Fatal(err)
		}
		return `{"code": "` + code + `"`
	}
	for _, before := range []string{"", "ada", "bob"} { // the signed-in user
		if b.cookie = nil; before != "" {
			b.wants(200, "POST", "/api/signin", code(before)+`, "replace": true}`)
		}
		cookie, bobs := b.cookie, code("bob")
		b.wants(409, "POST", "/api/signin", bobs+"}")
		b.wants(409, "POST", "/api/signin", bobs+`, "replace": false}`)
		b.wants(422, "POST", "/api/signin", bobs+`, "replace": []}`)
		if b.cookie != cookie {
			t.Errorf("after %q, a link signs in without consent", before)
		}
		// After the refusals, the link is still valid.
		b.wants(200, "POST", "/api/signin", bobs+`, "replace": true}`)
		if b.cookie == cookie {
			t.Error("bob is not signed in")
		}
	}
}

// lagging is a cluster whose cache does not show revoked sign-ins until seen is set.
type lagging struct {
	stubCluster
	seen bool
}

func (c *lagging) UsersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	users, err := c.stubCluster.UsersByKeyHash(ctx, hash)
	for i := range users {
		if !c.seen {
			users[i].Annotations = nil
		}
	}
	return users, err
}
