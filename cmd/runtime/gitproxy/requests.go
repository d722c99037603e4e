package gitproxy

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// route is a kind of request that the proxy forwards. path matches the whole path of the request,
// including the repository's path.
type route struct {
	methods []string
	path    *regexp.Regexp
}

// at() returns a route for requests whose path is the path of a repository, followed by
// the pattern.
func at(pattern string, methods ...string) route {
	return route{methods, regexp.MustCompile(`^(?:[^/]+/)+` + pattern + `$`)}
}

var (
	references = at(`info/refs`, http.MethodGet)
	batch      = at(`info/lfs/objects/batch`, http.MethodPost)
	// object matches the end of an LFS object's URL, on hosts that store objects themselves. The
	// URL of an upload ends with the object's size.
	object = `objects/[0-9a-f]{64}(?:/[0-9]+)?`

	routes = []route{
		at(`git-(?:upload|receive)-pack`, http.MethodPost), batch,
		at(`info/lfs/`+object, http.MethodGet, http.MethodPut), at(`gitlab-lfs/`+object, http.MethodGet, http.MethodPut),
		at(`info/lfs/verify`, http.MethodPost), at(`info/lfs/locks`, http.MethodGet, http.MethodPost),
		at(`info/lfs/locks/verify`, http.MethodPost), at(`info/lfs/locks/[^/]+/unlock`, http.MethodPost),
	}
)

// allowed reports whether a request belongs to git's smart protocol or to LFS. Only these requests
// get the token. Otherwise, the agent could use the host's API.
func allowed(method, path string, query url.Values) bool {
	segments := strings.Split(path, "/")
	odd := func(s string) bool { return s == "" || s == "." || s == ".." || strings.ContainsAny(s, `%\;`) }
	if slices.ContainsFunc(segments, odd) {
		return false
	}
	if references.takes(method, path) {
		service := query.Get("service")
		return len(query) == 1 && (service == "git-upload-pack" || service == "git-receive-pack")
	}
	return slices.ContainsFunc(routes, func(r route) bool { return r.takes(method, path) })
}

func (r route) takes(method, path string) bool {
	return slices.Contains(r.methods, method) && r.path.MatchString(path)
}

func isLFS(path string) bool { return strings.Contains(path, "/info/lfs/") }

func isBatch(path string) bool { return batch.path.MatchString(strings.TrimPrefix(path, "/")) }
