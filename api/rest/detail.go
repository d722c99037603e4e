package rest

import (
	"regexp"
	"slices"
)

// KeyHeader carries the session key.
const KeyHeader = "X-Session-API-Key"

// Detail is one thing that is wrong with a request, and where. It never repeats what was sent.
type Detail struct {
	Type string   `json:"type"`
	Loc  Location `json:"loc"`
	Msg  string   `json:"msg"`
}

// LongKey is what is wrong with an Idempotency-Key of more than 255 characters.
var LongKey = Detail{Type: "string_too_long", Loc: Location{"header", "idempotency-key"},
	Msg: "String should have at most 255 characters"}

// Invalid is the body of an answer that lists all that is wrong with a request.
type Invalid struct {
	Detail []Detail `json:"detail"`
}

// MaxDetails is how much an answer complains about: a person fixes no more at once, and an answer
// must not be many times as large as its request.
const MaxDetails = 100

// Location is the path to a value in a request: names and positions, beginning with where it
// stands, such as body.
type Location []any

// At is one step further.
func (l Location) At(step any) Location { return append(slices.Clip(slices.Clone(l)), step) }

// plainName is what a field or variable is called, and hardly what a key looks like.
var plainName = regexp.MustCompile(`^[A-Za-z][A-Za-z_]{0,39}$`)

// Named adds a name that the client chose, unless it might be a value that was put in the wrong
// place.
func (l Location) Named(name string) Location {
	if !plainName.MatchString(name) {
		return l
	}
	return l.At(name)
}
