package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	requestTimeout = 20 * time.Second
	// maxPollInterval is the longest interval between two polls that a provider can demand, in
	// seconds.
	maxPollInterval = 60
)

var errEnded = errors.New("your sign-in has ended: run kubectl parley login")

// client follows no redirects, because their targets must not receive a token.
var client = &http.Client{Timeout: requestTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
	return http.ErrUseLastResponse
}}

// Prompt shows the person the page of the provider and the code to enter there. complete is the URL
// of a page on which the code is already entered; it may be empty.
type Prompt func(page, code, complete string)

type provider struct {
	oauth2.Config
	verifier   *oidc.IDTokenVerifier
	revocation string
}

// Secure reports whether tokens may be sent to a URL: over https, or on loopback.
func Secure(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	loopback := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	return u.Scheme == "https" || u.Scheme == "http" && loopback
}

// discover reads the published configuration of the login's provider.
func (l *Login) discover(ctx context.Context) (*provider, error) {
	if !Secure(l.Issuer) {
		return nil, errors.New("the facade's OpenID issuer is not an https URL")
	}
	found, err := oidc.NewProvider(ctx, l.Issuer)
	if err != nil {
		return nil, fmt.Errorf("the provider %s does not answer as an OpenID provider: %w", l.Issuer, cause(err))
	}
	var published struct {
		Revocation string `json:"revocation_endpoint"`
	}
	if err := found.Claims(&published); err != nil {
		return nil, fmt.Errorf("the configuration of the provider %s is invalid: %w", l.Issuer, err)
	}
	endpoint := found.Endpoint()
	endpoint.AuthStyle = oauth2.AuthStyleInParams // a public client has no secret
	for _, address := range []string{endpoint.TokenURL, endpoint.DeviceAuthURL, published.Revocation} {
		if address != "" && !Secure(address) {
			return nil, fmt.Errorf("the provider %s has an endpoint without https", l.Issuer)
		}
	}
	return &provider{Config: oauth2.Config{ClientID: l.ClientID, Endpoint: endpoint, Scopes: l.Scopes},
		verifier: found.Verifier(&oidc.Config{ClientID: l.ClientID}), revocation: published.Revocation}, nil
}

// SignIn signs a person in. The caller must first set the facade, the issuer, the client and the
// scopes of l. The person has to enter the shown code at the provider.
func (l *Login) SignIn(ctx context.Context, show Prompt) error {
	ctx = oidc.ClientContext(ctx, client)
	p, err := l.discover(ctx)
	if err != nil {
		return err
	}
	if p.Endpoint.DeviceAuthURL == "" {
		return fmt.Errorf("the provider %s offers no device flow: use a session key in $PARLEY_KEY", l.Issuer)
	}
	device, err := p.DeviceAuth(ctx)
	if err != nil {
		return fmt.Errorf("cannot sign in at %s: %w", l.Issuer, cause(err))
	}
	if !Secure(device.VerificationURI) || device.UserCode == "" {
		return fmt.Errorf("the provider %s sent no code, or no https page for entering the code", l.Issuer)
	}
	if !Secure(device.VerificationURIComplete) {
		device.VerificationURIComplete = ""
	}
	device.Interval = min(max(device.Interval, 0), maxPollInterval)
	show(device.VerificationURI, device.UserCode, device.VerificationURIComplete)
	token, err := p.DeviceAccessToken(ctx, device)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the code has expired: run kubectl parley login again")
	case err != nil:
		return fmt.Errorf("cannot sign in at %s: %w", l.Issuer, cause(err))
	}
	return l.take(ctx, p, token)
}

// take verifies the ID token of a response and stores the tokens. It stores the refresh token even
// if the ID token is invalid, because the provider may already have invalidated the previous
// refresh token.
func (l *Login) take(ctx context.Context, p *provider, token *oauth2.Token) error {
	l.RefreshToken = cmp.Or(token.RefreshToken, l.RefreshToken)
	encoded, _ := token.Extra("id_token").(string)
	if encoded == "" {
		return fmt.Errorf("the provider %s sent no ID token: run kubectl parley login again", l.Issuer)
	}
	verified, err := p.verifier.Verify(ctx, encoded)
	if err != nil {
		return fmt.Errorf("the provider %s sent an invalid ID token: %w", l.Issuer, err)
	}
	if l.Subject != "" && l.Subject != verified.Subject {
		return fmt.Errorf("the provider %s sent the token of another person: run kubectl parley login again", l.Issuer)
	}
	l.Subject, l.IDToken, l.Expires = verified.Subject, encoded, verified.Expiry
	return nil
}

func (l *Login) refresh(ctx context.Context) error {
	ctx = oidc.ClientContext(ctx, client)
	p, err := l.discover(ctx)
	if err != nil {
		return err
	}
	token, err := p.TokenSource(ctx, &oauth2.Token{RefreshToken: l.RefreshToken}).Token()
	if refused, is := errors.AsType[*oauth2.RetrieveError](err); is && refused.ErrorCode == "invalid_grant" {
		return errEnded
	}
	if err != nil {
		return fmt.Errorf("cannot refresh your sign-in at %s: %w", l.Issuer, cause(err))
	}
	return l.take(ctx, p, token)
}

// Revoke revokes the refresh token at the provider. revoked is false if the provider offers no
// revocation.
func (l *Login) Revoke(ctx context.Context) (revoked bool, err error) {
	ctx = oidc.ClientContext(ctx, client)
	p, err := l.discover(ctx)
	if err != nil || p.revocation == "" || l.RefreshToken == "" {
		return false, err
	}
	form := url.Values{"token": {l.RefreshToken}, "token_type_hint": {"refresh_token"}, "client_id": {l.ClientID}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.revocation, strings.NewReader(form.Encode()))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := client.Do(request)
	if err != nil {
		return false, cause(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return false, fmt.Errorf("the provider %s answered %s", l.Issuer, response.Status)
	}
	return true, nil
}

// WithOfflineAccess adds the scope that requests a refresh token.
func WithOfflineAccess(scopes []string) []string {
	if slices.Contains(scopes, oidc.ScopeOfflineAccess) {
		return scopes
	}
	return append(slices.Clone(scopes), oidc.ScopeOfflineAccess)
}

// cause returns a short form of an error. It leaves out the body of a response and the URL of a
// request, because they may contain secrets.
func cause(err error) error {
	if refused, is := errors.AsType[*oauth2.RetrieveError](err); is {
		text := cmp.Or(refused.ErrorCode, refused.Response.Status)
		return errors.New(strings.TrimSuffix(text+": "+refused.ErrorDescription, ": "))
	}
	if failed, is := errors.AsType[*url.Error](err); is {
		return failed.Err
	}
	return err
}
