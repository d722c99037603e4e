package tools

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

const (
	// maxSchemaDepth limits the depth of a schema. Deeper parts accept any value.
	maxSchemaDepth = 20
	// maxAlternatives limits the number of alternatives that are merged at the top of a schema,
	// because an alternative may refer to itself.
	maxAlternatives = 200
)

// propertyKey matches the property names that Anthropic's API accepts.
var propertyKey = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

var schemaTypes = []string{"string", "number", "integer", "boolean", "array", "object", "null"}

// usableSchema rewrites the schema of a tool's input so that the model APIs accept it. The result
// is an object without alternatives at the top level, and without keywords of old JSON Schema
// drafts. The tool server still checks the input against its own schema.
func usableSchema(input map[string]any) map[string]any {
	f := flattener{root: input, left: maxAlternatives}
	clean := cleanSchema(f.flatten(input), 0)
	clean["type"] = "object"
	properties, _ := clean["properties"].(map[string]any)
	if properties == nil {
		properties = map[string]any{}
	}
	maps.DeleteFunc(properties, func(key string, _ any) bool { return !propertyKey.MatchString(key) })
	clean["properties"] = properties
	required, _ := clean["required"].([]any)
	required = slices.DeleteFunc(required, func(name any) bool { return properties[name.(string)] == nil })
	if delete(clean, "required"); len(required) > 0 {
		clean["required"] = required
	}
	return clean
}

// flattener merges the alternatives of a schema. root is the whole schema, and left is the number
// of parts that it may still merge.
type flattener struct {
	root map[string]any
	left int
}

// flatten merges the alternatives and the reference at the top level of a schema into one object.
// The object has the properties of all alternatives. A property is required if all alternatives
// require it.
func (f *flattener) flatten(schema map[string]any) map[string]any {
	merged := maps.Clone(schema)
	for _, keyword := range []string{"$ref", "anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else",
		"dependentSchemas", "dependencies"} {
		delete(merged, keyword)
	}
	if f.left--; f.left < 0 {
		return merged
	}
	if reference, ok := schema["$ref"].(string); ok {
		merge(merged, []map[string]any{f.flatten(resolve(f.root, reference))}, true)
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		var parts []map[string]any
		list, _ := schema[keyword].([]any)
		for _, item := range list {
			if part, ok := item.(map[string]any); ok {
				parts = append(parts, f.flatten(part))
			}
		}
		merge(merged, parts, keyword == "allOf")
	}
	return merged
}

func resolve(root map[string]any, reference string) map[string]any {
	found := root
	for _, key := range strings.Split(strings.TrimPrefix(reference, "#"), "/")[1:] {
		found, _ = found[strings.NewReplacer("~1", "/", "~0", "~").Replace(key)].(map[string]any)
	}
	return found
}

// merge adds the properties of the parts to a schema. If the parameter all is set, the input must
// match every part, so the schema then also requires every property that any part requires.
// Otherwise, it also requires the properties that all parts require.
func merge(into map[string]any, parts []map[string]any, all bool) {
	if len(parts) == 0 {
		return
	}
	properties, _ := into["properties"].(map[string]any)
	properties = maps.Clone(properties)
	if properties == nil {
		properties = map[string]any{}
	}
	count := map[string]int{}
	for _, part := range parts {
		more, _ := part["properties"].(map[string]any)
		for key, property := range more {
			earlier, taken := properties[key]
			switch {
			case !taken:
				properties[key] = property
			case !all && !reflect.DeepEqual(earlier, property): // for example, two different constants
				properties[key] = map[string]any{"anyOf": []any{earlier, property}}
			}
		}
		names, _ := part["required"].([]any)
		for _, name := range names {
			if key, ok := name.(string); ok {
				count[key]++
			}
		}
		if into["description"] == nil && part["description"] != nil && len(parts) == 1 {
			into["description"] = part["description"]
		}
	}
	required, _ := into["required"].([]any)
	required = slices.Clone(required)
	for _, key := range slices.Sorted(maps.Keys(count)) {
		if (all || count[key] == len(parts)) && !slices.Contains(required, any(key)) {
			required = append(required, key)
		}
	}
	into["properties"], into["required"] = properties, required
}

// cleanSchema returns a copy of a schema without the keywords that are invalid in JSON Schema
// 2020-12.
func cleanSchema(schema map[string]any, depth int) map[string]any {
	clean := map[string]any{}
	if depth > maxSchemaDepth {
		return clean
	}
	for key, value := range schema {
		if value = cleanKeyword(key, value, depth); value != nil {
			clean[key] = value
		}
	}
	if clean["type"] == "array" && clean["items"] == nil { // OpenAI requires items
		clean["items"] = map[string]any{}
	}
	return clean
}

// cleanKeyword returns the cleaned value of a keyword, or nil if the keyword must be removed.
func cleanKeyword(key string, value any, depth int) any {
	list, isList := value.([]any)
	_, isFlag := value.(bool)
	drop := false
	switch key {
	case "$schema", "$id", "id", "$anchor":
		drop = true
	case "properties", "patternProperties", "$defs", "definitions":
		return cleanEach(value, depth)
	case "anyOf", "oneOf", "allOf":
		list = cleanList(list, depth)
		value, drop = list, len(list) == 0
	case "items", "additionalProperties", "not", "contains":
		return cleanValue(value, depth)
	case "required":
		list = slices.DeleteFunc(slices.Clone(list), func(name any) bool { _, ok := name.(string); return !ok })
		value, drop = list, len(list) == 0
	case "exclusiveMinimum", "exclusiveMaximum":
		drop = isFlag // in draft 4, these keywords were booleans
	case "type":
		drop = !validType(value)
	case "enum":
		drop = !isList || len(list) == 0
	}
	if drop {
		return nil
	}
	return value
}

func validType(value any) bool {
	if list, ok := value.([]any); ok {
		return len(list) > 0 && !slices.ContainsFunc(list, func(item any) bool {
			name, _ := item.(string)
			return !slices.Contains(schemaTypes, name)
		})
	}
	name, _ := value.(string)
	return slices.Contains(schemaTypes, name)
}

// cleanValue returns a cleaned schema, or nil if the value is not a schema.
func cleanValue(value any, depth int) any {
	switch v := value.(type) {
	case map[string]any:
		return cleanSchema(v, depth+1)
	case bool:
		return v
	}
	return nil
}

func cleanEach(value any, depth int) any {
	schemas, ok := value.(map[string]any)
	if !ok {
		return nil
	}
	clean := map[string]any{}
	for name, schema := range schemas {
		if value := cleanValue(schema, depth); value != nil {
			clean[name] = value
		}
	}
	return clean
}

func cleanList(list []any, depth int) []any {
	var clean []any
	for _, item := range list {
		if value := cleanValue(item, depth); value != nil {
			clean = append(clean, value)
		}
	}
	return clean
}
