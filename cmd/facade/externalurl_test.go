package main

import (
	"testing"

	"github.com/parley-dev/parley/cmd/internal/identity"
)

// Over http, other people on the network could read the code of a sign-in and the cookie.
func TestTheExternalURLMustBeHTTPSOrOnLoopback(t *testing.T) {
	t.Parallel()
	for external, accepted := range map[string]bool{"https://parley.example.com": true, "http://127.0.0.1:3000": true,
		"http://localhost:3000": true, "http://[::1]:3000": true, "http://parley.example.com": false,
		"http://10.0.0.1": false, "http://localhost.example.com": false, "https://ada@parley.example.com": false,
		"https://parley.example.com?a": false, "https:///": false} {
		for _, issuer := range []string{"", "https://issuer.example.com"} {
			o := options{scopes: "openid", identity: identity.Options{Issuer: issuer, ClientID: "parley",
				UsernameClaim: "email", UsernamePrefix: "oidc:", GroupsClaim: "groups", GroupsPrefix: "oidc:"}}
			o.server.SignIn.ExternalURL = external
			if err := o.setUpSignIn(); (err == nil) != accepted {
				t.Errorf("%s with the issuer %q: the error is %v", external, issuer, err)
			}
		}
	}
}
