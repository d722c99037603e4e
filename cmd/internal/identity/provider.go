package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
)

// ErrUnavailable means that a token could not be verified because the provider does not answer.
var ErrUnavailable = errors.New("the OpenID provider does not answer")

const (
	requestTimeout = 10 * time.Second
	// fetchInterval is the minimum average time between two requests for the provider's keys and
	// settings. fetchBurst is the number of requests that may be sent without a pause. Anybody can
	// cause such a request with a forged token that names an unknown key.
	fetchInterval = 2 * time.Second
	fetchBurst    = 5
)

// Provider is an OpenID provider. Parley contacts it at the first use, and can therefore start
// before the provider.
type Provider struct {
	Options Options
	client  *http.Client

	discovering singleflight.Group
	discovered  atomic.Pointer[discovered]
}

// discovered is the published configuration of a provider.
type discovered struct {
	endpoint   oauth2.Endpoint
	endSession string
	verifier   *oidc.IDTokenVerifier
}

// NewProvider returns the provider of the options. The caller must have called o.Check.
func NewProvider(o Options) (*Provider, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if o.CAFile != "" {
		certificates, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(certificates) {
			return nil, fmt.Errorf("--oidc-ca-file: %s contains no certificate", o.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	limited := &limitedTransport{transport, rate.NewLimiter(rate.Every(fetchInterval), fetchBurst)}
	return &Provider{Options: o, client: &http.Client{Transport: limited, Timeout: requestTimeout}}, nil
}

// limitedTransport limits the rate of GET requests, because unauthenticated clients can cause them.
// The exchange of a code for tokens is a POST request, which is not limited.
type limitedTransport struct {
	next  http.RoundTripper
	reads *rate.Limiter
}

func (t *limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && !t.reads.Allow() {
		return nil, errors.New("the rate limit for requests to the OpenID provider is reached")
	}
	return t.next.RoundTrip(r)
}

// discover reads the configuration of the provider one time. Concurrent callers share a request.
func (p *Provider) discover(ctx context.Context) (*discovered, error) {
	if found := p.discovered.Load(); found != nil {
		return found, nil
	}
	// A caller that disconnects must not cancel the shared request.
	shared := p.discovering.DoChan("", func() (any, error) { return p.read(context.WithoutCancel(ctx)) })
	select {
	case result := <-shared:
		if result.Err != nil {
			return nil, result.Err
		}
		return p.discovered.Load(), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
}

func (p *Provider) read(ctx context.Context) (*discovered, error) {
	provider, err := oidc.NewProvider(p.Context(ctx), p.Options.Issuer)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	var published struct {
		EndSession string `json:"end_session_endpoint"`
	}
	if err := provider.Claims(&published); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	found := &discovered{endpoint: provider.Endpoint(), endSession: published.EndSession,
		// checkUse checks the audience instead, because two clients are allowed.
		verifier: provider.Verifier(&oidc.Config{SkipClientIDCheck: true})}
	p.discovered.Store(found)
	return found, nil
}

// Endpoint returns the URLs of the provider for the sign-in.
func (p *Provider) Endpoint(ctx context.Context) (oauth2.Endpoint, error) {
	found, err := p.discover(ctx)
	if err != nil {
		return oauth2.Endpoint{}, err
	}
	return found.endpoint, nil
}

// EndSession returns the URL at which a browser ends its session at the provider; empty if the
// provider has none.
func (p *Provider) EndSession(ctx context.Context) string {
	found, err := p.discover(ctx)
	if err != nil {
		return ""
	}
	return found.endSession
}

// Context returns a context in which oauth2 uses the provider's HTTP client.
func (p *Provider) Context(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, p.client)
}

// Issued reports whether a token claims to come from the provider. The claim is not verified.
func (p *Provider) Issued(token string) bool { return issuerOf(token) == p.Options.Issuer }

// Verify returns the person of an ID token. The error is ErrUnavailable if the provider does not
// answer.
func (p *Provider) Verify(ctx context.Context, token string) (*Person, error) {
	if !p.Issued(token) {
		return nil, errors.New("the token is from another issuer")
	}
	found, err := p.discover(ctx)
	if err != nil {
		return nil, err
	}
	verified, err := found.verifier.Verify(ctx, token)
	switch {
	// go-oidc does not wrap the error of a request, so compare its text.
	case err != nil && strings.Contains(err.Error(), "fetching keys"):
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		return nil, err
	}
	return p.Options.person(token, verified)
}
