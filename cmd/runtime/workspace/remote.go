package workspace

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// users are the names that providers expect beside a token.
var users = map[v1alpha1.GitProvider]string{
	"":                     "x-access-token",
	v1alpha1.GitHub:        "x-access-token",
	v1alpha1.GitLab:        "oauth2",
	v1alpha1.Bitbucket:     "x-token-auth",
	v1alpha1.EnterpriseSSO: "x-access-token",
}

// Remote is where a repository is.
type Remote struct {
	// URL of the repository. It holds no user name or password.
	URL *url.URL
	// Name of the directory that it is cloned into.
	Name string
	// User that goes with the token; empty where the token is not for this host.
	User string
	// userInToken is set where a token may hold a user name of its own, before a colon.
	userInToken bool
}

// credentials are the user name and the password that the host expects for a token. An app password
// of Bitbucket is one of a user, and its token is both.
func (r *Remote) credentials(token string) (user, password string) {
	if user, password, ok := strings.Cut(token, ":"); ok && r.userInToken && user != "" && password != "" {
		return user, password
	}
	return r.User, token
}

// Locate a repository. The token of a provider is only for that provider's host, and on a public
// one only over https, also where the user names it.
func Locate(repository *session.Repository) (*Remote, error) {
	user, known := users[repository.Provider]
	if !known {
		return nil, fmt.Errorf("the git provider %q is not known", repository.Provider)
	}
	host := cmp.Or(repository.Host, session.PublicHost(repository.Provider))
	location := repository.Name
	if !strings.Contains(location, "://") {
		if host == "" {
			return nil, fmt.Errorf("the provider %s has no public host: its entry in providerTokens must name one",
				repository.Provider)
		}
		location = "https://" + host + "/" + strings.TrimSuffix(strings.Trim(location, "/"), ".git") + ".git"
	}
	u, err := url.Parse(location)
	switch {
	case err != nil:
		return nil, errors.New("is no valid URL")
	case u.User != nil:
		return nil, errors.New("its URL must not hold a user name or password")
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "file":
		return nil, errors.New("its URL must be http, https or file")
	}
	remote := &Remote{URL: u, Name: directoryName(u.Path), userInToken: repository.Provider == v1alpha1.Bitbucket}
	inClear := u.Scheme == "http" && repository.Host != "" && !session.IsPublicHost(u.Hostname())
	if strings.EqualFold(u.Host, host) && (u.Scheme == "https" || inClear) {
		remote.User = cmp.Or(repository.UserID, user)
	}
	return remote, nil
}

// directoryName is the last part of a repository's path.
func directoryName(location string) string {
	name := strings.TrimSuffix(path.Base(path.Clean("/"+location)), ".git")
	if name == "" || name == "/" || strings.HasPrefix(name, ".") {
		return "repository"
	}
	return name
}

// origin is the part of the URL that a credential is for.
func (r *Remote) origin() string { return r.URL.Scheme + "://" + r.URL.Host }
