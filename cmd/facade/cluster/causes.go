package cluster

import (
	"cmp"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/rest"
)

// These expressions parse the message of a metav1.StatusCause, because no other field contains the
// details of an error. The message also contains the rejected value, which must not appear in a
// response. Tests check the expressions against a real API server.
var (
	subject = regexp.MustCompile(`^\S+ in body `)
	// typeName matches the name of a type. If a rule is about a whole object, the API server sends
	// the name of the type instead of the value.
	typeName = regexp.MustCompile(`^(object|array|string|integer|number|boolean)$`)
	// phrases lists errors for which the API server sends the same type. A phrase in the message
	// tells them apart.
	phrases = []struct{ phrase, kind string }{
		{"greater than or equal", "greater_than_equal"},
		{"less than or equal", "less_than_equal"},
		{"chars long", "string_too_short"},
		{"should match", "string_pattern_mismatch"},
	}
)

// details translates the API server's errors about fields of an object into errors about fields of
// the request.
func details(causes []metav1.StatusCause, names rest.EntryNames) []rest.Detail {
	var details []rest.Detail
	for _, cause := range causes {
		if strings.Contains(cause.Message, "some validation rules were not checked") {
			continue // not an error of the request
		}
		kind, msg := explain(cause)
		details = append(details, rest.Detail{Type: kind, Loc: rest.LocationOf(cause.Field, names), Msg: msg})
	}
	return details
}

// explain returns the type and the message of an error. The message does not contain the rejected
// value.
func explain(cause metav1.StatusCause) (kind, msg string) {
	value, detail := splitCause(cause.Message)
	detail = subject.ReplaceAllString(detail, "Input ")
	if len(value) > 2 && !typeName.MatchString(value) && strings.Contains(detail, value) {
		detail = ""
	}
	switch field.ErrorType(cause.Type) {
	case field.ErrorTypeRequired:
		return "missing", "Field required"
	case field.ErrorTypeNotSupported:
		return "enum", "Input should be one of the " + cmp.Or(detail, "supported values")
	case field.ErrorTypeTooLong:
		return "string_too_long", "String is too long: " + cmp.Or(detail, "it exceeds the limit")
	case field.ErrorTypeTooMany:
		return "too_long", "List is too long: " + cmp.Or(detail, "it exceeds the limit")
	case field.ErrorTypeDuplicate:
		return "value_error", "An entry is listed twice"
	}
	detail = rest.WithRequestNames(cmp.Or(detail, "Input is not allowed here"))
	for _, known := range phrases {
		if strings.Contains(detail, known.phrase) {
			return known.kind, detail
		}
	}
	return "value_error", detail
}

// splitCause splits "Invalid value: <value>: detail". The value is a quoted string or JSON; it may
// be missing.
func splitCause(message string) (value, detail string) {
	_, remainder, found := strings.Cut(message, ": ")
	if !found {
		return "", ""
	}
	if quoted, err := strconv.QuotedPrefix(remainder); err == nil {
		value, _ = strconv.Unquote(quoted)
		return value, strings.TrimPrefix(remainder[len(quoted):], ": ")
	}
	var parsed json.RawMessage
	decoder := json.NewDecoder(strings.NewReader(remainder))
	if decoder.Decode(&parsed) == nil {
		return string(parsed), strings.TrimPrefix(remainder[decoder.InputOffset():], ": ")
	}
	return "", remainder
}
