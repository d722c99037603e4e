package webhook

import (
	"mime"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// urlRule is the format of the URL in a field.
type urlRule struct {
	schemes []string
	// secretHint is the end of the error message for a URL that contains a user name, a password or
	// a key. It says where the secret belongs.
	secretHint string
	// If signed is true, the query of the URL may contain a key, as in signed URLs. Such a key gives
	// access to one URL only.
	signed bool
}

// keyParameter matches the names of parameters that hold a key.
var keyParameter = regexp.MustCompile(`(?i)(key|token|secret|password|passwd|credentials?|signature)$|^(auth|sig)$`)

var (
	llmURL = urlRule{
		schemes:    []string{"http", "https"},
		secretHint: "name a Secret in llmAPIKeyRef",
	}
	mcpURL = urlRule{
		schemes:    []string{"http", "https", "ws", "wss"},
		secretHint: "name a Secret in apiKeyRef",
	}
	imageURL = urlRule{
		schemes:    []string{"http", "https", "data"},
		secretHint: "use a URL without a key, or a data URL",
		signed:     true,
	}
	repositoryURL = urlRule{
		schemes:    []string{"http", "https", "file"},
		secretHint: "name a provider token in secretsStore.providerTokens of the UserSettings",
	}
)

// problem describes why a URL is invalid; empty means that the URL is valid. The description never
// contains the URL or the parser's error, which contains the URL.
func (r urlRule) problem(value string) string {
	u, err := url.Parse(value)
	switch {
	case err != nil:
		return "must be a valid URL"
	case u.User != nil:
		return "must not contain a user name or password: never put secrets into a spec; " + r.secretHint
	case !r.signed && hasKey(u):
		return "must not contain a key in its query: never put secrets into a spec; " + r.secretHint
	case !slices.Contains(r.schemes, u.Scheme):
		return "must be a URL with one of the schemes " + strings.Join(r.schemes, ", ")
	case u.Scheme == "file":
		if u.Host != "" {
			return "must be a file URL without a host, such as file:///srv/repository.git"
		}
	case u.Hostname() == "":
		return "must be a URL with a host"
	case !validPort(u):
		return "must be a URL without a port, or with a port between 1 and 65535"
	}
	return ""
}

func hasKey(u *url.URL) bool {
	for name, values := range u.Query() {
		if keyParameter.MatchString(name) && strings.Join(values, "") != "" {
			return true
		}
	}
	return false
}

// imageURLProblem checks the URL of an image, or a data URL with the image itself.
func imageURLProblem(value string) string {
	scheme, data, _ := strings.Cut(value, ":")
	if !strings.EqualFold(scheme, "data") {
		return imageURL.problem(value)
	}
	mediaType, content, _ := strings.Cut(data, ",")
	mediaType, _, err := mime.ParseMediaType(strings.TrimSuffix(mediaType, ";base64"))
	subtype, isImage := strings.CutPrefix(mediaType, "image/")
	if err != nil || !isImage || subtype == "" {
		return "must be a data URL with an image media type, such as data:image/png;base64,"
	}
	if content == "" {
		return "must be a data URL with an image after its comma"
	}
	return ""
}
