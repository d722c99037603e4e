package server

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/identity"
)

// SignInOptions configures the sign-in of people with an OpenID provider.
type SignInOptions struct {
	// Provider is nil if people do not sign in with a provider.
	Provider *identity.Provider
	// ClientSecretFile contains the secret of the page's OAuth client; empty if this client has no
	// secret.
	ClientSecretFile string
	Scopes           []string
	// ExternalURL is the URL at which browsers reach the facade; empty means the host of each
	// request.
	ExternalURL string
	// Onboarding creates the settings of people; nil if administrators create them.
	Onboarding Onboarder
}

const callbackPath = "/api/signin/callback"

// These are the responses to a refused sign-in. A person reads them in the browser.
var (
	notOffered  = answer.Refuse(http.StatusNotFound, "Parley is not configured for a sign-in with an OpenID provider")
	badThen     = answer.Refuse(http.StatusBadRequest, "The query parameter \"then\" must be a path of this site")
	badHost     = answer.Refuse(http.StatusBadRequest, "The host of the request is not valid")
	staleSignIn = answer.Refuse(http.StatusBadRequest, "The sign-in has expired, was already used, or began in another "+
		"browser")
	deniedSignIn = answer.Refuse(http.StatusForbidden, "The OpenID provider refused the sign-in")
	failedSignIn = answer.Refuse(http.StatusUnauthorized, "The answer of the OpenID provider is not valid")
)

var validHost = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]+)?$|^\[[0-9A-Fa-f:.]+\](:[0-9]+)?$`)

func (s *server) signInOptions(http.ResponseWriter, *http.Request) (any, error) {
	provider := s.options.SignIn.Provider
	if provider == nil {
		return rest.SignInOptions{}, nil
	}
	offered := &rest.OIDCOptions{Issuer: provider.Options.Issuer, Scopes: s.options.SignIn.Scopes}
	if id := provider.Options.CLIClientID; id != "" {
		offered.CLIClientID = &id
	}
	return rest.SignInOptions{OIDC: offered}, nil
}

func (s *server) beginSignIn(w http.ResponseWriter, r *http.Request) error {
	then := r.URL.Query().Get("then")
	if then == "" {
		then = "/"
	}
	switch {
	case s.options.SignIn.Provider == nil:
		return notOffered
	case !auth.LocalPath(then):
		return badThen
	}
	flow := auth.Flow{ID: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Then: then}
	origin := s.options.SignIn.ExternalURL
	if origin == "" {
		if !validHost.MatchString(r.Host) {
			return badHost
		}
		origin = s.cookies.Origin(r)
	}
	flow.RedirectURI = strings.TrimSuffix(origin, "/") + callbackPath
	config, err := s.oauth(r.Context(), flow.RedirectURI)
	if err != nil {
		return err
	}
	if err := s.cookies.SetFlow(w, r, flow); err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, config.AuthCodeURL(flow.ID, oidc.Nonce(flow.Nonce), oauth2.S256ChallengeOption(flow.Verifier)),
		http.StatusFound)
	return nil
}

// oauth returns the configuration of the page's OAuth client. It reads the client's secret from the
// file each time, because the secret may have been rotated.
func (s *server) oauth(ctx context.Context, redirectURI string) (*oauth2.Config, error) {
	options := s.options.SignIn
	endpoint, err := options.Provider.Endpoint(ctx)
	if err != nil {
		logf.FromContext(ctx).Info("The OpenID provider does not answer", "reason", err.Error())
		return nil, auth.ProviderDown
	}
	config := &oauth2.Config{ClientID: options.Provider.Options.ClientID, Endpoint: endpoint, RedirectURL: redirectURI,
		Scopes: options.Scopes}
	if options.ClientSecretFile == "" {
		config.Endpoint.AuthStyle = oauth2.AuthStyleInParams
		return config, nil
	}
	secret, err := os.ReadFile(options.ClientSecretFile)
	if err != nil {
		logf.FromContext(ctx).Error(err, "Cannot read --oidc-client-secret-file")
		return nil, answer.Later(http.StatusServiceUnavailable, "The facade has no client secret yet; retry later",
			5*time.Second)
	}
	config.ClientSecret = strings.TrimSpace(string(secret))
	return config, nil
}

// finishSignIn exchanges the provider's code for an ID token and gives the person the cookie. The
// cookie is SameSite=Strict: browsers do not send it after a redirect that began at the provider.
// The response is therefore a document that navigates to the page, and not a redirect.
func (s *server) finishSignIn(w http.ResponseWriter, r *http.Request) error {
	if s.options.SignIn.Provider == nil {
		return notOffered
	}
	query := r.URL.Query()
	flow, valid := s.cookies.TakeFlow(w, r, query.Get("state"))
	issuer := query.Get("iss")
	switch {
	case !valid, issuer != "" && issuer != s.options.SignIn.Provider.Options.Issuer:
		return staleSignIn
	case query.Get("error") != "":
		return deniedSignIn
	}
	if err := s.tokens.AdmitStranger(s.options.TrustedProxies.ClientNetwork(r)); err != nil {
		return err
	}
	token, person, err := s.exchange(r.Context(), flow, query.Get("code"))
	if err != nil {
		return err
	}
	credential := auth.Credential{Method: auth.ByOIDC, ID: flow.ID, Username: person.Username, Groups: person.Groups,
		Expires: person.Expires, Token: token}
	note(r, func(n *noted) { n.credential = credential })
	if credential, err = s.settle(r, credential); err != nil {
		return err
	}
	if err := s.cookies.SetPerson(w, r, credential); err != nil {
		return err
	}
	writeDocument(w, http.StatusOK, flow.Then, "You are signed in.", "Continue")
	return nil
}

// exchange returns the ID token for a code, and the person of the token.
func (s *server) exchange(ctx context.Context, flow *auth.Flow, code string) (string, *identity.Person, error) {
	config, err := s.oauth(ctx, flow.RedirectURI)
	if err != nil {
		return "", nil, err
	}
	provider, log := s.options.SignIn.Provider, logf.FromContext(ctx)
	tokens, err := config.Exchange(provider.Context(ctx), code, oauth2.VerifierOption(flow.Verifier))
	if err != nil {
		refused, is := errors.AsType[*oauth2.RetrieveError](err)
		if !is || refused.Response.StatusCode >= http.StatusInternalServerError {
			log.Info("The OpenID provider does not answer", "error", fmt.Sprintf("%T", err))
			return "", nil, auth.ProviderDown
		}
		log.Info("The OpenID provider refused a code", "reason", refused.ErrorCode)
		s.metrics.authFailures.Inc()
		return "", nil, failedSignIn
	}
	token, _ := tokens.Extra("id_token").(string)
	person, err := provider.Verify(ctx, token)
	switch {
	case errors.Is(err, identity.ErrUnavailable):
		return "", nil, auth.ProviderDown
	case err == nil && subtle.ConstantTimeCompare([]byte(person.Nonce), []byte(flow.Nonce)) != 1:
		err = errors.New("the token has an unexpected nonce")
	}
	if err != nil {
		log.Info("Refused an ID token", "reason", err.Error())
		s.metrics.authFailures.Inc()
		return "", nil, failedSignIn
	}
	return token, person, nil
}

// settle onboards the person, and chooses the UserSettings if the person may use exactly one. It
// reduces the groups to those that the person's settings require. It ignores a failed onboarding if
// the person has usable settings, so that the person can sign in while the manager is down.
func (s *server) settle(r *http.Request, credential auth.Credential) (auth.Credential, error) {
	onboarding := s.onboard(r.Context(), credential)
	owned, err := auth.Owned(r.Context(), s.cluster, credential.Username)
	if err != nil {
		return credential, err
	}
	usable, err := auth.Usable(r.Context(), s.cluster, credential)
	switch {
	case errors.Is(err, answer.Unauthorized): // the sign-in was revoked by a sign-out
		return credential, staleSignIn
	case err != nil:
		return credential, err
	case len(usable) == 0 && onboarding != nil:
		return credential, onboarding
	case len(usable) == 1:
		credential.Settings.Namespace, credential.Settings.Name = usable[0].Namespace, usable[0].Name
		note(r, func(n *noted) { n.user = credential.Settings })
	}
	credential.Groups = auth.GroupsOf(owned, credential.Groups)
	return credential, nil
}

// endSessionURL returns the URL at which a browser ends its session at the provider; empty if the
// provider has no such URL or does not answer.
func (s *server) endSessionURL(ctx context.Context) string {
	provider := s.options.SignIn.Provider
	if provider == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	target, err := url.Parse(provider.EndSession(ctx))
	if err != nil || target.Host == "" || !slices.Contains([]string{"https", "http"}, target.Scheme) {
		return ""
	}
	query := target.Query()
	query.Set("client_id", provider.Options.ClientID)
	target.RawQuery = query.Encode()
	return target.String()
}

// writeFailure shows the reason of a failed sign-in.
func writeFailure(w http.ResponseWriter, err error) {
	if refusal, is := errors.AsType[*answer.Refusal](err); is {
		refusal.SetHeader(w)
	}
	writeDocument(w, answer.CodeOf(err), "", userMessage(err).Error()+".", "Sign in again")
}

// writeDocument sends a document with a sentence and a link. If path is not empty, the document
// navigates to path.
func writeDocument(w http.ResponseWriter, code int, path, sentence, link string) {
	refresh, target := "", "/signin"
	if path != "" {
		target = path
		refresh = `<meta http-equiv="refresh" content="0;url=` + html.EscapeString(path) + `">`
	}
	answer.Head(w, "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; frame-ancestors 'none'")
	w.Header().Set("Referrer-Policy", "no-referrer") // the request's URL contains the provider's code
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Parley</title>%s"+
		"</head><body><p>%s</p><p><a href=\"%s\">%s</a></p></body></html>\n", refresh, html.EscapeString(sentence),
		html.EscapeString(target), link) // fails only if the client is gone
}
