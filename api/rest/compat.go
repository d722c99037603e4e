package rest

import (
	"strconv"
	"unicode/utf8"
)

const (
	// maxTitle is the longest title of a conversation, in characters.
	maxTitle = 200
	// maxMessage is the longest message, in bytes.
	maxMessage = 1 << 20
)

// DecodeTitle reads the body of PATCH /api/conversations/{id}.
func DecodeTitle(body []byte) (string, []Detail) {
	return decodeText(body, "title", func(o *object, loc Location, title string) {
		switch n := utf8.RuneCountInString(title); {
		case n < 1:
			o.fail(loc, "string_too_short", "String should have at least 1 character")
		case n > maxTitle:
			o.fail(loc, "string_too_long", "String should have at most "+strconv.Itoa(maxTitle)+" characters")
		}
	})
}

// DecodeMessage reads the body of POST /api/conversations/{id}/message. The session validates the
// URLs of the images.
func DecodeMessage(body []byte) (message string, images []string, details []Detail) {
	message, details = decodeText(body, "message", func(o *object, loc Location, message string) {
		images = append([]string{}, orZero(optional(o, "image_urls", list(text)))...)
		switch {
		case message == "" && len(images) == 0:
			o.fail(loc, "string_too_short", "String should have at least 1 character, unless there are images")
		case len(message) > maxMessage:
			o.fail(loc, "string_too_long", "String should have at most "+strconv.Itoa(maxMessage)+" bytes")
		}
	})
	return message, images, details
}

func decodeText(body []byte, name string, check func(*object, Location, string)) (string, []Detail) {
	return decodeBody(body, func(o *object) string {
		value := required(o, name, text)
		if len(o.details) == 0 {
			check(o, o.loc.At(name), value)
		}
		return value
	})
}

// SecretRequest is the body of POST /api/secrets and of PUT /api/secrets/{name}. PUT changes only
// the description: Name must be the current name.
type SecretRequest struct {
	Name        string  `json:"name"`
	Value       *string `json:"value,omitempty"`
	Description *string `json:"description,omitempty"`
}

// DecodeSecret reads the body of POST /api/secrets and of PUT /api/secrets/{name}. PUT needs no
// value.
func DecodeSecret(body []byte, needsValue bool) (*SecretRequest, []Detail) {
	return decodeBody(body, func(o *object) *SecretRequest {
		r := &SecretRequest{Name: required(o, "name", text), Description: optional(o, "description", text)}
		if needsValue {
			value := required(o, "value", keyText)
			r.Value = &value
		}
		return r
	})
}

// DecodeProviders reads the body of POST /api/add-git-providers. The tokens have the same form as
// in POST /api/settings.
func DecodeProviders(body []byte) (map[string]*ProviderToken, []Detail) {
	return decodeBody(body, func(o *object) map[string]*ProviderToken {
		return orZero(optional(o, "provider_tokens", entries(providerToken, gitProviders...)))
	})
}

// ListedSecret is a secret without its value.
type ListedSecret struct {
	Name        string  `json:"name"`
	Description *string `json:"description"`
}

// SecretList is the response to GET /api/secrets.
type SecretList struct {
	CustomSecrets []ListedSecret `json:"custom_secrets"`
}
