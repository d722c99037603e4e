package rest

import (
	"encoding/json"
	"reflect"
	"strings"
)

// Setting describes one field of a struct such as Settings.
type Setting struct {
	// Name is the setting's name over HTTP.
	Name string
	// Spec is the field of UserSettingsSpec that stores the setting.
	Spec string
	// Default is the value of an unset setting, or nil.
	Default any
	// Value points to the value in a request: a *Field or a *Key.
	Value any
}

// SettingsOf describes the fields of a struct such as Settings. The parameter table is a pointer to
// the struct. Each Setting.Value points to a field of this struct.
func SettingsOf(table any) []Setting {
	var settings []Setting
	for field, value := range reflect.ValueOf(table).Elem().Fields() {
		if field.Anonymous {
			settings = append(settings, SettingsOf(value.Addr().Interface())...)
			continue
		}
		setting := Setting{Name: jsonName(field), Spec: specName(field), Value: value.Addr().Interface()}
		if text := field.Tag.Get("default"); text != "" {
			if err := json.Unmarshal([]byte(text), &setting.Default); err != nil {
				panic("the default of " + setting.Name + " is not valid JSON")
			}
		}
		if setting.Spec != "" {
			settings = append(settings, setting)
		}
	}
	return settings
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// specName returns the CRD field of a request field, or "" if there is none.
func specName(field reflect.StructField) string {
	if spec := field.Tag.Get("spec"); spec != "" {
		return strings.TrimPrefix(spec, "-")
	}
	first, others, _ := strings.Cut(jsonName(field), "_")
	for word := range strings.SplitSeq(others, "_") {
		if word != "" {
			first += strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return first
}

// requestNames maps CRD fields to request fields. It comes from the tags of all request types.
var requestNames = namesIn(map[string]string{}, reflect.TypeFor[Settings](), reflect.TypeFor[ConversationRequest]())

func namesIn(names map[string]string, types ...reflect.Type) map[string]string {
	for _, t := range types {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || !strings.HasPrefix(t.PkgPath(), reflect.TypeFor[Settings]().PkgPath()) {
			continue
		}
		for field := range t.Fields() {
			if spec := specName(field); spec != "" {
				names[spec] = jsonName(field)
			}
			namesIn(names, field.Type)
		}
	}
	return names
}

// RequestName returns the name that a CRD field has in requests. If requests do not have the field,
// RequestName returns the argument.
func RequestName(field string) string {
	if name := requestNames[field]; name != "" {
		return name
	}
	return field
}
