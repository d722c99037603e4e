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

// users are the user names that providers expect together with a token.
var users = map[v1alpha1.GitProvider]string{
	"":                     "x-access-token",
	v1alpha1.GitHub:        "x-access-token",
	v1alpha1.GitLab:        "oauth2",
	v1alpha1.Bitbucket:     "x-token-auth",
	v1alpha1.EnterpriseSSO: "x-access-token",
}

// Remote is the location of a repository.
type Remote struct {
	// URL is the repository's URL without a user name and password.
	URL *url.URL
	// Name is the name of the clone's directory.
	Name string
	// User is the user name for the token. It is empty if the token is not valid for this host.
	User string
	// userInToken is set if a token may have the form user:password.
	userInToken bool
}

// Credentials returns the user name and password for a token. Bitbucket's tokens may have the form
// user:password.
func (r *Remote) Credentials(token string) (user, password string) {
	if user, password, ok := strings.Cut(token, ":"); ok && r.userInToken && user != "" && password != "" {
		return user, password
	}
	return r.User, token
}

// Locate returns the location of a repository. A provider's token is used only for that provider's
// host. Over plain HTTP, the token is sent only to a host that the user's settings name, and never
// to a provider's public host.
func Locate(repository *session.Repository) (*Remote, error) {
	user, known := users[repository.Provider]
	if !known {
		return nil, fmt.Errorf("the git provider %q is unknown", repository.Provider)
	}
	host := cmp.Or(repository.Host, session.PublicHost(repository.Provider))
	location := repository.Name
	if !strings.Contains(location, "://") {
		if host == "" {
			return nil, fmt.Errorf("the provider %s has no public host: its entry in providerTokens must name a host",
				repository.Provider)
		}
		location = "https://" + host + "/" + strings.TrimSuffix(strings.Trim(location, "/"), ".git") + ".git"
	}
	u, err := url.Parse(location)
	switch {
	case err != nil:
		return nil, errors.New("its URL is not valid")
	case u.User != nil:
		return nil, errors.New("its URL must not contain a user name or password")
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

// directoryName returns the last part of a repository's path, or "repository" if that part is not
// usable.
func directoryName(location string) string {
	name := strings.TrimSuffix(path.Base(path.Clean("/"+location)), ".git")
	if name == "" || name == "/" || strings.HasPrefix(name, ".") {
		return "repository"
	}
	return name
}

// origin returns the scheme and host for which a credential is valid.
func (r *Remote) origin() string { return r.URL.Scheme + "://" + r.URL.Host }

// prefixes returns the beginnings of all repository URLs on this host, for HTTP and SSH. If r.URL
// uses https, the prefix with http is included. If r.URL uses http, https is not included.
func (r *Remote) prefixes() []string {
	name := r.URL.Hostname()
	all := []string{r.origin() + "/", "git@" + name + ":", "ssh://git@" + name + "/", "ssh://git@" + name + ":22/"}
	if r.URL.Scheme == "https" {
		all = append(all, "http://"+r.URL.Host+"/")
	}
	return all
}
