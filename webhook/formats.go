package webhook

import (
	"errors"
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/text/language"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Each function in this file returns the problem of a value. An empty result means that the value
// is valid.

// repositoryPath matches owner/name, with optional groups in between. No part starts with -, which
// a command would parse as an option.
var repositoryPath = regexp.MustCompile(`^[\w.~][\w.-]*(/[\w.~][\w.-]*)+$`)

func repositoryProblem(value string) string {
	if strings.Contains(value, "://") {
		return repositoryURLProblem(value)
	}
	dots := func(part string) bool { return part == "." || part == ".." }
	if !repositoryPath.MatchString(value) || slices.ContainsFunc(strings.Split(value, "/"), dots) {
		return "must be owner/name, or an http, https or file URL"
	}
	return ""
}

func repositoryURLProblem(value string) string {
	if problem := repositoryURL.problem(value); problem != "" {
		return problem
	}
	u, err := url.Parse(value)
	switch {
	case err != nil || strings.Trim(u.Path, "/") == "":
		return "must be a URL with the path of a repository"
	case u.RawQuery != "" || u.Fragment != "":
		// A query may contain a token, because providers accept tokens as query parameters.
		return "must be a URL without a query or fragment: " + repositoryURL.secretHint
	}
	return ""
}

func branchProblem(value string) string {
	if plumbing.NewBranchReferenceName(value).Validate() != nil {
		return "must be a valid branch name, see git check-ref-format"
	}
	return ""
}

func imageReferenceProblem(value string) string {
	if _, err := name.ParseReference(value); err != nil {
		return "must be an image reference, such as registry.example.com/team/image:tag"
	}
	return ""
}

func emailProblem(value string) string {
	if address, err := mail.ParseAddress(value); err != nil || address.Address != value {
		return "must be an email address without a display name, such as jane@example.com"
	}
	return ""
}

func languageProblem(value string) string {
	// Accept a tag that causes a ValueError: it is well-formed, but the library does not know it.
	// The library may be older than the tag.
	var unknown language.ValueError
	if _, err := language.Parse(value); err != nil && !errors.As(err, &unknown) {
		return "must be a language tag, such as en or zh-CN"
	}
	return ""
}

func hostProblem(value string) string {
	u, err := url.Parse("//" + value)
	if err != nil || u.Host != value || !validHostname(u.Hostname()) || !validPort(u) {
		return "must be a host or host:port, without a scheme or path, such as git.example.com"
	}
	return ""
}

func validHostname(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return len(validation.IsDNS1123Subdomain(strings.ToLower(host))) == 0
}

func validPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && port > 0
}
