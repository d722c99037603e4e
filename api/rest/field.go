package rest

import (
	"encoding/json"
	"strconv"
)

// Field is a field of a request: left out, null, or a value. In a response it is never left out.
type Field[T any] struct {
	// Present is true if the request names the field, even with null.
	Present bool
	// Value is nil for null.
	Value *T
}

// Set returns a field with a value.
func Set[T any](value T) Field[T] { return Field[T]{Present: true, Value: &value} }

// Null returns a field that is null.
func Null[T any]() Field[T] { return Field[T]{Present: true} }

// IsZero is true if the field is left out. The JSON encoder calls it for the option omitzero.
func (f Field[T]) IsZero() bool { return !f.Present }

// MarshalJSON writes the value, or null.
func (f Field[T]) MarshalJSON() ([]byte, error) { return json.Marshal(f.Value) }

// UnmarshalJSON reads a value or null, for clients. Servers use DecodeSettings, which reports all
// errors.
func (f *Field[T]) UnmarshalJSON(data []byte) error {
	*f = Field[T]{Present: true}
	return json.Unmarshal(data, &f.Value)
}

// Stored returns the value as the CRDs store it: nil, a bool, an int64 or a string.
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

// Shown converts a stored value for a response.
func (f *Field[T]) Shown(stored any) any {
	if _, isNumber := any(f.Value).(*json.Number); isNumber && stored != nil {
		// The CRDs accept a decimal such as 007, which is not a JSON number.
		if number, err := strconv.ParseFloat(stored.(string), 64); err == nil {
			return json.Number(strconv.FormatFloat(number, 'f', -1, 64))
		}
	}
	return stored
}

// Key is a write-only value of a request. In responses, null stands in place of a key. Clients post
// this null back, so null keeps the stored key.
type Key struct{ Field[string] }

// NewKey returns a key to store. An empty key removes the stored key.
func NewKey(value string) Key { return Key{Set(value)} }

// masked is OpenHands' text in place of a secret. A client that posts it back keeps the stored key.
const masked = "**********"

// IsSet is true if the request contains a new key.
func (k Key) IsSet() bool { return k.Value != nil && *k.Value != "" && *k.Value != masked }

// IsCleared is true if the request removes the key.
func (k Key) IsCleared() bool { return k.Value != nil && *k.Value == "" }
