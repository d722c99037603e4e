package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

const (
	// trustFor is the time for which the result of a verification is reused.
	trustFor = 10 * time.Second
	// maxTokens limits the verified tokens in memory.
	maxTokens = 10000
	// maxToken is the largest length of a token, in bytes.
	maxToken = 16 << 10
	// newTokens limits the unknown tokens that are verified per second. addressTokens is the same
	// limit for each client address. Everybody can send unknown tokens, and each of them costs CPU
	// time or a request to the API server.
	newTokens, newTokensBurst         = 200, 600
	addressTokens, addressTokensBurst = 20, 300

	verifyTimeout        = 10 * time.Second
	serviceAccountPrefix = "system:serviceaccount:"
)

// strangersBusy is the response to unknown clients while all of them together send too many
// requests.
var strangersBusy = answer.Later(http.StatusServiceUnavailable, "Too many sign-ins; retry later", time.Second)

// ProviderDown is the response while the OpenID provider does not answer.
var ProviderDown = answer.Later(http.StatusServiceUnavailable, "The OpenID provider does not answer; retry later",
	5*time.Second)

// Tokens verifies ID tokens of people and tokens of ServiceAccounts.
type Tokens struct {
	// Provider is nil if people do not sign in with a provider.
	Provider  *identity.Provider
	objects   cluster.API
	all       *rate.Limiter
	addresses *limits.Budget
	checking  singleflight.Group

	mu       sync.Mutex
	verified map[[sha256.Size]byte]verified
}

type verified struct {
	Credential
	at time.Time
}

// NewTokens returns Tokens with an empty cache. provider may be nil.
func NewTokens(provider *identity.Provider, objects cluster.API) *Tokens {
	return &Tokens{Provider: provider, objects: objects, all: rate.NewLimiter(newTokens, newTokensBurst),
		addresses: limits.New(limits.Options{Rate: addressTokens, Burst: addressTokensBurst}),
		verified:  map[[sha256.Size]byte]verified{}}
}

// BearerOf returns the token in the Authorization header of a request; empty if there is none.
func BearerOf(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// AdmitStranger counts an expensive request of an unknown client. It refuses the request if the
// client address, or all addresses together, sent too many such requests.
func (t *Tokens) AdmitStranger(address string) error {
	if err := t.addresses.Count(address, 1); err != nil {
		return err
	}
	if !t.all.Allow() {
		return strangersBusy
	}
	return nil
}

// Credential verifies a token from a client address and returns its credential. The limits on
// unknown tokens do not apply to a token that was valid before.
func (t *Tokens) Credential(ctx context.Context, token, address string) (Credential, error) {
	if len(token) > maxToken || strings.Count(token, ".") != 2 {
		return Credential{}, answer.Unauthorized
	}
	hash, now := sha256.Sum256([]byte(token)), time.Now()
	t.mu.Lock()
	known, found := t.verified[hash]
	t.mu.Unlock()
	switch {
	case found && now.Sub(known.at) < trustFor && (known.Expires.IsZero() || now.Before(known.Expires)):
		return known.Credential, nil
	case !found:
		if err := t.AdmitStranger(address); err != nil {
			return Credential{}, err
		}
	}
	// Requests with the same token share one verification. A cancelled request must not cancel the
	// verification.
	result, err, _ := t.checking.Do(string(hash[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyTimeout)
		defer cancel()
		credential, err := t.verify(ctx, token)
		t.remember(hash, credential, err)
		return credential, err
	})
	if err != nil {
		return Credential{}, err
	}
	return result.(Credential), nil
}

func (t *Tokens) verify(ctx context.Context, token string) (Credential, error) {
	if t.Provider != nil && t.Provider.Issued(token) {
		person, err := t.Provider.Verify(ctx, token)
		switch {
		case errors.Is(err, identity.ErrUnavailable):
			return Credential{}, ProviderDown
		case err != nil:
			logf.FromContext(ctx).Info("Refused an ID token", "reason", err.Error())
			return Credential{}, answer.Unauthorized
		}
		return Credential{Method: ByOIDC, Username: person.Username, Groups: person.Groups, Expires: person.Expires,
			Token: token}, nil
	}
	username, groups, err := t.objects.ReviewToken(ctx, token)
	switch {
	case err != nil:
		logf.FromContext(ctx).Info("Cannot review a token", "reason", cluster.Reason(err))
		return Credential{}, answer.Unavailable
	case !strings.HasPrefix(username, serviceAccountPrefix):
		// Accept only ServiceAccounts: another Kubernetes user could have the same username as a
		// person.
		return Credential{}, answer.Unauthorized
	}
	return Credential{Method: ByKubernetes, Username: username, Groups: groups, Token: token}, nil
}

// remember stores a valid token and forgets an invalid token. If there are too many tokens, it
// forgets arbitrary tokens.
func (t *Tokens) remember(hash [sha256.Size]byte, credential Credential, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if errors.Is(err, answer.Unauthorized) {
			delete(t.verified, hash)
		}
		return
	}
	for other := range t.verified {
		if len(t.verified) < maxTokens {
			break
		}
		delete(t.verified, other)
	}
	t.verified[hash] = verified{credential, time.Now()}
}
