// Package githost calls the API of the git host that has the session's repository. It lists the
// user's repositories and branches, and opens pull requests. The runtime makes these calls, because
// the facade does not have the session's token.
package githost

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	timeout     = 10 * time.Second
	maxAnswer   = 8 << 20
	perPage     = 30
	maxPageSize = 100
	// giteaPageSize is the default of Gitea's setting MAX_RESPONSE_ITEMS.
	giteaPageSize = 50
)

// Errors for the user.
var (
	ErrNoToken = errors.New("the session has no repository, or no token for its git host")
	ErrHost    = errors.New("the git host does not answer as expected")
	ErrToken   = errors.New("the git host does not accept the token: replace it in the user's settings")
	// ErrRate is an ErrHost.
	ErrRate = fmt.Errorf("%w: it limits the rate of requests, so try again later", ErrHost)
	// ErrQuestion is the error for a request that is invalid or that the host refuses.
	ErrQuestion = errors.New("the request is invalid")
)

// Host is the API of a git host.
type Host struct {
	provider v1alpha1.GitProvider
	root     string // root URL of the git host
	api      string
	name     string // owner/name of the session's repository
	header   http.Header
	client   *http.Client
	// public is set for a provider's public host, such as github.com. Other hosts may have other API
	// addresses. They may run Gitea even if the settings name GitHub as the provider.
	public bool
}

// New returns the API of the repository's host.
func New(repository *session.Repository, token string) (*Host, error) {
	if repository == nil || token == "" {
		return nil, ErrNoToken
	}
	remote, err := workspace.Locate(repository)
	if err != nil || remote.User == "" { // the token is not for this repository's host
		return nil, ErrNoToken
	}
	h := &Host{provider: cmp.Or(repository.Provider, v1alpha1.GitHub), header: http.Header{},
		root: remote.URL.Scheme + "://" + remote.URL.Host, public: session.IsPublicHost(remote.URL.Hostname()),
		name: strings.TrimSuffix(strings.Trim(remote.URL.Path, "/"), ".git")}
	// The client follows no redirects, because the token must not reach another host. Only the
	// method Read follows a redirect, without the token.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	h.client = &http.Client{Timeout: timeout, CheckRedirect: stay}
	h.header.Set("Authorization", "Bearer "+token)
	switch h.provider {
	case v1alpha1.GitLab:
		h.api = h.root + "/api/v4"
	case v1alpha1.Bitbucket:
		h.api = h.root + "/2.0"
		if h.public {
			h.api = "https://api.bitbucket.org/2.0"
		}
		if strings.Contains(token, ":") {
			h.header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(token)))
		}
	default:
		h.api = h.root + "/api/v3"
		if h.public {
			h.api = "https://api.github.com"
		}
	}
	return h, nil
}

// gitea is the kind of Gitea and Forgejo hosts. The settings have no such provider, so users store
// the tokens of these hosts under another provider's name.
const gitea v1alpha1.GitProvider = "gitea"

// kind returns the kind of the host and the URL of its API. It asks a self-hosted server for its
// version, because users may store a token of Gitea or Forgejo as a GitHub token.
func (h *Host) kind(ctx context.Context) (kind v1alpha1.GitProvider, api string, err error) {
	if h.public || h.provider == v1alpha1.GitLab || h.provider == v1alpha1.Bitbucket {
		return h.provider, h.api, nil
	}
	response, err := h.send(ctx, http.MethodGet, h.root+"/api/v1/version", nil)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	if err := accessError(response); errors.Is(err, ErrRate) {
		return "", "", err
	}
	if response.StatusCode >= http.StatusInternalServerError {
		return "", "", fmt.Errorf("%w: status %d", ErrHost, response.StatusCode)
	}
	// A GitHub server may answer with an error, a redirect to its login page, or a page.
	var about struct{ Version string }
	if response.StatusCode == http.StatusOK &&
		json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&about) == nil && about.Version != "" {
		return gitea, h.root + "/api/v1", nil
	}
	return v1alpha1.GitHub, h.api, nil
}

// get reads from the host's API. The parameter api is the URL of the API.
func (h *Host) get(ctx context.Context, api, path string, query url.Values, into any) error {
	err := h.call(ctx, http.MethodGet, api+path+"?"+query.Encode(), nil, into)
	if r, ok := errors.AsType[*refused](err); ok {
		return fmt.Errorf("%w: status %d", ErrHost, r.status)
	}
	return err
}

func (h *Host) call(ctx context.Context, method, address string, body, into any) error {
	response, err := h.send(ctx, method, address, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := accessError(response); err != nil {
		return err
	}
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated:
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity:
		return refusal(response)
	default:
		return fmt.Errorf("%w: status %d", ErrHost, response.StatusCode)
	}
	if json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(into) != nil {
		return ErrHost
	}
	return nil
}

// accessError returns ErrToken or ErrRate if the response denies access.
func accessError(response *http.Response) error {
	denied := response.StatusCode == http.StatusForbidden
	switch {
	case response.StatusCode == http.StatusTooManyRequests,
		denied && (response.Header.Get("Retry-After") != "" || response.Header.Get("X-RateLimit-Remaining") == "0"):
		return ErrRate
	case denied, response.StatusCode == http.StatusUnauthorized:
		return ErrToken
	}
	return nil
}

func (h *Host) send(ctx context.Context, method, address string, body any) (*http.Response, error) {
	var text io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, text)
	if err != nil {
		return nil, ErrHost
	}
	request.Header = h.header.Clone()
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := h.client.Do(request)
	if err != nil {
		return nil, ErrHost
	}
	return response, nil
}

// text decodes a JSON string or number as text.
type text string

func (t *text) UnmarshalJSON(raw []byte) error {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		*t = text(s)
		return nil
	}
	*t = text(strings.TrimSpace(string(raw)))
	return nil
}

// User returns the owner of the token.
func (h *Host) User(ctx context.Context) (*session.GitUser, error) {
	var u struct {
		ID        text    `json:"id"`
		UUID      string  `json:"uuid"`
		Login     string  `json:"login"`
		Username  string  `json:"username"`
		AvatarURL string  `json:"avatar_url"`
		Company   *string `json:"company"`
		Name      *string `json:"name"`
		Display   *string `json:"display_name"`
		FullName  *string `json:"full_name"`
		Email     *string `json:"email"`
	}
	_, api, err := h.kind(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.get(ctx, api, "/user", nil, &u); err != nil {
		return nil, err
	}
	return &session.GitUser{ID: cmp.Or(string(u.ID), u.UUID), Login: cmp.Or(u.Login, u.Username), AvatarURL: u.AvatarURL,
		Company: u.Company, Name: cmp.Or(u.Name, u.Display, u.FullName), Email: u.Email}, nil
}

// repository is a repository in a host's response. It contains the fields of every provider's API.
type repository struct {
	ID            text    `json:"id"`
	UUID          string  `json:"uuid"`
	FullName      string  `json:"full_name"`
	Path          string  `json:"path_with_namespace"`
	Private       *bool   `json:"private"`
	IsPrivate     *bool   `json:"is_private"`
	Visibility    string  `json:"visibility"`
	Stars         *int64  `json:"stargazers_count"`
	StarCount     *int64  `json:"star_count"`
	StarsCount    *int64  `json:"stars_count"`
	PushedAt      *string `json:"pushed_at"`
	Activity      *string `json:"last_activity_at"`
	UpdatedOn     *string `json:"updated_on"`
	UpdatedAt     *string `json:"updated_at"`
	DefaultBranch *string `json:"default_branch"`
	MainBranch    *struct {
		Name string `json:"name"`
	} `json:"mainbranch"`
}

func (h *Host) repository(r repository) session.GitRepository {
	result := session.GitRepository{
		ID: cmp.Or(string(r.ID), r.UUID), FullName: cmp.Or(r.FullName, r.Path), GitProvider: string(h.provider),
		Stars: cmp.Or(r.Stars, r.StarCount, r.StarsCount), PushedAt: cmp.Or(r.PushedAt, r.Activity, r.UpdatedOn, r.UpdatedAt),
		MainBranch: r.DefaultBranch,
	}
	result.IsPublic = !ptr.Deref(cmp.Or(r.Private, r.IsPrivate), r.Visibility != "public")
	if result.MainBranch == nil && r.MainBranch != nil {
		result.MainBranch = &r.MainBranch.Name
	}
	return result
}

// Repositories returns a page of the user's repositories. If the caller passes search words, it
// returns a page of search results instead.
func (h *Host) Repositories(ctx context.Context, words string, page, size int) ([]session.GitRepository, error) {
	kind, api, err := h.kind(ctx)
	if err != nil {
		return nil, err
	}
	number, count := strconv.Itoa(page), strconv.Itoa(size)
	var found []repository
	switch {
	case kind == v1alpha1.GitLab:
		query := url.Values{"membership": {"true"}, "order_by": {"last_activity_at"}, "page": {number}, "per_page": {count}}
		if words != "" {
			query.Set("search", words)
		}
		err = h.get(ctx, api, "/projects", query, &found)
	case kind == v1alpha1.Bitbucket:
		query := url.Values{"role": {"member"}, "sort": {"-updated_on"}, "page": {number}, "pagelen": {count}}
		if words != "" {
			query.Set("q", "name ~ "+strconv.Quote(words))
		}
		var list struct{ Values []repository }
		err = h.get(ctx, api, "/repositories", query, &list)
		found = list.Values
	case kind == gitea && words != "":
		var list struct{ Data []repository }
		err = h.get(ctx, api, "/repos/search", url.Values{"q": {words}, "page": {number}, "limit": {count}}, &list)
		found = list.Data
	case kind == gitea:
		err = h.get(ctx, api, "/user/repos", url.Values{"page": {number}, "limit": {count}}, &found)
	case words != "":
		var list struct{ Items []repository }
		err = h.get(ctx, api, "/search/repositories", url.Values{"q": {words}, "page": {number}, "per_page": {count}}, &list)
		found = list.Items
	default:
		err = h.get(ctx, api, "/user/repos", url.Values{"sort": {"pushed"}, "page": {number}, "per_page": {count}}, &found)
	}
	list := []session.GitRepository{}
	for _, r := range found {
		list = append(list, h.repository(r))
	}
	return list, err
}

// Branches returns the branches of the repository owner/name.
func (h *Host) Branches(ctx context.Context, name string) ([]session.GitBranch, error) {
	parts := strings.Split(strings.Trim(name, "/"), "/")
	for i, part := range parts {
		if part == "" || part == "." || part == ".." || len(parts) < 2 {
			return nil, fmt.Errorf("%w: repository: must be owner/name", ErrQuestion)
		}
		parts[i] = url.PathEscape(part)
	}
	type branch struct {
		Name      string `json:"name"`
		Protected bool   `json:"protected"`
		Commit    struct {
			SHA  string  `json:"sha"`
			ID   string  `json:"id"`
			Date *string `json:"committed_date"`
			Time *string `json:"timestamp"`
		} `json:"commit"`
		Target struct {
			Hash string  `json:"hash"`
			Date *string `json:"date"`
		} `json:"target"`
	}
	kind, api, err := h.kind(ctx)
	if err != nil {
		return nil, err
	}
	pageSize := strconv.Itoa(maxPageSize)
	var found []branch
	switch kind {
	case v1alpha1.GitLab:
		err = h.get(ctx, api, "/projects/"+strings.Join(parts, "%2F")+"/repository/branches",
			url.Values{"per_page": {pageSize}}, &found)
	case v1alpha1.Bitbucket:
		var list struct{ Values []branch }
		err = h.get(ctx, api, "/repositories/"+strings.Join(parts, "/")+"/refs/branches",
			url.Values{"pagelen": {pageSize}}, &list)
		found = list.Values
	case gitea:
		for page := 1; err == nil && len(found) == (page-1)*giteaPageSize && len(found) < maxPageSize; page++ {
			var more []branch
			err = h.get(ctx, api, "/repos/"+strings.Join(parts, "/")+"/branches",
				url.Values{"page": {strconv.Itoa(page)}, "limit": {strconv.Itoa(giteaPageSize)}}, &more)
			found = append(found, more...)
		}
	default:
		err = h.get(ctx, api, "/repos/"+strings.Join(parts, "/")+"/branches", url.Values{"per_page": {pageSize}}, &found)
	}
	list := []session.GitBranch{}
	for _, b := range found {
		list = append(list, session.GitBranch{
			Name: b.Name, Protected: b.Protected, CommitSHA: cmp.Or(b.Commit.SHA, b.Commit.ID, b.Target.Hash),
			LastPushDate: cmp.Or(b.Commit.Date, b.Commit.Time, b.Target.Date),
		})
	}
	return list, err
}
