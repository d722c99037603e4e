package rest

import (
	"regexp"
	"slices"
)

// KeyHeader is the header with the session key.
const KeyHeader = "X-Session-API-Key"

// Detail is one error of a request, with its location. It never repeats a value that the client
// sent.
type Detail struct {
	Type string   `json:"type"`
	Loc  Location `json:"loc"`
	Msg  string   `json:"msg"`
}

// LongKey reports an Idempotency-Key of more than 255 characters.
var LongKey = Detail{Type: "string_too_long", Loc: Location{"header", "idempotency-key"},
	Msg: "String should have at most 255 characters"}

// Invalid is the body of a response that lists the errors of a request, at most MaxDetails.
type Invalid struct {
	Detail []Detail `json:"detail"`
}

// MaxDetails limits the number of errors in a response. A response must not be much larger than its
// request.
const MaxDetails = 100

// Location is the path to a value in a request: first the part of the request, such as body, then
// names and positions.
type Location []any

// At appends a step.
func (l Location) At(step any) Location { return append(slices.Clip(slices.Clone(l)), step) }

// plainName matches names of fields and variables. Secret values rarely match it.
var plainName = regexp.MustCompile(`^[A-Za-z][A-Za-z_]{0,39}$`)

// Named appends a name that the client chose. It leaves out a name that does not match plainName,
// because the name may be a secret that the client put in the wrong place.
func (l Location) Named(name string) Location {
	if !plainName.MatchString(name) {
		return l
	}
	return l.At(name)
}
