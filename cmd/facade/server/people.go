package server

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/onboarding"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Onboarder creates the settings of the person whom an ID token identifies.
type Onboarder interface {
	Onboard(ctx context.Context, token string) (*onboarding.Result, error)
}

const (
	// Requests with an ID token onboard the same person at most once per onboardEvery or, if the
	// last onboarding failed, once per onboardRetry.
	onboardEvery = 30 * time.Second
	onboardRetry = 5 * time.Second
	// maxOnboarded limits the people whose last onboarding is kept in memory.
	maxOnboarded = 10000
	// appearTimeout limits the wait until new settings are in the cache.
	appearTimeout = 5 * time.Second
	// maxProblems limits the problems of an onboarding that are logged and shown.
	maxProblems = 10
)

var (
	notAPerson = answer.Refuse(http.StatusForbidden, "Only people who signed in with the OpenID provider can "+
		"choose settings; a session key belongs to one UserSettings object")
	notOnboarded = answer.Later(http.StatusServiceUnavailable, "Your settings could not be created; retry later",
		5*time.Second)
)

// onboarded tracks the onboardings of people, so that requests do not repeat them.
type onboarded struct {
	flight singleflight.Group
	mu     sync.Mutex
	// last contains the last onboarding of each person, by username.
	last map[string]attempt
}

// attempt is the outcome of an onboarding, and the earliest time of the next onboarding.
type attempt struct {
	err  error
	next time.Time
}

// due reports whether a request may onboard a person now. If it may not, the error is the outcome
// of the last onboarding.
func (o *onboarded) due(username string) (now bool, err error) {
	at := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, found := o.last[username]; found && at.Before(last.next) {
		return false, last.err
	}
	if len(o.last) >= maxOnboarded {
		maps.DeleteFunc(o.last, func(_ string, last attempt) bool { return !at.Before(last.next) })
	}
	return len(o.last) < maxOnboarded, nil
}

func (o *onboarded) ended(username string, err error) {
	wait := onboardEvery
	if err != nil {
		wait = onboardRetry
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last[username] = attempt{err, time.Now().Add(wait)}
}

// onboardOnce onboards the person of a request, unless another request did so recently. Concurrent
// requests of the person share the onboarding.
func (s *server) onboardOnce(ctx context.Context, credential auth.Credential) error {
	_, err, _ := s.onboarded.flight.Do("request of "+credential.Username, func() (any, error) {
		if s.options.SignIn.Onboarding == nil {
			return nil, nil
		}
		if now, err := s.onboarded.due(credential.Username); !now {
			return nil, err
		}
		err := s.onboard(ctx, credential)
		s.onboarded.ended(credential.Username, err)
		return nil, err
	})
	return err
}

// onboard asks the manager to create the settings of a person, and waits until the cache has them.
// It does nothing if onboarding is not configured.
func (s *server) onboard(ctx context.Context, credential auth.Credential) error {
	onboarder := s.options.SignIn.Onboarding
	if onboarder == nil {
		return nil
	}
	log := logf.FromContext(ctx)
	shared, err, _ := s.onboarded.flight.Do(credential.Username, func() (any, error) {
		return onboarder.Onboard(context.WithoutCancel(ctx), credential.Token)
	})
	if err != nil {
		log.Info("Cannot onboard a person", "person", credential.Username, "reason", err.Error())
		return notOnboarded
	}
	result := shared.(*onboarding.Result)
	problems := result.Problems[:min(len(result.Problems), maxProblems)]
	for _, problem := range problems {
		log.Info("Onboarding reported a problem", "person", credential.Username, "problem", problem)
	}
	if len(result.Settings) == 0 && len(problems) > 0 {
		return answer.Refuse(http.StatusForbidden, "Your settings could not be created. Tell your administrator: "+
			strings.Join(problems, "; "))
	}
	return s.appear(ctx, credential.Username, result.Settings)
}

// appear waits until the cache has the named settings of an owner.
func (s *server) appear(ctx context.Context, username string, names []types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, appearTimeout)
	defer cancel()
	for {
		owned, err := auth.Owned(ctx, s.cluster, username)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(names, func(name types.NamespacedName) bool {
			return !slices.ContainsFunc(owned, func(one v1alpha1.UserSettings) bool {
				return one.Namespace == name.Namespace && one.Name == name.Name
			})
		}) {
			return nil
		}
		select {
		case <-ctx.Done():
			return notOnboarded
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// countPerson counts a request towards the rate limit of the person. Requests that use a
// UserSettings count towards the rate limit of this UserSettings: see admit().
func (s *server) countPerson(credential auth.Credential) error {
	return s.budget.Count("person "+credential.Username, 1)
}

// personSession returns the settings that a person may use, and the settings that the person has
// chosen. For a client with an ID token, GET /api/session is the sign-in, so personSession first
// onboards the person.
func (s *server) personSession(r *http.Request, credential auth.Credential) (*rest.Session, error) {
	note(r, func(n *noted) { n.credential = credential })
	if err := s.countPerson(credential); err != nil {
		return nil, err
	}
	if credential.Method == auth.ByOIDC {
		_ = s.onboardOnce(r.Context(), credential) // ignored here: requests that need settings return this error
	}
	usable, err := auth.Usable(r.Context(), s.cluster, credential)
	if errors.Is(err, answer.Unauthorized) {
		return nobody(), nil
	}
	if err != nil {
		return nil, err
	}
	session := nobody()
	u, err := auth.Authenticate(r.Context(), s.cluster, credential)
	switch code := answer.CodeOf(err); {
	case err == nil:
		if session, err = s.session(r, u); err != nil {
			return nil, err
		}
	case code != http.StatusForbidden && code != http.StatusConflict:
		return nil, err
	}
	session.Person, session.Settings = &credential.Username, auth.NamesOf(usable)
	return session, nil
}

// chooseSettings sends a signed-in person a new cookie with the chosen settings. The new cookie has
// the ID of the old cookie, so revoking one of them makes both invalid.
func (s *server) chooseSettings(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := s.cookies.SameOrigin(r); err != nil {
		return nil, err
	}
	credential, signedIn := s.cookies.Credential(r)
	switch {
	case !signedIn:
		return nil, answer.Unauthorized
	case credential.Username == "":
		return nil, notAPerson
	}
	note(r, func(n *noted) { n.credential = credential })
	body, err := answer.ReadBody(r.Body, maxSignIn)
	if err != nil {
		return nil, err
	}
	chosen, details := rest.DecodeSettingsName(body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	r, done := withTimeout(r)
	defer done()
	credential.Settings = types.NamespacedName{Namespace: chosen.Namespace, Name: chosen.Name}
	u, err := s.authenticate(r.Context(), credential)
	if err != nil {
		return nil, err
	}
	if err := s.admit(r, u, 1); err != nil {
		return nil, err
	}
	if err := s.cookies.SetPerson(w, r, credential); err != nil {
		return nil, err
	}
	return s.personSession(r, credential)
}
