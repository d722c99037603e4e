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

// needsKey is answered to who is signed in, and shows no key.
var needsKey = answer.Refuse(http.StatusForbidden, "A link is made with the session key, not with a sign-in")

// maxSignIn bounds what somebody sends whom nobody knows yet.
const maxSignIn = 8 << 10

// identify who sent a request: by the session key, or by the cookie of the page. With a cookie a
// browser may have been made to send it, so what changes anything must come from the facade's own
// page.
func (s *server) identify(r *http.Request, key string, changes bool) (*auth.User, auth.Credential, error) {
	shown := auth.CredentialOf(key)
	if key == "" {
		var signedIn bool
		if shown, signedIn = s.cookies.Credential(r); signedIn && changes {
			if err := s.cookies.SameOrigin(r); err != nil {
				return nil, shown, err
			}
		}
	}
	u, err := s.authenticate(r.Context(), shown)
	return u, shown, err
}

// admit a user's request, at their rate.
func (s *server) admit(r *http.Request, u *auth.User) error {
	noteUser(r, u.Key())
	return s.budget.Count(u.ID())
}

func (s *server) authenticate(ctx context.Context, shown auth.Credential) (*auth.User, error) {
	u, err := auth.Authenticate(ctx, s.cluster, shown)
	if errors.Is(err, answer.Unauthorized) {
		s.metrics.authFailures.Inc()
	}
	return u, err
}

// signInRoutes are open to everybody: who asks here is not known yet, or no longer.
func (s *server) signInRoutes(mux *http.ServeMux) {
	for _, route := range []struct {
		method, path string
		serve        func(w http.ResponseWriter, r *http.Request) (any, error)
	}{
		{"POST", "/api/signin", s.signIn}, {"POST", "/api/signout", s.signOut}, {"GET", "/api/session", s.whoAmI},
	} {
		mux.HandleFunc(route.method+" "+route.path, func(w http.ResponseWriter, r *http.Request) {
			body, err := route.serve(w, r)
			answer.Write(w, body, err)
		})
		mux.HandleFunc(route.path, methodNotAllowed(route.method))
	}
}

// inTime is a request that was read, with the time that there is for its answer.
func inTime(r *http.Request) (timed *http.Request, done func()) {
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
	r, done := inTime(r)
	defer done()
	u, shown, err := s.opened(r, given)
	if err != nil {
		return nil, err
	}
	if err := s.admit(r, u); err != nil {
		return nil, err
	}
	if given.Code != "" {
		if err := s.asksFirst(r, u, given); err != nil {
			return nil, err
		}
		err := s.end(r.Context(), u, shown)
		if errors.Is(err, answer.Unauthorized) { // somebody was faster
			s.metrics.authFailures.Inc()
		}
		if err != nil {
			return nil, err
		}
	}
	if err := s.cookies.Give(w, r, u, shown.KeyHash); err != nil {
		return nil, err
	}
	return s.session(r, u)
}

// opened is who signs in, with the key or with the code of a link.
func (s *server) opened(r *http.Request, given rest.SignIn) (*auth.User, auth.Credential, error) {
	if given.Code == "" {
		return s.identify(r, given.Key, true)
	}
	shown, _ := s.cookies.Linked(given.Code) // nobody's, where it is invalid
	u, err := s.authenticate(r.Context(), shown)
	return u, shown, err
}

// asksFirst refuses a link where somebody else is signed in, unless they agreed: whoever sends
// theirs would have others store keys with them. The link stays good.
func (s *server) asksFirst(r *http.Request, u *auth.User, given rest.SignIn) error {
	shown, signedIn := s.cookies.Credential(r)
	if !signedIn || given.Replace {
		return nil
	}
	switch present, err := auth.Authenticate(r.Context(), s.cluster, shown); {
	case errors.Is(err, answer.Unauthorized):
		return nil
	case err != nil:
		return err
	case present.UID == u.UID:
		return nil
	}
	return &answer.Refusal{Code: http.StatusConflict, Body: rest.SignInConflict{Detail: "Somebody else is signed in",
		User: u.Name, Namespace: u.Namespace}}
}

// end a sign-in before its time, once. The user's settings record it, so that every facade knows. The
// second attempt is unauthorized.
func (s *server) end(ctx context.Context, u *auth.User, shown auth.Credential) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	var refusal *answer.Refusal
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := settings.Live(ctx, s.cluster, u)
		if err != nil {
			return err
		}
		if auth.HasEnded(live, shown.ID) {
			return answer.Unauthorized
		}
		return s.cluster.Annotate(ctx, live, v1alpha1.AnnotationEndedSignIns, auth.Ended(live, shown, time.Now()))
	})
	if err != nil && !errors.As(err, &refusal) {
		return cluster.Refusal(ctx, err, nil)
	}
	return err
}

// link that signs the user in, once, for who has no key to type. It takes the key: whoever copied a
// cookie would else have another for good.
func (s *server) link(_ context.Context, r request) (any, error) {
	if !r.shown.Expires.IsZero() { // a cookie
		return nil, needsKey
	}
	code, err := s.cookies.Link(r.user, r.shown.KeyHash)
	if err != nil {
		return nil, err
	}
	shown, _ := s.cookies.Linked(code)
	return rest.SignInLink{Path: "/signin#code=" + code, ExpiresAt: shown.Expires.UTC()}, nil
}

// signOut takes the cookie away, whether it is still good or not, and has it be good no longer.
func (s *server) signOut(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := s.cookies.SameOrigin(r); err != nil {
		return nil, err
	}
	r, done := inTime(r)
	defer done()
	s.cookies.Take(w, r)
	if shown, signedIn := s.cookies.Credential(r); signedIn {
		u, err := auth.Authenticate(r.Context(), s.cluster, shown)
		if err == nil {
			err = s.budget.Count(u.ID())
		}
		if err == nil {
			err = s.end(r.Context(), u, shown)
		}
		if err != nil && !errors.Is(err, answer.Unauthorized) {
			return nil, err // the browser has no cookie any more, and yet it is not ended
		}
	}
	return rest.Session{}, nil
}

// whoAmI is asked by the page before anything else; that nobody is signed in is no error.
func (s *server) whoAmI(_ http.ResponseWriter, r *http.Request) (any, error) {
	key := r.Header.Get(rest.KeyHeader)
	if _, signedIn := s.cookies.Credential(r); !signedIn && key == "" {
		return rest.Session{}, nil
	}
	r, done := inTime(r)
	defer done()
	u, _, err := s.identify(r, key, false)
	switch {
	case errors.Is(err, answer.Unauthorized):
		return rest.Session{}, nil
	case err != nil:
		return nil, err
	}
	if err := s.admit(r, u); err != nil {
		return nil, err
	}
	return s.session(r, u)
}

func (s *server) session(r *http.Request, u *auth.User) (any, error) {
	stored, err := settings.Live(r.Context(), s.cluster, u)
	if errors.Is(err, answer.Unauthorized) {
		return rest.Session{}, nil
	}
	if err != nil {
		return nil, err
	}
	return rest.Session{User: &u.Name, Namespace: &u.Namespace, SettingsStored: !settings.NothingStored(stored)}, nil
}
