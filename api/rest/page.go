package rest

import (
	"strconv"
	"time"
)

// Session is the response to GET /api/session: the signed-in user, or null.
type Session struct {
	User      *string `json:"user"`
	Namespace *string `json:"namespace"`
	// SettingsStored is true if the user stored settings or inherits settings.
	SettingsStored bool `json:"settings_stored"`
	// Person is the username of the signed-in person; null if the client authenticates with a session
	// key. Settings lists the UserSettings objects that the person may use.
	Person   *string        `json:"person"`
	Settings []SettingsName `json:"settings"`
	// EndSessionURL is set in the response to a sign-out. At this URL, a browser ends its session at
	// the OpenID provider.
	EndSessionURL string `json:"end_session_url,omitempty"`
}

// SettingsHeader is the header in which a client names the UserSettings object to use, as
// namespace/name. Browsers cannot set headers for links and WebSockets. Links and WebSockets
// therefore use the query parameter SettingsParameter.
const (
	SettingsHeader    = "X-Parley-Settings"
	SettingsParameter = "settings"
)

// SettingsName is the namespace and the name of a UserSettings object.
type SettingsName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// SettingsChoice is the response to a person who must choose one of several UserSettings objects.
type SettingsChoice struct {
	Detail   string         `json:"detail"`
	Settings []SettingsName `json:"settings"`
}

// SignInOptions is the response to GET /api/signin/options.
type SignInOptions struct {
	// OIDC is null if people do not sign in with an OpenID provider.
	OIDC *OIDCOptions `json:"oidc"`
}

// OIDCOptions are the options of a client that signs in with the OpenID provider.
type OIDCOptions struct {
	Issuer string `json:"issuer"`
	// CLIClientID is the ID of the public OAuth client for command-line programs.
	CLIClientID *string  `json:"cli_client_id"`
	Scopes      []string `json:"scopes"`
}

// SignIn is the body of POST /api/signin: a session key, or the code of a sign-in link.
type SignIn struct {
	Key  string `json:"key,omitempty"`
	Code string `json:"code,omitempty"`
	// Replace confirms a sign-in by link: the user of the link replaces the user who is signed in,
	// if any.
	Replace bool `json:"replace,omitempty"`
}

// SignInConflict is the response to a sign-in by link that does not set Replace. The person must
// first confirm the sign-in.
type SignInConflict struct {
	Detail string `json:"detail"`
	// User is the owner of the link.
	User      string `json:"user"`
	Namespace string `json:"namespace"`
}

// SignInLink is the response to POST /api/signin/link.
type SignInLink struct {
	// Path is the path of a page that signs the user in. The page works one time. The path ends with #
	// and the sign-in code, because browsers do not send the part after # to a server.
	Path      string    `json:"path"`
	ExpiresAt time.Time `json:"expires_at"`
}

// DecodeSignIn reads the body of POST /api/signin.
func DecodeSignIn(body []byte) (SignIn, []Detail) {
	return decodeBody(body, func(o *object) SignIn {
		if code := orZero(optional(o, "code", text)); code != "" {
			return SignIn{Code: code, Replace: orZero(optional(o, "replace", boolean))}
		}
		key := required(o, "key", text)
		if key == "" && len(o.details) == 0 {
			o.fail(o.loc.At("key"), "string_too_short", "String should have at least 1 character")
		}
		return SignIn{Key: key}
	})
}

// DecodeSettingsName reads the body of POST /api/session/settings.
func DecodeSettingsName(body []byte) (SettingsName, []Detail) {
	return decodeBody(body, func(o *object) SettingsName {
		return SettingsName{Namespace: required(o, "namespace", text), Name: required(o, "name", text)}
	})
}

// MaxMarkdown is the maximum number of texts in one request to POST /api/markdown.
const MaxMarkdown = 100

// Rendered is the response to POST /api/markdown.
type Rendered struct {
	HTML []string `json:"html"`
}

// DecodeMarkdown reads the body of POST /api/markdown: the texts to render.
func DecodeMarkdown(body []byte) ([]string, []Detail) {
	return decodeBody(body, func(o *object) []string {
		texts := required(o, "texts", list(text))
		if len(texts) > MaxMarkdown {
			o.fail(o.loc.At("texts"), "too_long", "List should have at most "+strconv.Itoa(MaxMarkdown)+" items")
		}
		return texts
	})
}
