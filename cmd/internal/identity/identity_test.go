package identity_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/hack/test/openid"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func options(issuer string) identity.Options {
	return identity.Options{Issuer: issuer, ClientID: openid.ClientID, CLIClientID: openid.CLIClientID,
		UsernameClaim: "email", UsernamePrefix: "oidc:", GroupsClaim: "groups", GroupsPrefix: "oidc:"}
}

func provider(t *testing.T, o identity.Options) *identity.Provider {
	t.Helper()
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	p, err := identity.NewProvider(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestATokenIdentifiesAPersonAndTheirGroups(t *testing.T) {
	issuer := openid.Start(t)
	p := provider(t, options(issuer.URL))
	person, err := p.Verify(t.Context(), issuer.Token("ada@example.com", "red", "blue"))
	if err != nil {
		t.Fatal(err)
	}
	if person.Username != "oidc:ada@example.com" || !slices.Equal(person.Groups, []string{"oidc:red", "oidc:blue"}) ||
		person.Email != "ada@example.com" || time.Until(person.Expires) > time.Hour {
		t.Errorf("the person is %+v", person)
	}
	claims := issuer.Claims("ada@example.com")
	for name, token := range map[string]string{
		"of the CLI":                issuer.Sign(claims.With("aud", openid.CLIClientID)),
		"with a single group":       issuer.Sign(claims.With("groups", "red")),
		"without groups":            issuer.Sign(claims.With("groups", nil)),
		"of two audiences and azp":  issuer.Sign(claims.With("aud", []string{"x", "parley"}).With("azp", "parley")),
		"with \"true\" as a string": issuer.Sign(claims.With("email_verified", "true")),
	} {
		if _, err := p.Verify(t.Context(), token); err != nil {
			t.Errorf("a token %s is refused: %v", name, err)
		}
	}
}

func TestInvalidTokensAreRefused(t *testing.T) {
	issuer := openid.Start(t)
	p := provider(t, options(issuer.URL))
	good := issuer.Claims("ada@example.com", "red")
	if _, err := p.Verify(t.Context(), issuer.Sign(good)); err != nil {
		t.Fatal(err)
	}
	header, rest, _ := strings.Cut(issuer.Sign(good), ".")
	_, signature, _ := strings.Cut(rest, ".")
	_, other, _ := strings.Cut(issuer.Token("eve@example.com"), ".")
	payload, _, _ := strings.Cut(other, ".")
	for name, token := range map[string]string{
		"that expired":                      issuer.Sign(good.With("exp", time.Now().Add(-time.Second).Unix())),
		"without an expiry":                 issuer.Sign(good.With("exp", nil)),
		"that is not valid yet":             issuer.Sign(good.With("nbf", time.Now().Add(time.Hour).Unix())),
		"of another audience":               issuer.Sign(good.With("aud", "other")),
		"without an audience":               issuer.Sign(good.With("aud", nil)),
		"of two audiences without azp":      issuer.Sign(good.With("aud", []string{"parley", "other"})),
		"issued to another client":          issuer.Sign(good.With("azp", "other")),
		"of another issuer":                 issuer.Sign(good.With("iss", "https://other.example.com")),
		"of an unknown key":                 issuer.SignUnknown(good),
		"with a forged signature":           issuer.Forge(good),
		"with another person's payload":     header + "." + payload + "." + signature,
		"without a signature":               issuer.SignNone(good),
		"signed with the public key (HMAC)": issuer.SignHMAC(good),
		"that is an access token":           issuer.SignAs("at+jwt", good),
		"that is a logout token":            issuer.SignAs("logout+jwt", good),
		"that is an untyped logout token":   issuer.Sign(good.With("events", map[string]any{"logout": map[string]any{}})),
		"without email_verified":            issuer.Sign(good.With("email_verified", nil)),
		"of an unverified address":          issuer.Sign(good.With("email_verified", false)),
		"with \"yes\" as email_verified":    issuer.Sign(good.With("email_verified", "yes")),
		"without a name":                    issuer.Sign(good.With("email", nil)),
		"with a name that is a list":        issuer.Sign(good.With("email", []string{"ada@example.com"})),
		"with a name that is too long":      issuer.Sign(good.With("email", strings.Repeat("a", 300))),
		"with a name of several lines":      issuer.Sign(good.With("email", "ada\nadmin")),
		"with groups that are objects":      issuer.Sign(good.With("groups", []map[string]string{{"name": "red"}})),
		"with too many groups":              issuer.Sign(good.With("groups", make([]string, 1001))),
		"that is not a token":               "x", "that is empty": "",
	} {
		if person, err := p.Verify(t.Context(), token); err == nil || errors.Is(err, identity.ErrUnavailable) {
			t.Errorf("a token %s is answered with %+v, %v", name, person, err)
		}
	}
}

func TestUnverifiedEmailAddressesBecomeUsernamesOnlyIfAllowed(t *testing.T) {
	issuer := openid.Start(t)
	claims := issuer.Claims("ada@example.com")
	var allowing identity.Options
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	allowing.AddFlags(flags)
	if err := flags.Parse([]string{"--oidc-issuer-url=" + issuer.URL, "--oidc-client-id=" + openid.ClientID,
		"--oidc-allow-unverified-email"}); err != nil {
		t.Fatal(err)
	}
	bySubject := options(issuer.URL)
	bySubject.UsernameClaim = "sub"
	for name, c := range map[string]struct {
		options  identity.Options
		verified any
		accepted bool
	}{
		"allowed, without the claim":   {allowing, nil, true},
		"allowed, but false":           {allowing, false, false},
		"allowed, but null":            {allowing, json.RawMessage("null"), false},
		"not the username, and absent": {bySubject, nil, true},
		"not the username, but false":  {bySubject, false, true},
	} {
		person, err := provider(t, c.options).Verify(t.Context(), issuer.Sign(claims.With("email_verified", c.verified)))
		if (err == nil) != c.accepted {
			t.Errorf("%s: the error is %v", name, err)
		}
		if err == nil && person.Email != "" {
			t.Errorf("%s: the address %s counts as verified", name, person.Email)
		}
	}
}

// Kubernetes gives rights to users and groups whose names begin with system:.
func TestATokenCannotGiveAPersonAReservedKubernetesName(t *testing.T) {
	issuer := openid.Start(t)
	for _, prefix := range []string{"", "system:", "sys", "system:masters"} {
		o := options(issuer.URL)
		o.UsernamePrefix = prefix
		if o.Check() == nil {
			t.Errorf("the username prefix %q is accepted", prefix)
		}
		o = options(issuer.URL)
		o.GroupsPrefix = prefix
		if o.Check() == nil {
			t.Errorf("the groups prefix %q is accepted", prefix)
		}
	}
	p := provider(t, options(issuer.URL))
	if person, err := p.Verify(t.Context(), issuer.Sign(issuer.Claims("system:admin"))); err == nil {
		t.Errorf("the person is %+v", person)
	}
	person, err := p.Verify(t.Context(), issuer.Sign(issuer.Claims("ada@example.com", "system:masters", "red")))
	if err != nil || !slices.Equal(person.Groups, []string{"oidc:red"}) {
		t.Errorf("the person is %+v, %v", person, err)
	}
}

func TestANewKeyOfTheIssuerIsAcceptedWithoutARestart(t *testing.T) {
	issuer := openid.Start(t)
	p := provider(t, options(issuer.URL))
	before := issuer.Token("ada@example.com")
	if _, err := p.Verify(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	issuer.Rotate()
	if _, err := p.Verify(t.Context(), issuer.Token("ada@example.com")); err != nil {
		t.Errorf("a token of the new key is refused: %v", err)
	}
	// Verify may have returned before the library stored the new keys. Until they are stored, the
	// library still accepts the removed key, so the test repeats this check.
	testenv.Await(t, func() error {
		if _, err := p.Verify(t.Context(), before); err == nil {
			return errors.New("a token of the removed key is accepted")
		}
		return nil
	})
}

func TestAnIssuerThatIsDownIsReportedAsUnavailable(t *testing.T) {
	issuer := openid.Start(t)
	p := provider(t, options(issuer.URL))
	issuer.SetDown(true)
	token := issuer.Token("ada@example.com")
	if _, err := p.Verify(t.Context(), token); !errors.Is(err, identity.ErrUnavailable) {
		t.Errorf("before the discovery: %v", err)
	}
	issuer.SetDown(false)
	if _, err := p.Verify(t.Context(), token); err != nil {
		t.Errorf("after its return: %v", err)
	}
	issuer.SetDown(true)
	if _, err := p.Verify(t.Context(), token); err != nil {
		t.Errorf("with known keys: %v", err)
	}
	issuer.Rotate()
	if _, err := p.Verify(t.Context(), issuer.Token("ada@example.com")); !errors.Is(err, identity.ErrUnavailable) {
		t.Errorf("with an unknown key: %v", err)
	}
}

// An issuer that does not answer must not block callers longer than they want to wait.
func TestTheWaitForTheIssuerEndsWithTheCallersContext(t *testing.T) {
	issuer := openid.Start(t)
	p := provider(t, options(issuer.URL))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Verify(ctx, issuer.Token("ada@example.com")); !errors.Is(err, identity.ErrUnavailable) {
		t.Errorf("the error is %v", err)
	}
	if _, err := p.Verify(t.Context(), issuer.Token("ada@example.com")); err != nil {
		t.Errorf("another caller fails: %v", err)
	}
}

func TestForgedTokensCauseFewRequestsToTheIssuer(t *testing.T) {
	issuer := openid.Start(t)
	p := provider(t, options(issuer.URL))
	token := issuer.SignUnknown(issuer.Claims("ada@example.com"))
	for range 100 {
		if _, err := p.Verify(t.Context(), token); err == nil {
			t.Fatal("the token is accepted")
		}
	}
	if got := issuer.Requests("/keys"); got > 10 {
		t.Errorf("the issuer got %d requests for its keys", got)
	}
	if _, err := p.Verify(t.Context(), issuer.Token("ada@example.com")); err != nil {
		t.Errorf("a valid token is refused: %v", err)
	}
}

func TestErrorsAboutOptionsContainTheFlag(t *testing.T) {
	for flag, change := range map[string]func(*identity.Options){
		"--oidc-issuer-url":      func(o *identity.Options) { o.Issuer = "http://issuer.example.com" },
		"--oidc-client-id":       func(o *identity.Options) { o.ClientID = "" },
		"--oidc-username-claim":  func(o *identity.Options) { o.UsernameClaim = "" },
		"--oidc-groups-claim":    func(o *identity.Options) { o.GroupsClaim = "" },
		"--oidc-username-prefix": func(o *identity.Options) { o.UsernamePrefix = "" },
	} {
		o := options("https://issuer.example.com")
		if err := o.Check(); err != nil {
			t.Fatal(err)
		}
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: the error is %v", flag, err)
		}
	}
	none := identity.Options{}
	if err := none.Check(); err != nil {
		t.Errorf("without a provider: %v", err)
	}
}
