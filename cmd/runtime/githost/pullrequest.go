package githost

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// maxReason bounds the part of a host's error message that is quoted, in bytes.
const maxReason = 500

// PullRequest is a request to merge one branch of the repository into another. GitLab calls it a
// merge request.
type PullRequest struct {
	Title, Body string
	// Branch is merged into Base. If Base is empty, the default branch is used.
	Branch, Base string
}

type refused struct {
	status int
	reason string
}

func (r *refused) Error() string {
	return fmt.Sprintf("the git host refuses the request with status %d%s", r.status, r.reason)
}

// Is makes errors.Is treat a refusal as an ErrQuestion.
func (r *refused) Is(target error) bool { return target == ErrQuestion }

// refusal returns an error with a response's status and the messages from its body.
func refusal(response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10)) // use as much as can be read
	var body any
	var found []string
	if json.Unmarshal(text, &body) == nil {
		found = messages(body, nil)
	}
	r := &refused{status: response.StatusCode}
	if reason := strings.Join(found, "; "); reason != "" {
		r.reason = ": " + strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	}
	return r
}

func messages(value any, found []string) []string {
	switch v := value.(type) {
	case string:
		found = append(found, v)
	case []any:
		for _, item := range v {
			found = messages(item, found)
		}
	case map[string]any:
		for _, key := range []string{"message", "error", "errors"} {
			found = messages(v[key], found)
		}
	}
	return found
}

// dialect returns the kind of the host and the repository's URL in the host's API.
func (h *Host) dialect(ctx context.Context) (kind v1alpha1.GitProvider, repository string, err error) {
	owner, name, ok := cutLast(h.name)
	if !ok {
		return "", "", fmt.Errorf("%w: the repository must be owner/name", ErrQuestion)
	}
	kind, api, err := h.kind(ctx)
	path := escaped(owner) + "/" + url.PathEscape(name)
	switch kind {
	case v1alpha1.GitLab:
		return kind, api + "/projects/" + url.PathEscape(h.name), err
	case v1alpha1.Bitbucket:
		return kind, api + "/repositories/" + path, err
	}
	return kind, api + "/repos/" + path, err
}

func cutLast(name string) (owner, last string, ok bool) {
	i := strings.LastIndex(name, "/")
	if i <= 0 {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

func escaped(path string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

// created decodes a new pull request or comment. Each kind of host sends the link in a different
// field.
type created struct {
	HTMLURL string `json:"html_url"`
	WebURL  string `json:"web_url"`
	Links   struct {
		HTML struct {
			Href string `json:"href"`
		} `json:"html"`
	} `json:"links"`
	State string `json:"state"`
	ID    int    `json:"id"`
}

func (c *created) link() string { return cmp.Or(c.HTMLURL, c.WebURL, c.Links.HTML.Href) }

// CreatePullRequest opens a pull request and returns its link. If the branch already has an open
// pull request, it returns the link of that pull request.
func (h *Host) CreatePullRequest(ctx context.Context, pr PullRequest) (link string, err error) {
	kind, repository, err := h.dialect(ctx)
	if err != nil {
		return "", err
	}
	if pr.Base, err = h.base(ctx, repository, pr.Base); err != nil {
		return "", err
	}
	if pr.Branch == pr.Base {
		return "", fmt.Errorf("%w: the branch %s cannot be merged into itself: commit to another branch", ErrQuestion,
			pr.Branch)
	}
	path, body := request(kind, pr)
	var made created
	err = h.call(ctx, http.MethodPost, repository+path, body, &made)
	var r *refused
	if errors.As(err, &r) && (r.status == http.StatusConflict || r.status == http.StatusUnprocessableEntity) {
		if link := h.existing(ctx, kind, repository, pr); link != "" {
			return link, nil
		}
	}
	if err == nil && made.link() == "" {
		err = ErrHost
	}
	return made.link(), err
}

// DefaultBranch returns the default branch of the repository.
func (h *Host) DefaultBranch(ctx context.Context) (string, error) {
	_, repository, err := h.dialect(ctx)
	if err != nil {
		return "", err
	}
	return h.base(ctx, repository, "")
}

func (h *Host) base(ctx context.Context, repository, base string) (string, error) {
	if base != "" {
		return base, nil
	}
	var r struct {
		DefaultBranch string `json:"default_branch"`
		MainBranch    struct {
			Name string `json:"name"`
		} `json:"mainbranch"`
	}
	if err := h.call(ctx, http.MethodGet, repository, nil, &r); err != nil {
		return "", err
	}
	if base = cmp.Or(r.DefaultBranch, r.MainBranch.Name); base == "" {
		return "", fmt.Errorf("%w: the repository has no default branch: set the base branch", ErrQuestion)
	}
	return base, nil
}

// request returns the path and body of the request that opens a pull request.
func request(kind v1alpha1.GitProvider, pr PullRequest) (path string, body any) {
	type branch struct {
		Branch struct {
			Name string `json:"name"`
		} `json:"branch"`
	}
	switch kind {
	case v1alpha1.GitLab:
		return "/merge_requests", map[string]string{"title": pr.Title, "description": pr.Body,
			"source_branch": pr.Branch, "target_branch": pr.Base}
	case v1alpha1.Bitbucket:
		var from, to branch
		from.Branch.Name, to.Branch.Name = pr.Branch, pr.Base
		return "/pullrequests", map[string]any{"title": pr.Title, "description": pr.Body, "source": from, "destination": to}
	default:
		return "/pulls", map[string]string{"title": pr.Title, "body": pr.Body, "head": pr.Branch, "base": pr.Base}
	}
}

// existing returns the link of the branch's open pull request, or an empty string. It does not
// search on Bitbucket. There, the creation of a second pull request does not fail, but updates the
// existing one.
func (h *Host) existing(ctx context.Context, kind v1alpha1.GitProvider, repository string, pr PullRequest) string {
	var found []created
	switch owner, _, _ := cutLast(h.name); kind {
	case v1alpha1.GitLab:
		query := url.Values{"state": {"opened"}, "source_branch": {pr.Branch}, "target_branch": {pr.Base}}
		_ = h.call(ctx, http.MethodGet, repository+"/merge_requests?"+query.Encode(), nil, &found)
	case gitea:
		var one created
		if h.call(ctx, http.MethodGet, repository+"/pulls/"+escaped(pr.Base)+"/"+escaped(pr.Branch), nil, &one) == nil &&
			one.State == "open" {
			found = []created{one}
		}
	case v1alpha1.GitHub:
		query := url.Values{"state": {"open"}, "head": {owner + ":" + pr.Branch}, "base": {pr.Base}}
		_ = h.call(ctx, http.MethodGet, repository+"/pulls?"+query.Encode(), nil, &found)
	}
	if len(found) == 0 {
		return ""
	}
	return found[0].link()
}

// Comment adds a comment to a pull request or an issue and returns the comment's link. On GitHub
// and Gitea, pull requests and issues share one sequence of numbers and one path for comments, so
// onIssue has no effect there.
func (h *Host) Comment(ctx context.Context, number int, onIssue bool, text string) (link string, err error) {
	kind, repository, err := h.dialect(ctx)
	if err != nil {
		return "", err
	}
	n := strconv.Itoa(number)
	var path string
	var body any = map[string]string{"body": text}
	switch {
	case kind == v1alpha1.GitLab && onIssue:
		path = "/issues/" + n + "/notes"
	case kind == v1alpha1.GitLab:
		path = "/merge_requests/" + n + "/notes"
	case kind == v1alpha1.Bitbucket:
		body = map[string]any{"content": map[string]string{"raw": text}}
		path = "/pullrequests/" + n + "/comments"
		if onIssue {
			path = "/issues/" + n + "/comments"
		}
	default:
		path = "/issues/" + n + "/comments"
	}
	var made created
	if err := h.call(ctx, http.MethodPost, repository+path, body, &made); err != nil {
		return "", err
	}
	if link := made.link(); link != "" || kind != v1alpha1.GitLab { // GitLab's notes have no link
		return link, nil
	}
	section := "merge_requests"
	if onIssue {
		section = "issues"
	}
	return fmt.Sprintf("%s/%s/-/%s/%s#note_%d", h.root, h.name, section, n, made.ID), nil
}
