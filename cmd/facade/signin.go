package main

import (
	"errors"
	"flag"

	"github.com/parley-dev/parley/cmd/facade/onboarding"
	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/cmd/internal/startup"
)

func (o *options) addSignInFlags() {
	o.identity.AddFlags(flag.CommandLine)
	flag.StringVar(&o.server.SignIn.ClientSecretFile, "oidc-client-secret-file", "", "The file with the secret of the "+
		"page's client. It is read at each sign-in. Default: the client has no secret.")
	flag.StringVar(&o.scopes, "oidc-scopes", "openid,profile,email,groups", "The scopes to request, separated by commas.")
	flag.StringVar(&o.server.SignIn.ExternalURL, "external-url", "", "The https URL at which browsers open the page. "+
		"At the provider, register the redirect URI: this URL followed by /api/signin/callback. Default: the host of each "+
		"request.")
	flag.StringVar(&o.onboardingURL, "onboarding-url", "", "The https URL at which the manager creates the settings of "+
		"people who sign in. Default: administrators create them.")
	flag.StringVar(&o.onboardingCA, "onboarding-ca-file", "", "The file with the certificates of the manager's "+
		"authorities. No other authority is trusted. It is read for each connection. Default: the system's authorities.")
	flag.StringVar(&o.auditLog, "audit-log", "stdout", "The file of the audit log, which records changes as JSON lines; "+
		"stdout means standard output. Empty means no audit log.")
}

// setUpSignIn checks the flags of the sign-in and prepares the provider. It does not contact the
// provider.
func (o *options) setUpSignIn() (err error) {
	signIn := &o.server.SignIn
	if signIn.ExternalURL != "" && !identity.SecureURL(signIn.ExternalURL) {
		return errors.New("--external-url must be an https URL; http is allowed on loopback only")
	}
	if err := o.identity.Check(); err != nil || o.identity.Issuer == "" {
		return err
	}
	if signIn.Scopes = startup.SplitList(o.scopes); len(signIn.Scopes) == 0 {
		return errors.New("--oidc-scopes must not be empty")
	}
	if signIn.Provider, err = identity.NewProvider(o.identity); err != nil {
		return err
	}
	if o.onboardingURL != "" {
		signIn.Onboarding, err = onboarding.New(o.onboardingURL, o.onboardingCA)
	}
	return err
}
