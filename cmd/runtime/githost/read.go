package githost

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// maxRead is the maximum number of bytes of a response that Read returns.
const maxRead = 64 << 10

// readable matches the paths below a repository's API path that a session may read. Other paths may
// return settings and secrets. GitLab, for example, returns the values of CI variables.
var readable = regexp.MustCompile(`^/(issues|pulls|merge_requests|pullrequests|commits?|statuses|check-runs|` +
	`check-suites|actions/runs|actions/jobs|pipelines|jobs)(/|$)`)

// Read reads data about the repository from the host's API, such as an issue's comments. The path
// is relative to the repository's API path and may contain a query.
func (h *Host) Read(ctx context.Context, path string) (string, error) {
	path, query, _ := strings.Cut(path, "?")
	if !readable.MatchString(path) || strings.ContainsAny(path, `%\;#`) || strings.Contains(path, "..") ||
		strings.Contains(path, "/variables") {
		return "", fmt.Errorf("%w: path: only issues, pull requests, commits, checks and their logs can be read",
			ErrQuestion)
	}
	_, repository, err := h.dialect(ctx)
	if err != nil {
		return "", err
	}
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return "", fmt.Errorf("%w: path: its query is invalid", ErrQuestion)
	}
	response, err := h.send(ctx, http.MethodGet, repository+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return "", err
	}
	if target, err := response.Location(); err == nil {
		_ = response.Body.Close()
		if response, err = h.follow(ctx, target); err != nil {
			return "", err
		}
	}
	defer func() { _ = response.Body.Close() }()
	if err := accessError(response); err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", refusal(response)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxRead+1))
	if err != nil {
		return "", ErrHost
	}
	if len(text) > maxRead {
		return strings.ToValidUTF8(string(text[:maxRead]), "") + "\n[the rest is left out: request fewer items per page]", nil
	}
	return string(text), nil
}

// follow follows a redirect without the token. GitHub redirects requests for logs to a signed link
// on another host.
func (h *Host) follow(ctx context.Context, target *url.URL) (*http.Response, error) {
	if target.Scheme != "https" {
		return nil, ErrHost
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, ErrHost
	}
	response, err := h.client.Do(request)
	if err != nil {
		return nil, ErrHost
	}
	return response, nil
}
