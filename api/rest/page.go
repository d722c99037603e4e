package rest

import (
	"strconv"
	"time"
)

// Session is the answer to GET /api/session: who is signed in, or nobody.
type Session struct {
	User      *string `json:"user"`
	Namespace *string `json:"namespace"`
	// SettingsStored says whether GET /api/settings has anything to show.
	SettingsStored bool `json:"settings_stored"`
}

// SignIn is the body of POST /api/signin: a session key, or the code of a link.
type SignIn struct {
	Key  string `json:"key,omitempty"`
	Code string `json:"code,omitempty"`
	// Replace whoever else is signed in by the link's user.
	Replace bool `json:"replace,omitempty"`
}

// SignInConflict is the answer to the code of a link where somebody else is signed in.
type SignInConflict struct {
	Detail string `json:"detail"`
	// User whose link it is.
	User      string `json:"user"`
	Namespace string `json:"namespace"`
}

// SignInLink is the answer to POST /api/signin/link.
type SignInLink struct {
	// Path of the page that signs in, once. What is after the # no server is sent.
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

// MaxMarkdown is how many texts are rendered at once.
const MaxMarkdown = 100

// Rendered is the answer to POST /api/markdown.
type Rendered struct {
	HTML []string `json:"html"`
}

// DecodeMarkdown reads the body of POST /api/markdown: texts to be rendered.
func DecodeMarkdown(body []byte) ([]string, []Detail) {
	return decodeBody(body, func(o *object) []string {
		texts := required(o, "texts", list(text))
		if len(texts) > MaxMarkdown {
			o.fail(o.loc.At("texts"), "too_long", "List should have at most "+strconv.Itoa(MaxMarkdown)+" items")
		}
		return texts
	})
}
