package modelproxy

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// google is Gemini's API. The path of a call contains the model and the method.
const google wire = "generateContent"

const streamGenerateContent = "streamGenerateContent"

// googlePath matches paths of Gemini's API, which consist of version, model and method.
var googlePath = regexp.MustCompile(
	`^/v1(?:beta|alpha)?/models/([A-Za-z0-9][A-Za-z0-9._-]*):(generateContent|streamGenerateContent|countTokens)$`)

// googleVersions are the version suffixes of base URLs. They include the suffix of Google's base
// URL for OpenAI's SDK.
var googleVersions = []string{"/openai", "/v1beta", "/v1alpha", "/v1"}

func googleRoute(r *http.Request) (route, bool) {
	match := googlePath.FindStringSubmatch(r.URL.Path)
	if r.Method != http.MethodPost || match == nil {
		return route{}, false
	}
	return route{wire: google, path: r.URL.Path, counted: match[2] != "countTokens", model: match[1]}, true
}

// wantsJSONList reports whether a call requests a stream in the form of a JSON list. The proxy
// refuses such a call, because it cannot read the usage from that format.
func (c route) wantsJSONList(query url.Values) bool {
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

// googleBase removes the API version from a base URL's path, because the path of each call contains
// a version.
func googleBase(path string) string {
	for _, version := range googleVersions {
		path = strings.TrimSuffix(path, version)
	}
	return path
}

type googleUsage struct {
	Prompt     int64 `json:"promptTokenCount"`
	Candidates int64 `json:"candidatesTokenCount"`
	Thoughts   int64 `json:"thoughtsTokenCount"`
	Cached     int64 `json:"cachedContentTokenCount"`
	// ToolUse counts the tokens in the results of tools that the provider ran. Prompt does not
	// include them.
	ToolUse int64 `json:"toolUsePromptTokenCount"`
}

func (u googleUsage) tokens() tokens {
	return tokens{input: u.Prompt + u.ToolUse - u.Cached, output: u.Candidates + u.Thoughts, cacheRead: u.Cached}
}
