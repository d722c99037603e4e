package rest

import (
	"encoding/json"
	"strconv"
)

// Field is a field of a request: left out, null, or a value. In an answer it is never left out.
type Field[T any] struct {
	// Present says that the request names the field.
	Present bool
	// Value is nil for null.
	Value *T
}

// Set is a field with a value.
func Set[T any](value T) Field[T] { return Field[T]{Present: true, Value: &value} }

// Null is a field that is null.
func Null[T any]() Field[T] { return Field[T]{Present: true} }

// IsZero says that the field is left out, for omitzero.
func (f Field[T]) IsZero() bool { return !f.Present }

// MarshalJSON writes the value, or null.
func (f Field[T]) MarshalJSON() ([]byte, error) { return json.Marshal(f.Value) }

// UnmarshalJSON reads a value or null, as a client does. What a server is sent it decodes with all
// that may be wrong.
func (f *Field[T]) UnmarshalJSON(data []byte) error {
	*f = Field[T]{Present: true}
	return json.Unmarshal(data, &f.Value)
}

// Stored is the value as the kinds hold it: nil, a bool, an int64 or a string.
func (f *Field[T]) Stored() (value any, present bool) {
	if f.Value == nil {
		return nil, f.Present
	}
	switch value := any(*f.Value).(type) {
	case int32:
		return int64(value), f.Present
	case json.Number:
		return value.String(), f.Present
	default:
		return value, f.Present
	}
}

// Shown is a value of the kinds as an answer has it.
func (f *Field[T]) Shown(stored any) any {
	if _, isNumber := any(f.Value).(*json.Number); isNumber && stored != nil {
		// The kinds take a decimal such as 007, which is no number in JSON.
		if number, err := strconv.ParseFloat(stored.(string), 64); err == nil {
			return json.Number(strconv.FormatFloat(number, 'f', -1, 64))
		}
	}
	return stored
}

// Key is a write-only value of a request. Clients never see keys and echo null for them, so that
// null keeps.
type Key struct{ Field[string] }

// NewKey is a key to be stored; an empty one removes the stored key.
func NewKey(value string) Key { return Key{Set(value)} }

// masked is what the existing service's models print for a secret. A client that echoes it means
// the stored one.
const masked = "**********"

// IsSet says that the request brings a new key.
func (k Key) IsSet() bool { return k.Value != nil && *k.Value != "" && *k.Value != masked }

// IsCleared says that the request removes the key.
func (k Key) IsCleared() bool { return k.Value != nil && *k.Value == "" }
