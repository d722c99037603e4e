package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/facade/settings"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

// maxAsked limits the number of sessions that are tried, one after another, for a request to the
// git host.
const maxAsked = 3

// noSession is the response if no session can call the git host. The facade itself has no token of
// the host.
var noSession = answer.Refuse(http.StatusServiceUnavailable, "No running conversation can read the git "+
	"host: start a conversation with a repository, or enter the repository's name")

// hostBusy is the response if the git host limits the requests with the user's token.
var hostBusy = answer.Later(http.StatusTooManyRequests, "The git host limits the rate of requests: retry later",
	time.Minute)

// hostOperations are the operations that read from a git host. A running session of the user calls
// the host, because only the session has the token.
func (s *server) hostOperations() map[string]map[string]operation {
	ask := func(path string, names ...string) map[string]operation {
		return map[string]operation{"GET": {do: func(ctx context.Context, r request) (any, error) {
			return s.askHost(ctx, r, path, r.parameters(names))
		}}}
	}
	nothing := map[string]operation{"GET": {do: func(context.Context, request) (any, error) { return []string{}, nil }}}
	return map[string]map[string]operation{
		"/api/user/info":                {"GET": {do: s.userInfo}},
		"/api/user/repositories":        ask(session.GitRepositoriesPath, "page", "per_page"),
		"/api/user/search/repositories": ask(session.GitRepositoriesPath, "query", "page", "per_page"),
		"/api/user/repository/branches": ask(session.GitBranchesPath, "repository"),
		// Parley has no provider apps and suggests no tasks.
		"/api/user/installations":   nothing,
		"/api/user/suggested-tasks": nothing,
	}
}

// askHost calls the git host through a session. If the user has no token, the response is empty.
func (s *server) askHost(ctx context.Context, r request, path string, query url.Values) (any, error) {
	if has, err := s.hasToken(ctx, r.user); err != nil || !has {
		return []string{}, err
	}
	candidates, err := s.candidates(ctx, r.user)
	if err != nil {
		return nil, err
	}
	err = noSession
	var busy []v1alpha1.GitProvider // all sessions with the same provider have the same token
	for i := range candidates {
		_, provider := candidates[i].Spec.EffectiveRepository()
		if slices.Contains(busy, provider) {
			continue
		}
		known, failed := s.sessions.Read(ctx, &candidates[i], live.Call{Path: path, Query: query, Held: r.held},
			live.MaxResponse)
		switch {
		case failed == nil:
			return known, nil
		case limitedByHost(failed):
			busy = append(busy, provider)
		case answer.CodeOf(failed) == http.StatusFailedDependency: // this session has no token
			err = noSession
		default:
			err = failed
		}
	}
	if len(busy) > 0 {
		return nil, hostBusy
	}
	return nil, err
}

// limitedByHost reports whether a session answered that the git host limits the rate of requests. A
// refusal by the facade itself has a Retry-After time.
func limitedByHost(err error) bool {
	refusal, is := errors.AsType[*answer.Refusal](err)
	return is && refusal.Code == http.StatusTooManyRequests && refusal.RetryAfter == 0
}

// candidates returns the few conversations whose sessions askHost calls. The large list of all
// conversations must not stay in memory during these calls, because they may take long.
func (s *server) candidates(ctx context.Context, u *auth.User) (some []v1alpha1.Conversation, err error) {
	done, err := s.budget.Wait(ctx, u.ID(), limits.Lists)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.cluster.ConversationsOf(ctx, u.Settings, func(all []v1alpha1.Conversation) {
		for i := range all {
			if repository, _ := all[i].Spec.EffectiveRepository(); repository != "" && live.Running(&all[i]) == nil &&
				len(some) < maxAsked {
				some = append(some, all[i])
			}
		}
	}); err != nil {
		return nil, cluster.Refusal(ctx, err, nil)
	}
	return some, nil
}

// userInfo returns the user's profile at the git host, or the profile in the settings.
func (s *server) userInfo(ctx context.Context, r request) (any, error) {
	if has, err := s.hasToken(ctx, r.user); err == nil && has {
		if known, err := s.askHost(ctx, r, session.GitUserPath, nil); err == nil {
			return known, nil
		}
	}
	spec := &r.user.Settings.Spec
	return session.GitUser{ID: string(r.user.UID), Login: r.user.Name, Name: spec.GitUserName,
		Email: cmp.Or(spec.GitUserEmail, spec.Email)}, nil
}

// hasToken reports whether the user has a token of a git provider, own or inherited.
func (s *server) hasToken(ctx context.Context, u *auth.User) (bool, error) {
	effective, err := settings.Effective(ctx, s.cluster, u.Settings)
	if err != nil {
		return false, err
	}
	store := effective.Spec.SecretsStore
	return store != nil && len(store.ProviderTokens) > 0, nil
}
