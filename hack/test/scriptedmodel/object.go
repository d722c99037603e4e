package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// object is a decoded JSON object.
type object = map[string]any

func list(v any) []any            { l, _ := v.([]any); return l }
func str(v any) string            { s, _ := v.(string); return s }
func obj(v any) object            { o, _ := v.(object); return o }
func isString(v any) bool         { _, ok := v.(string); return ok }
func encode(v any) []byte         { b, _ := json.Marshal(v); return b }
func has(o object, k string) bool { _, ok := o[k]; return ok }

// findings collects the errors in a request.
type findings []string

func (f *findings) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

var (
	callID         = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	shortToolName  = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	longToolName   = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
	propertyKey    = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)
	imageMediaType = regexp.MustCompile(`^image/(jpeg|png|gif|webp)$`)
	imageURL       = regexp.MustCompile(`^(https?://|data:image/(jpeg|png|gif|webp);base64,[A-Za-z0-9+/]+=*$)`)
)

// schemaFault returns an error in a tool's input schema, or an empty string. The top level of the
// schema must not contain a forbidden keyword.
func schemaFault(v any, forbidden ...string) string {
	schema, ok := v.(object)
	switch {
	case !ok:
		return "schema is not an object"
	case str(schema["type"]) != "object":
		return `schema must have type "object"`
	}
	for _, keyword := range forbidden {
		if has(schema, keyword) {
			return "schema must not have '" + strings.Join(forbidden, "'/'") + "' at the top level"
		}
	}
	return propertyFault(schema)
}

func propertyFault(schema object) string {
	properties := obj(schema["properties"])
	if has(schema, "properties") && properties == nil {
		return "properties is not an object"
	}
	for _, name := range list(schema["required"]) {
		if !isString(name) {
			return "required is not a list of names"
		}
	}
	for name, v := range properties {
		property := obj(v)
		if property == nil {
			if _, whatever := v.(bool); !whatever {
				return fmt.Sprintf("property %q is not a schema", name)
			}
			continue
		}
		if str(property["type"]) == "array" && !has(property, "items") {
			return fmt.Sprintf("property %q: array schema missing items", name)
		}
		if fault := propertyFault(property); fault != "" {
			return fault
		}
		if items := obj(property["items"]); items != nil {
			if fault := propertyFault(items); fault != "" {
				return fault
			}
		}
	}
	return ""
}
