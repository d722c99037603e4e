package modelproxy

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// google is the wire of Gemini. It has the model, and what is asked of it, in its path.
const google wire = "generateContent"

// streamGenerateContent is the method of that wire that answers in pieces.
const streamGenerateContent = "streamGenerateContent"

// googlePath is a path of that wire: version, model and method. A model's name there has no slash.
var googlePath = regexp.MustCompile(
	`^/v1(?:beta|alpha)?/models/([A-Za-z0-9][A-Za-z0-9._-]*):(generateContent|streamGenerateContent|countTokens)$`)

// googleVersions are the ends of a base URL that name a version; that of an SDK for OpenAI's wires
// on Google's host too.
var googleVersions = []string{"/openai", "/v1beta", "/v1alpha", "/v1"}

// googleRoute is the call of a path of that wire.
func googleRoute(r *http.Request) (route, bool) {
	match := googlePath.FindStringSubmatch(r.URL.Path)
	if r.Method != http.MethodPost || match == nil {
		return route{}, false
	}
	return route{wire: google, path: r.URL.Path, counted: match[2] != "countTokens", model: match[1]}, true
}

// pieces says whether a call wants its answer in pieces that are no events: a list in JSON, whose
// usage would not be seen.
func (c route) pieces(query url.Values) bool {
	return c.wire == google && strings.HasSuffix(c.path, streamGenerateContent) && query.Get("alt") != "sse"
}

// googleQuery is what the agent asks, without its key.
func googleQuery(query string) string {
	values, err := url.ParseQuery(query)
	if err != nil {
		return ""
	}
	values.Del("key")
	values.Del("access_token")
	return values.Encode()
}

// googleBase is the path of an endpoint before the version, which is in the call's own path.
func googleBase(path string) string {
	for _, version := range googleVersions {
		path = strings.TrimSuffix(path, version)
	}
	return path
}

// googleUsage is what an answer of that wire tells.
type googleUsage struct {
	Prompt     int64 `json:"promptTokenCount"`
	Candidates int64 `json:"candidatesTokenCount"`
	Thoughts   int64 `json:"thoughtsTokenCount"`
	Cached     int64 `json:"cachedContentTokenCount"`
	// ToolUse are the results of tools that the provider itself ran, which the prompt does not
	// count.
	ToolUse int64 `json:"toolUsePromptTokenCount"`
}

func (u googleUsage) tokens() tokens {
	return tokens{input: u.Prompt + u.ToolUse - u.Cached, output: u.Candidates + u.Thoughts, cacheRead: u.Cached}
}
