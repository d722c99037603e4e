package rest

import "strconv"

// Session is the answer to GET /api/session: who is signed in, or nobody.
type Session struct {
	User      *string `json:"user"`
	Namespace *string `json:"namespace"`
	// SettingsStored says whether GET /api/settings has anything to show.
	SettingsStored bool `json:"settings_stored"`
}

// DecodeSignIn reads the body of POST /api/signin: a session key.
func DecodeSignIn(body []byte) (string, []Detail) {
	return decodeText(body, "key", func(o *object, loc Location, key string) {
		if key == "" {
			o.fail(loc, "string_too_short", "String should have at least 1 character")
		}
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
	fields, details := DecodeBody(body)
	if len(details) > 0 {
		return nil, details
	}
	d := &decoder{}
	o := d.body(fields)
	texts := required(o, "texts", list(text))
	if len(texts) > MaxMarkdown {
		o.fail(o.loc.At("texts"), "too_long", "List should have at most "+strconv.Itoa(MaxMarkdown)+" items")
	}
	return texts, d.details
}
