package modelproxy

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// google is Gemini's API. Its paths contain the model and the method.
const google wire = "generateContent"

// streamGenerateContent is the streaming method of Gemini's API.
const streamGenerateContent = "streamGenerateContent"

// googlePath matches the paths of Gemini's API: version, model and method. A model's name has no
// slash.
var googlePath = regexp.MustCompile(
	`^/v1(?:beta|alpha)?/models/([A-Za-z0-9][A-Za-z0-9._-]*):(generateContent|streamGenerateContent|countTokens)$`)

// googleVersions are the suffixes of a base URL that name a version, including the base URL for
// OpenAI's SDK on Google's host.
var googleVersions = []string{"/openai", "/v1beta", "/v1alpha", "/v1"}

// googleRoute returns the route of a Gemini call.
func googleRoute(r *http.Request) (route, bool) {
	match := googlePath.FindStringSubmatch(r.URL.Path)
	if r.Method != http.MethodPost || match == nil {
		return route{}, false
	}
	return route{wire: google, path: r.URL.Path, counted: match[2] != "countTokens", model: match[1]}, true
}

// pieces reports whether a call requests a stream as a JSON list. The proxy cannot read the usage
// from that format.
func (c route) pieces(query url.Values) bool {
	return c.wire == google && strings.HasSuffix(c.path, streamGenerateContent) && query.Get("alt") != "sse"
}

// googleQuery returns the query without the agent's key.
func googleQuery(query string) string {
	values, err := url.ParseQuery(query)
	if err != nil {
		return ""
	}
	values.Del("key")
	values.Del("access_token")
	return values.Encode()
}

// googleBase removes the API version from the path of a base URL, because the path of each call
// contains the version.
func googleBase(path string) string {
	for _, version := range googleVersions {
		path = strings.TrimSuffix(path, version)
	}
	return path
}

// googleUsage is the usage in a response of Gemini.
type googleUsage struct {
	Prompt     int64 `json:"promptTokenCount"`
	Candidates int64 `json:"candidatesTokenCount"`
	Thoughts   int64 `json:"thoughtsTokenCount"`
	Cached     int64 `json:"cachedContentTokenCount"`
	// ToolUse counts the results of tools that the provider ran. Prompt does not include these
	// results.
	ToolUse int64 `json:"toolUsePromptTokenCount"`
}

func (u googleUsage) tokens() tokens {
	return tokens{input: u.Prompt + u.ToolUse - u.Cached, output: u.Candidates + u.Thoughts, cacheRead: u.Cached}
}
