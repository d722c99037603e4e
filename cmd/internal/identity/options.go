// Package identity verifies the tokens of an OpenID provider.
package identity

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Options describe an OpenID provider and the claims of its ID tokens. An empty Issuer means that
// there is no provider.
type Options struct {
	Issuer string
	// ClientID is the OpenID client that the page uses. CLIClientID is the public client that
	// kubectl parley login uses.
	ClientID, CLIClientID         string
	UsernameClaim, UsernamePrefix string
	GroupsClaim, GroupsPrefix     string
	// AllowUnverifiedEmail accepts tokens without the claim email_verified if the username claim is
	// email. A token with email_verified set to false is still refused.
	AllowUnverifiedEmail bool
	// CAFile holds the only CA certificates that are trusted for the provider; empty means the
	// system's certificates.
	CAFile string
}

// AddFlags adds the flags of the options. The API server has flags with the same names. With the
// same values, a person has the same name in Kubernetes and in Parley.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.Issuer, "oidc-issuer-url", "", "The https URL of the OpenID provider with which people sign in. "+
		"Default: people do not sign in with a provider.")
	flags.StringVar(&o.ClientID, "oidc-client-id", "", "The client ID of the page at the provider.")
	flags.StringVar(&o.CLIClientID, "oidc-cli-client-id", "", "The client ID of kubectl parley login at the "+
		"provider: a public client, without a secret.")
	flags.StringVar(&o.UsernameClaim, "oidc-username-claim", "email", "The claim of ID tokens that holds the username.")
	flags.StringVar(&o.UsernamePrefix, "oidc-username-prefix", "oidc:", "The prefix added to the provider's usernames.")
	flags.StringVar(&o.GroupsClaim, "oidc-groups-claim", "groups", "The claim of ID tokens that holds the groups.")
	flags.StringVar(&o.GroupsPrefix, "oidc-groups-prefix", "oidc:", "The prefix added to the provider's groups.")
	flags.BoolVar(&o.AllowUnverifiedEmail, "oidc-allow-unverified-email", false, "Accept email addresses as usernames if "+
		"the provider never sends the claim email_verified. Set this flag only if people cannot choose their own address.")
	flags.StringVar(&o.CAFile, "oidc-ca-file", "", "The file with the certificates of the provider's authorities. No "+
		"other authority is trusted. Default: the system's authorities.")
}

// Check returns an error that names the first invalid flag.
func (o *Options) Check() error {
	if o.Issuer == "" {
		return nil
	}
	if !SecureURL(o.Issuer) {
		return errors.New("--oidc-issuer-url must be an https URL; http is allowed on loopback only")
	}
	if o.ClientID == "" {
		return errors.New("--oidc-issuer-url needs --oidc-client-id")
	}
	for name, value := range map[string]string{"username-claim": o.UsernameClaim, "groups-claim": o.GroupsClaim} {
		if value == "" {
			return fmt.Errorf("--oidc-%s must not be empty", name)
		}
	}
	for name, prefix := range map[string]string{"username-prefix": o.UsernamePrefix, "groups-prefix": o.GroupsPrefix} {
		if prefix == "" || strings.HasPrefix(prefix, reserved) || strings.HasPrefix(reserved, prefix) {
			return fmt.Errorf("--oidc-%s must not be empty, must not begin with %s, and must not be the beginning of %[2]s",
				name, reserved)
		}
	}
	return nil
}

// SecureURL reports whether a text is an https URL, or an http URL on loopback. The URL must not
// contain a user, query or fragment.
func SecureURL(text string) bool {
	parsed, err := url.Parse(text)
	return err == nil && parsed.Host != "" && parsed.User == nil && parsed.RawQuery == "" && parsed.Fragment == "" &&
		(parsed.Scheme == "https" || parsed.Scheme == "http" && loopback(parsed.Hostname()))
}

func loopback(host string) bool {
	address := net.ParseIP(host)
	return host == "localhost" || address != nil && address.IsLoopback()
}
