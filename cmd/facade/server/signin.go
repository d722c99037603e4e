package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/retry"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/settings"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// needsKey refuses to create a sign-in link for a request without the session key.
var needsKey = answer.Refuse(http.StatusForbidden, "Creating a sign-in link requires the session key; "+
	"being signed in is not enough")

const (
	// maxSignIn limits the body of an unauthenticated request.
	maxSignIn = 8 << 10
	// maxRecords limits the UserSettings objects to which one sign-out writes at the same time.
	maxRecords = 8
)

// identify authenticates a request. If a person with an ID token has no UserSettings object yet,
// identify lets the manager create one.
func (s *server) identify(r *http.Request, key string, changes bool) (*auth.User, auth.Credential, error) {
	credential, err := s.credential(r, key, changes)
	if err != nil {
		return nil, credential, err
	}
	note(r, func(n *noted) { n.credential = credential })
	u, err := s.authenticate(r.Context(), credential)
	if errors.Is(err, auth.NoSettings) && credential.Method == auth.ByOIDC {
		if err = s.onboardOnce(r.Context(), credential); err == nil {
			u, err = s.authenticate(r.Context(), credential)
		}
	}
	if err != nil && credential.Username != "" {
		if busy := s.countPerson(credential); busy != nil {
			err = busy
		}
	}
	return u, credential, err
}

// credential returns the credential of a request: the session key, else the page's cookie, else a
// token. Another site can make a browser send the cookie. If the credential is the cookie and the
// request changes something, the request must therefore come from the facade's own page.
func (s *server) credential(r *http.Request, key string, changes bool) (credential auth.Credential, err error) {
	if key != "" {
		return auth.CredentialOf(key), nil
	}
	credential, signedIn := s.cookies.Credential(r)
	switch token := auth.BearerOf(r); {
	case signedIn && changes:
		err = s.cookies.SameOrigin(r)
	case !signedIn && token != "":
		credential, err = s.tokens.Credential(r.Context(), token, s.options.TrustedProxies.ClientNetwork(r))
	}
	if errors.Is(err, answer.Unauthorized) {
		s.metrics.authFailures.Inc()
	}
	if credential.Username == "" {
		return credential, err
	}
	query := r.URL.Query()
	if chosen := cmp.Or(r.Header.Get(rest.SettingsHeader), query.Get(rest.SettingsParameter)); chosen != "" {
		credential.Settings.Namespace, credential.Settings.Name, _ = strings.Cut(chosen, "/")
	}
	return credential, err
}

// admit counts a request against the user's rate limit, with the weight of the operation.
func (s *server) admit(r *http.Request, u *auth.User, weight int) error {
	note(r, func(n *noted) { n.user = u.Key() })
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
		{"GET", "/api/signin/options", s.signInOptions}, {"POST", "/api/session/settings", s.chooseSettings},
	} {
		mux.HandleFunc(route.method+" "+route.path, func(w http.ResponseWriter, r *http.Request) {
			body, err := route.serve(w, r)
			answer.Write(w, body, err)
		})
		mux.HandleFunc(route.path, methodNotAllowed(route.method))
	}
	for path, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"/api/signin/oidc": s.beginSignIn, callbackPath: s.finishSignIn,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			r, done := withTimeout(r)
			defer done()
			if err := serve(w, r); err != nil {
				writeFailure(w, err)
			}
		})
		mux.HandleFunc(path, methodNotAllowed("GET"))
	}
}

func withTimeout(r *http.Request) (timed *http.Request, done func()) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	return r.WithContext(ctx), cancel
}

// signIn gives a cookie to a client that sends a session key or the code of a sign-in link.
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
		// An attacker can send people a link that signs them in to the attacker's account. Without a
		// confirmation, they could store their own keys in that account. The link stays valid until the
		// sign-in is confirmed.
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

// signInUser authenticates a sign-in request by its session key, or by the code of a sign-in link.
func (s *server) signInUser(r *http.Request, given rest.SignIn) (*auth.User, auth.Credential, error) {
	if given.Code == "" {
		return s.identify(r, given.Key, true)
	}
	credential, _ := s.cookies.Linked(given.Code) // an invalid code is refused below
	u, err := s.authenticate(r.Context(), credential)
	return u, credential, err
}

// end revokes a cookie, or the code of a sign-in link. It records the revocation in the user's
// UserSettings object, which all facades read. The error is Unauthorized if the cookie or code is
// already revoked.
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

// link creates a link with which the user can sign in one time, without a key. It requires the
// session key, because otherwise a stolen cookie could create new sign-ins forever.
func (s *server) link(_ context.Context, r request) (any, error) {
	if r.credential.Method != auth.ByKey {
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
	signedOut := nobody()
	credential, signedIn := s.cookies.Credential(r)
	if !signedIn {
		return signedOut, nil
	}
	note(r, func(n *noted) { n.credential = credential })
	if err := s.revoke(r, credential); err != nil && !errors.Is(err, answer.Unauthorized) {
		return nil, err // the browser's cookie is gone, but was not revoked
	}
	if credential.Username != "" {
		signedOut.EndSessionURL = s.endSessionURL(r.Context())
	}
	return signedOut, nil
}

// revoke records the revocation of a cookie in the UserSettings objects of all users that recordsOf
// returns. If one write fails, it still tries the other writes, and returns the first error.
func (s *server) revoke(r *http.Request, credential auth.Credential) error {
	users, err := s.recordsOf(r.Context(), credential)
	if err != nil || len(users) == 0 {
		return err
	}
	if err := s.admit(r, users[0], 1); err != nil {
		return err
	}
	var records errgroup.Group
	records.SetLimit(maxRecords)
	for _, u := range users {
		records.Go(func() error {
			if err := s.end(r.Context(), u, credential); !errors.Is(err, answer.Unauthorized) {
				return err
			}
			return nil // the cookie was revoked before
		})
	}
	return records.Wait()
}

// recordsOf returns the users in whose UserSettings objects the revocation of a cookie must be
// recorded. For a person's cookie, these are all UserSettings objects of the person, because any of
// them may later be deleted or get another owner.
func (s *server) recordsOf(ctx context.Context, credential auth.Credential) (users []*auth.User, err error) {
	if credential.Username == "" {
		u, err := auth.Authenticate(ctx, s.cluster, credential)
		return []*auth.User{u}, err
	}
	owned, err := auth.Owned(ctx, s.cluster, credential.Username)
	for i := range owned {
		one := &owned[i]
		users = append(users, &auth.User{Namespace: one.Namespace, Name: one.Name, UID: one.UID, Settings: one})
	}
	return users, err
}

// currentSession serves the page's first request. It is not an error if no user is signed in.
func (s *server) currentSession(_ http.ResponseWriter, r *http.Request) (any, error) {
	r, done := withTimeout(r)
	defer done()
	credential, err := s.credential(r, r.Header.Get(rest.KeyHeader), false)
	switch {
	case errors.Is(err, answer.Unauthorized), err == nil && credential.Method == "":
		return nobody(), nil
	case err != nil:
		return nil, err
	case credential.Username != "":
		return s.personSession(r, credential)
	}
	u, err := s.authenticate(r.Context(), credential)
	switch {
	case errors.Is(err, answer.Unauthorized):
		return nobody(), nil
	case err != nil:
		return nil, err
	}
	if err := s.admit(r, u, 1); err != nil {
		return nil, err
	}
	return s.session(r, u)
}

// nobody returns the response to GET /api/session for a client that is not signed in.
func nobody() *rest.Session { return &rest.Session{Settings: []rest.SettingsName{}} }

func (s *server) session(r *http.Request, u *auth.User) (*rest.Session, error) {
	stored, err := settings.Live(r.Context(), s.cluster, u)
	if err == nil {
		stored, err = settings.Effective(r.Context(), s.cluster, stored)
	}
	if errors.Is(err, answer.Unauthorized) {
		return nobody(), nil
	}
	if err != nil {
		return nil, err
	}
	session := nobody()
	session.User, session.Namespace, session.SettingsStored = &u.Name, &u.Namespace, !settings.NothingStored(stored)
	return session, nil
}
