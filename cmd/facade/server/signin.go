package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/client-go/util/retry"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/settings"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// needsKey is the response to a user who requests a sign-in link with a cookie instead of the
// session key.
var needsKey = answer.Refuse(http.StatusForbidden, "Creating a sign-in link requires the session key; "+
	"being signed in is not enough")

// maxSignIn limits the body of an unauthenticated request.
const maxSignIn = 8 << 10

// identify authenticates a request by the session key or by the page's cookie. Another site can
// make a browser send the cookie. A request that changes something must therefore come from the
// facade's own page if it has no key.
func (s *server) identify(r *http.Request, key string, changes bool) (*auth.User, auth.Credential, error) {
	credential := auth.CredentialOf(key)
	if key == "" {
		var signedIn bool
		if credential, signedIn = s.cookies.Credential(r); signedIn && changes {
			if err := s.cookies.SameOrigin(r); err != nil {
				return nil, credential, err
			}
		}
	}
	u, err := s.authenticate(r.Context(), credential)
	return u, credential, err
}

// admit counts a request against the user's rate limit, with the weight of the operation.
func (s *server) admit(r *http.Request, u *auth.User, weight int) error {
	noteUser(r, u.Key())
	return s.budget.Count(u.ID(), weight)
}

func (s *server) authenticate(ctx context.Context, credential auth.Credential) (*auth.User, error) {
	u, err := auth.Authenticate(ctx, s.cluster, credential)
	if errors.Is(err, answer.Unauthorized) {
		s.metrics.authFailures.Inc()
	}
	return u, err
}

// signInRoutes registers the routes that need no credential.
func (s *server) signInRoutes(mux *http.ServeMux) {
	for _, route := range []struct {
		method, path string
		serve        func(w http.ResponseWriter, r *http.Request) (any, error)
	}{
		{"POST", "/api/signin", s.signIn}, {"POST", "/api/signout", s.signOut}, {"GET", "/api/session", s.currentSession},
	} {
		mux.HandleFunc(route.method+" "+route.path, func(w http.ResponseWriter, r *http.Request) {
			body, err := route.serve(w, r)
			answer.Write(w, body, err)
		})
		mux.HandleFunc(route.path, methodNotAllowed(route.method))
	}
}

func withTimeout(r *http.Request) (timed *http.Request, done func()) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	return r.WithContext(ctx), cancel
}

// signIn gives the owner of a session key a cookie.
func (s *server) signIn(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := s.cookies.SameOrigin(r); err != nil {
		return nil, err
	}
	body, err := answer.ReadBody(r.Body, maxSignIn)
	if err != nil {
		return nil, err
	}
	given, details := rest.DecodeSignIn(body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	r, done := withTimeout(r)
	defer done()
	u, credential, err := s.signInUser(r, given)
	if err != nil {
		return nil, err
	}
	if err := s.admit(r, u, 1); err != nil {
		return nil, err
	}
	if given.Code != "" {
		// Without a confirmation, the sender of a link could make other people store their keys in
		// the sender's account. A refused link stays valid.
		if !given.Replace {
			return nil, &answer.Refusal{Code: http.StatusConflict, Body: rest.SignInConflict{
				Detail: "Confirm that you want to sign in as the user of this link", User: u.Name, Namespace: u.Namespace}}
		}
		err := s.end(r.Context(), u, credential)
		if errors.Is(err, answer.Unauthorized) { // the link was used meanwhile
			s.metrics.authFailures.Inc()
		}
		if err != nil {
			return nil, err
		}
	}
	if err := s.cookies.Set(w, r, u, credential.KeyHash); err != nil {
		return nil, err
	}
	return s.session(r, u)
}

// signInUser authenticates the key or the code of a link.
func (s *server) signInUser(r *http.Request, given rest.SignIn) (*auth.User, auth.Credential, error) {
	if given.Code == "" {
		return s.identify(r, given.Key, true)
	}
	credential, _ := s.cookies.Linked(given.Code) // an invalid code is refused below
	u, err := s.authenticate(r.Context(), credential)
	return u, credential, err
}

// end revokes a cookie, or the code of a link, before it expires. The user's settings record the
// revocation for all facades. If the cookie or code is already revoked, end returns Unauthorized.
func (s *server) end(ctx context.Context, u *auth.User, credential auth.Credential) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	var refusal *answer.Refusal
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := settings.Live(ctx, s.cluster, u)
		if err != nil {
			return err
		}
		if auth.HasEnded(live, credential.ID) {
			return answer.Unauthorized
		}
		return s.cluster.Annotate(ctx, live, v1alpha1.AnnotationEndedSignIns, auth.Ended(live, credential, time.Now()))
	})
	if err != nil && !errors.As(err, &refusal) {
		return cluster.Refusal(ctx, err, nil)
	}
	return err
}

// link creates a link that signs the user in, one time, without a key. It requires the session key,
// because otherwise a stolen cookie could create new sign-ins forever.
func (s *server) link(_ context.Context, r request) (any, error) {
	if !r.credential.Expires.IsZero() { // a cookie
		return nil, needsKey
	}
	code, err := s.cookies.Link(r.user, r.credential.KeyHash)
	if err != nil {
		return nil, err
	}
	credential, _ := s.cookies.Linked(code)
	return rest.SignInLink{Path: "/signin#code=" + code, ExpiresAt: credential.Expires.UTC()}, nil
}

// signOut revokes the cookie, if it is valid, and removes it from the browser in any case.
func (s *server) signOut(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := s.cookies.SameOrigin(r); err != nil {
		return nil, err
	}
	r, done := withTimeout(r)
	defer done()
	s.cookies.Clear(w, r)
	if credential, signedIn := s.cookies.Credential(r); signedIn {
		u, err := auth.Authenticate(r.Context(), s.cluster, credential)
		if err == nil {
			err = s.budget.Count(u.ID(), 1)
		}
		if err == nil {
			err = s.end(r.Context(), u, credential)
		}
		if err != nil && !errors.Is(err, answer.Unauthorized) {
			return nil, err // the browser's cookie is gone, but was not revoked
		}
	}
	return rest.Session{}, nil
}

// currentSession serves the page's first request. It is not an error if no user is signed in.
func (s *server) currentSession(_ http.ResponseWriter, r *http.Request) (any, error) {
	key := r.Header.Get(rest.KeyHeader)
	if _, signedIn := s.cookies.Credential(r); !signedIn && key == "" {
		return rest.Session{}, nil
	}
	r, done := withTimeout(r)
	defer done()
	u, _, err := s.identify(r, key, false)
	switch {
	case errors.Is(err, answer.Unauthorized):
		return rest.Session{}, nil
	case err != nil:
		return nil, err
	}
	if err := s.admit(r, u, 1); err != nil {
		return nil, err
	}
	return s.session(r, u)
}

func (s *server) session(r *http.Request, u *auth.User) (any, error) {
	stored, err := settings.Live(r.Context(), s.cluster, u)
	if err == nil {
		stored, err = settings.Effective(r.Context(), s.cluster, stored)
	}
	if errors.Is(err, answer.Unauthorized) {
		return rest.Session{}, nil
	}
	if err != nil {
		return nil, err
	}
	return rest.Session{User: &u.Name, Namespace: &u.Namespace, SettingsStored: !settings.NothingStored(stored)}, nil
}
