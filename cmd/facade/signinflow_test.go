package main

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/hack/test/openid"
)

// atProvider begins a sign-in and returns the URL to which the provider sends the browser back.
func (o *organisation) atProvider(t *testing.T, client *http.Client, claims openid.Claims) string {
	t.Helper()
	o.issuer.SetPerson(claims)
	back := ""
	stopping := *client
	stopping.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if strings.HasSuffix(r.URL.Path, "/api/signin/callback") {
			back = r.URL.String()
			return http.ErrUseLastResponse
		}
		return nil
	}
	visit(t, &stopping, o.facade.URL+"/api/signin/oidc?then=/%3Fa=1%26b=2")
	if back == "" {
		t.Fatal("the provider did not send the browser back")
	}
	return back
}

func TestASignInIsValidOnceAndOnlyInItsBrowser(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	o.settings(t, "ada", adaName, "")
	good := o.issuer.Claims("ada@example.com")
	signedIn := func(client *http.Client) bool { return cookies(t, client, o.facade.URL)["parley"] != "" }

	victim := browser(t)
	attackers := o.atProvider(t, browser(t), good)
	if code, _ := visit(t, victim, attackers); code != 400 || signedIn(victim) {
		t.Errorf("a sign-in of another browser is answered with %d", code)
	}
	o.atProvider(t, victim, good) // the victim has begun a sign-in of its own
	if code, _ := visit(t, victim, attackers); code != 400 || signedIn(victim) {
		t.Errorf("the state of another browser is answered with %d", code)
	}

	ada := browser(t)
	back := o.atProvider(t, ada, good)
	at, err := url.Parse(back)
	if err != nil {
		t.Fatal(err)
	}
	name := "parley-signin-" + at.Query().Get("state")
	flow := cookies(t, ada, o.facade.URL)[name]
	code, body := visit(t, ada, back)
	if code != 200 || !signedIn(ada) || !strings.Contains(body, `content="0;url=/?a=1&amp;b=2"`) {
		t.Errorf("a sign-in is answered with %d %s", code, body)
	}
	if code, _ := visit(t, ada, back); code != 400 {
		t.Errorf("a used state is answered with %d", code)
	}
	thief := browser(t)
	thief.Jar.SetCookies(at, []*http.Cookie{{Name: name, Value: flow, Path: "/"}})
	if code, _ := visit(t, thief, back); code != 401 || signedIn(thief) {
		t.Errorf("a used code is answered with %d", code)
	}
	o.withCookie("ada", flow).get(t, "/api/conversations").wants(t, 401)
}

// A browser may restore two tabs, and each of them signs in.
func TestTwoSignInsOfABrowserBothSucceed(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	ada, claims := browser(t), o.issuer.Claims("ada@example.com")
	attackers := o.atProvider(t, browser(t), claims)
	first, second := o.atProvider(t, ada, claims), o.atProvider(t, ada, claims)
	if code, _ := visit(t, ada, attackers); code != 400 {
		t.Errorf("a sign-in of another browser is answered with %d", code)
	}
	for name, back := range map[string]string{"first": first, "second": second} {
		if code, body := visit(t, ada, back); code != 200 {
			t.Errorf("the %s sign-in is answered with %d %s", name, code, body)
		}
	}
	for name := range cookies(t, ada, o.facade.URL) {
		if name != "parley" {
			t.Errorf("the browser still has the cookie %s", name)
		}
	}
}

func TestASignInFailsIfTheProvidersAnswerIsInvalid(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	good := o.issuer.Claims("ada@example.com")
	for name, c := range map[string]struct {
		claims openid.Claims
		change func(query url.Values)
		code   int
	}{
		"another nonce":      {claims: good.With("nonce", "other"), code: 401},
		"an empty nonce":     {claims: good.With("nonce", ""), code: 401},
		"an expired token":   {claims: good.With("exp", time.Now().Add(-time.Minute).Unix()), code: 401},
		"another audience":   {claims: good.With("aud", "other"), code: 401},
		"an unverified name": {claims: good.With("email_verified", false), code: 401},
		"a forged code":      {claims: good, change: func(q url.Values) { q.Set("code", "x") }, code: 401},
		"no code":            {claims: good, change: func(q url.Values) { q.Del("code") }, code: 401},
		"another state":      {claims: good, change: func(q url.Values) { q.Set("state", "x") }, code: 400},
		"no state":           {claims: good, change: func(q url.Values) { q.Del("state") }, code: 400},
		"another issuer":     {claims: good, change: func(q url.Values) { q.Set("iss", "https://evil.example") }, code: 400},
		"a refusal":          {claims: nil, code: 403},
	} {
		client := browser(t)
		back, err := url.Parse(o.atProvider(t, client, c.claims))
		if err != nil {
			t.Fatal(err)
		}
		query := back.Query()
		if c.change != nil {
			c.change(query)
		}
		back.RawQuery = query.Encode()
		code, body := visit(t, client, back.String())
		if code != c.code || cookies(t, client, o.facade.URL)["parley"] != "" || !strings.Contains(body, "Sign in again") {
			t.Errorf("%s is answered with %d %s, want %d", name, code, body, c.code)
		}
	}
	o.issuer.SetDown(true)
	if code, _ := visit(t, browser(t), o.facade.URL+"/api/signin/callback?state=x&code=y"); code != 400 {
		t.Errorf("without the provider, an unknown state is answered with %d", code)
	}
}

func TestASignInDoesNotRedirectToOtherSites(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, then := range []string{"//evil.example.com", `/\evil.example.com`, `\\evil.example.com`,
		"https://evil.example.com",
		"evil.example.com", "javascript:alert(1)", "/\t/evil.example.com", "/\n/evil.example.com", "///evil.example.com",
		"/" + strings.Repeat("x", 2000)} {
		if code, _ := visit(t, client, o.facade.URL+"/api/signin/oidc?then="+url.QueryEscape(then)); code != 400 {
			t.Errorf("then=%q is answered with %d", then, code)
		}
	}
	if code, _ := visit(t, client, o.facade.URL+"/api/signin/oidc?then=/conversations/a"); code != 302 {
		t.Errorf("a path of the page is answered with %d", code)
	}
	if code, _ := visit(t, client, stranger().url+"/api/signin/oidc"); code != 404 {
		t.Errorf("without a provider, a sign-in is answered with %d", code)
	}
	stranger().get(t, "/api/signin/options").wants(t, 200).says(t, `{"oidc": null}`)
}

func TestTheNextSignInUsesARotatedClientSecret(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	o.issuer.SetPerson(o.issuer.Claims("ada@example.com"))
	for _, c := range []struct {
		secret string
		code   int
	}{{openid.ClientSecret, 200}, {"of-yesterday", 401}, {openid.ClientSecret, 200}} {
		o.writeSecret(t, c.secret)
		if code, body := visit(t, browser(t), o.facade.URL+"/api/signin/oidc"); code != c.code {
			t.Errorf("a sign-in with the secret %s is answered with %d %s", c.secret, code, body)
		}
	}
	if strings.Contains(o.facade.Log.String(), openid.ClientSecret) {
		t.Error("the client secret is in the log")
	}
}

func TestErrorsAboutSignInOptionsContainTheFlag(t *testing.T) {
	t.Parallel()
	for flag, change := range map[string]func(*options){
		"":                  func(*options) {},
		"--oidc-issuer-url": func(o *options) { o.identity.Issuer = "ftp://issuer.example.com" },
		"--oidc-client-id":  func(o *options) { o.identity.ClientID = "" },
		"--oidc-ca-file":    func(o *options) { o.identity.CAFile = "/no/such/file" },
		"--oidc-scopes":     func(o *options) { o.scopes = "" },
		"--external-url":    func(o *options) { o.server.SignIn.ExternalURL = "parley.example.com" },
		"--onboarding-url":  func(o *options) { o.onboardingURL = "http://manager.example.com" },
	} {
		o := options{scopes: "openid", identity: identity.Options{Issuer: "https://issuer.example.com", ClientID: "parley",
			UsernameClaim: "email", UsernamePrefix: "oidc:", GroupsClaim: "groups", GroupsPrefix: "oidc:"}}
		change(&o)
		err := o.setUpSignIn()
		if (err == nil) != (flag == "") || err != nil && !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: the error is %v", flag, err)
		}
	}
}

// With --external-url, the host of a request does not matter.
func TestTheRedirectURIIsTheExternalURL(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t, "--external-url=https://parley.example.com/")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	request, err := http.NewRequestWithContext(t.Context(), "GET", o.facade.URL+"/api/signin/oidc", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "evil.example.com"
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	target, err := response.Location()
	if err != nil {
		t.Fatal(err)
	}
	query := target.Query()
	if got := query.Get("redirect_uri"); got != "https://parley.example.com/api/signin/callback" {
		t.Errorf("the redirect URI is %s", got)
	}
	for _, name := range []string{"state", "nonce", "code_challenge"} {
		if len(query.Get(name)) < 20 {
			t.Errorf("%s is %q", name, query.Get(name))
		}
	}
	if query.Get("code_challenge_method") != "S256" {
		t.Errorf("the challenge method is %s", query.Get("code_challenge_method"))
	}
}

// manager is a stub of the manager's onboarding. It creates settings for each group except the
// group "broken".
type manager struct {
	*organisation
	calls atomic.Int32
	down  atomic.Bool
	// caFile contains the certificate of the server.
	url, caFile string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{caFile: filepath.Join(t.TempDir(), "ca.crt")}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.calls.Add(1)
		var given struct{ Token string }
		if m.down.Load() || r.URL.Path != "/onboard" || json.NewDecoder(r.Body).Decode(&given) != nil {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		provider, err := identity.NewProvider(identity.Options{Issuer: m.issuer.URL, ClientID: openid.ClientID,
			UsernameClaim: "email", UsernamePrefix: "oidc:", GroupsClaim: "groups", GroupsPrefix: "oidc:"})
		if err != nil {
			t.Error(err)
			return
		}
		person, err := provider.Verify(r.Context(), given.Token)
		if err != nil {
			t.Error(err)
			return
		}
		settings := []map[string]string{}
		for _, group := range person.Groups {
			if group == "oidc:broken" {
				continue
			}
			name := strings.NewReplacer("oidc:", "", "@", "-", ".", "-").Replace(person.Username + "-" + group)
			m.settings(t, name, person.Username, group)
			settings = append(settings, map[string]string{"namespace": m.namespace, "name": name})
		}
		problems := []string{}
		if slices.Contains(person.Groups, "oidc:broken") {
			problems = append(problems, "<the group broken has no namespace>")
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"settings": settings, "problems": problems})
	}))
	t.Cleanup(server.Close)
	m.url = server.URL
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(m.caFile, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTheFirstSignInCreatesSettingsForThePerson(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	m.organisation = newOrganisation(t, "--onboarding-url="+m.url+"/onboard", "--onboarding-ca-file="+m.caFile)
	ada := m.signIn(t, "ada", m.issuer.Claims("ada@example.com", "red"))
	ada.post(t, "/api/conversations", "{}").wants(t, 200)

	// Concurrent first requests with a token cause only one onboarding.
	bob := m.bearer("bob", m.issuer.Token("bob@example.com", "blue"))
	before, codes := m.calls.Load(), make(chan int, 5)
	for range cap(codes) {
		go func() { codes <- bob.get(t, "/api/conversations").code }()
	}
	for range cap(codes) {
		if code := <-codes; code != 200 {
			t.Errorf("a first request is answered with %d", code)
		}
	}
	if got := m.calls.Load() - before; got != 1 {
		t.Errorf("bob was onboarded %d times", got)
	}
	// kubectl parley sends GET /api/session first, so this request must create settings too.
	cli := m.bearer("eve", m.issuer.Token("cli@example.com", "blue")).get(t, "/api/session").wants(t, 200)
	if listed := cli.field(t, "settings").([]any); len(listed) != 1 {
		t.Errorf("the session is %s", cli.body)
	}
	eve := m.bearer("eve", m.issuer.Token("eve@example.com"))
	before = m.calls.Load()
	for range 5 {
		eve.get(t, "/api/conversations").wants(t, 403)
	}
	if got := m.calls.Load() - before; got != 1 {
		t.Errorf("a person without groups was onboarded %d times", got)
	}
}

func TestAPersonWithATokenGetsTheSettingsOfANewGroup(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	m.organisation = newOrganisation(t, "--onboarding-url="+m.url+"/onboard", "--onboarding-ca-file="+m.caFile)
	m.settings(t, "ada", adaName, "oidc:red")
	old := m.bearer("ada", m.issuer.Token("ada@example.com", "red"))
	await(t, func() error { return codeOf(old.get(t, "/api/conversations"), 200) })
	ada := m.bearer("ada", m.issuer.Token("ada@example.com", "red", "blue"))
	for range 5 {
		session := ada.get(t, "/api/session").wants(t, 200)
		if !strings.Contains(session.body, "ada-example-com-blue") {
			t.Errorf("the session is %s", session.body)
		}
	}
	if got := m.calls.Load(); got != 1 {
		t.Errorf("the person was onboarded %d times", got)
	}
	m.down.Store(true)
	m.settings(t, "bob", bobName, "oidc:red")
	bob := m.bearer("bob", m.issuer.Token("bob@example.com", "red", "blue"))
	await(t, func() error { return codeOf(bob.get(t, "/api/conversations"), 200) })
	if session := bob.get(t, "/api/session").wants(t, 200); session.field(t, "user") != "bob" {
		t.Errorf("without the manager, the session is %s", session.body)
	}
}

func TestPeopleSeeWhyTheyHaveNoSettings(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	m.organisation = newOrganisation(t, "--onboarding-url="+m.url, "--onboarding-ca-file="+m.caFile)
	refused := m.bearer("ada", m.issuer.Token("ada@example.com", "broken")).get(t, "/api/conversations").wants(t, 403)
	if !strings.Contains(refused.body, "the group broken has no namespace") {
		t.Errorf("the answer is %s", refused.body)
	}
	m.issuer.SetPerson(m.issuer.Claims("bob@example.com", "broken"))
	code, body := visit(t, browser(t), m.facade.URL+"/api/signin/oidc")
	if code != 403 || !strings.Contains(body, "&lt;the group broken has no namespace&gt;") {
		t.Errorf("the sign-in is answered with %d %s", code, body)
	}
	// A problem of one group does not matter if the person has settings of another group.
	m.signIn(t, "eve", m.issuer.Claims("eve@example.com", "broken", "red")).get(t, "/api/conversations").wants(t, 200)
}

func TestPeopleWithSettingsSignInWithoutTheManager(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	m.organisation = newOrganisation(t, "--onboarding-url="+m.url, "--onboarding-ca-file="+m.caFile)
	m.down.Store(true)
	m.settings(t, "ada", adaName, "oidc:red")
	byToken := m.bearer("ada", m.issuer.Token("ada@example.com", "red"))
	await(t, func() error { return codeOf(byToken.get(t, "/api/conversations"), 200) })
	m.signIn(t, "ada", m.issuer.Claims("ada@example.com", "red")).get(t, "/api/conversations").wants(t, 200)

	bob := m.bearer("bob", m.issuer.Token("bob@example.com", "blue"))
	for range 2 { // the second request does not call the manager
		bob.get(t, "/api/conversations").wants(t, 503)
	}
	m.issuer.SetPerson(m.issuer.Claims("bob@example.com", "blue"))
	if code, _ := visit(t, browser(t), m.facade.URL+"/api/signin/oidc"); code != 503 {
		t.Errorf("a first sign-in without the manager is answered with %d", code)
	}
	m.down.Store(false)
	m.signIn(t, "bob", m.issuer.Claims("bob@example.com", "blue")).get(t, "/api/conversations").wants(t, 200)
}
