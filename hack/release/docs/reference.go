package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

type schema = apiextensionsv1.JSONSchemaProps

// reference returns the chapter about a kind: tables of the spec, of the status and of nested
// objects.
func reference(crd *apiextensionsv1.CustomResourceDefinition) string {
	names, top := crd.Spec.Names, crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	text := &strings.Builder{}
	fmt.Fprintf(text, "\n## %s\n\n%s\n\n", names.Kind, oneLine(top.Description))
	fmt.Fprintf(text, "%s, short `%s`.\n", map[apiextensionsv1.ResourceScope]string{"Namespaced": "Namespaced",
		"Cluster": "Cluster-scoped"}[crd.Spec.Scope], strings.Join(names.ShortNames, "`, `"))
	for _, part := range []string{"spec", "status"} {
		if properties, found := top.Properties[part]; found {
			table(text, names.Kind, part, properties)
		}
	}
	return text.String()
}

// table writes a table of an object's fields, followed by tables of its nested objects.
func table(text *strings.Builder, kind, path string, object schema) {
	fmt.Fprintf(text, "\n### %s %s\n\n", kind, path)
	if rules := messages(object); path != "spec" && path != "status" && len(rules) > 0 {
		fmt.Fprintf(text, "- %s\n\n", strings.Join(rules, "\n- "))
	}
	fmt.Fprint(text, "| field | type | |\n|---|---|---|\n")
	type inner struct {
		path   string
		object schema
	}
	var inside []inner
	for _, name := range slices.Sorted(maps.Keys(object.Properties)) {
		field := object.Properties[name]
		shown := "`" + name + "`"
		if slices.Contains(object.Required, name) {
			shown = "**" + shown + "**"
		}
		fmt.Fprintf(text, "| %s | %s | %s |\n", shown, typeOf(field), oneCell(oneLine(field.Description)+bounds(field)))
		if nested, suffix := nestedIn(field); nested != nil {
			inside = append(inside, inner{path + "." + name + suffix, *nested})
		}
	}
	for _, i := range inside {
		table(text, kind, i.path, i.object)
	}
}

// nestedIn returns the object in a field if the object needs its own table. Conditions need no
// table, because Kubernetes documents them.
func nestedIn(field schema) (object *schema, suffix string) {
	if field.Items != nil && field.Items.Schema != nil {
		field, suffix = *field.Items.Schema, "[]"
	}
	if _, condition := field.Properties["lastTransitionTime"]; condition || len(field.Properties) == 0 {
		return nil, ""
	}
	return &field, suffix
}

func typeOf(field schema) string {
	switch {
	case field.Items != nil && field.Items.Schema != nil:
		return "list of " + typeOf(*field.Items.Schema)
	case field.AdditionalProperties != nil:
		return "map"
	case field.XIntOrString:
		return "number or string"
	case field.Format == "date-time":
		return "time"
	}
	return field.Type
}

// bounds describes a field's default and its validation.
func bounds(field schema) string {
	var all []string
	if len(field.Enum) > 0 {
		var values []string
		for _, value := range field.Enum {
			values = append(values, plain(value.Raw))
		}
		all = append(all, "One of "+strings.Join(values, ", "))
	}
	if field.Default != nil && string(field.Default.Raw) != "{}" {
		all = append(all, "Default "+plain(field.Default.Raw))
	}
	if field.Minimum != nil {
		all = append(all, fmt.Sprintf("At least %g", *field.Minimum))
	}
	// Some fields have a rule with a lower limit than MaxLength. Their MaxLength serves only to
	// bound the cost of the rule, so the reference omits it.
	sizeRule := func(rule apiextensionsv1.ValidationRule) bool { return strings.HasPrefix(rule.Rule, "size(self) <= ") }
	if field.MaxLength != nil && !slices.ContainsFunc(field.XValidations, sizeRule) {
		all = append(all, fmt.Sprintf("At most %d characters", *field.MaxLength))
	}
	if field.MaxItems != nil {
		all = append(all, fmt.Sprintf("At most %d", *field.MaxItems))
	}
	if field.Pattern != "" {
		all = append(all, "Must match `"+field.Pattern+"`")
	}
	text := ""
	for _, bound := range all {
		text += " " + bound + "."
	}
	if rules := messages(field); len(rules) > 0 && len(field.Properties) == 0 {
		text += " " + strings.Join(rules, " ")
	}
	return text
}

// messages returns the messages of an object's rules as sentences. A message may omit the name of
// its field, because the API server's error contains the path. The sentence then begins with the
// field path of the rule.
func messages(object schema) (all []string) {
	for _, rule := range object.XValidations {
		first, rest, _ := strings.Cut(rule.Message, " ")
		_, named := object.Properties[first]
		switch {
		case rule.Message == "":
		case named:
			all = append(all, "`"+first+"` "+rest+".")
		case rule.FieldPath != "":
			all = append(all, "`"+strings.TrimPrefix(rule.FieldPath, ".")+"` "+rule.Message+".")
		default:
			all = append(all, strings.ToUpper(rule.Message[:1])+rule.Message[1:]+".")
		}
	}
	return all
}

func plain(raw []byte) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return "`" + text + "`"
	}
	return "`" + string(raw) + "`"
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func oneCell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
