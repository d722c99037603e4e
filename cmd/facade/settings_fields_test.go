package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

type fieldCase struct {
	field  string
	set    map[string]string // sent value → shown value
	null   string            // the value shown after null was sent
	wrong  map[string]string // sent value → error type
	absent bool              // true for a key: null keeps the stored value
}

const noText = `{"a": 1}`

func text422(more ...string) map[string]string {
	wrong := map[string]string{"5": "string_type", "true": "string_type", "[]": "string_type", noText: "string_type"}
	for i := 0; i < len(more); i += 2 {
		wrong[more[i]] = more[i+1]
	}
	return wrong
}

var (
	truth = map[string]string{
		"true": "true", `"yes"`: "true", "1": "true", `"ON"`: "true", `"t"`: "true", `"y"`: "true", `"1"`: "true",
		"1.0":   "true",
		"false": "false", `"no"`: "false", "0": "false", `"off"`: "false", `"F"`: "false", `"n"`: "false", `"0"`: "false",
	}
	noTruth = map[string]string{`"maybe"`: "bool_parsing", "2": "bool_parsing", `""`: "bool_parsing", "[]": "bool_type",
		"{}": "bool_type"}
	noInt = map[string]string{"10.5": "int_from_float", `"10.5"`: "int_parsing", `"ten"`: "int_parsing", "[]": "int_type",
		"{}": "int_type", "1e300": "int_parsing_size", "99999999999": "int_parsing_size"}
)

var fieldCases = []fieldCase{
	{field: "language", set: map[string]string{`"de"`: `"de"`, `""`: "null"}, null: "null", wrong: text422(`"no language"`,
		"value_error")},
	{field: "agent", set: map[string]string{`"CodeActAgent"`: `"CodeActAgent"`, `""`: "null"}, null: "null",
		wrong: text422(`"`+strings.Repeat("a", 129)+`"`, "string_too_long")},
	{field: "max_iterations", set: map[string]string{"10": "10", `"10"`: "10", `" 12 "`: "12", "10.0": "10",
		`"1_000"`: "1000", "1e3": "1000", "true": "1"}, null: "null",
		wrong: with(noInt, "0", "greater_than_equal", `"-3"`, "greater_than_equal", "1000001", "less_than_equal")},
	{field: "security_analyzer", set: map[string]string{`"llm"`: `"llm"`, `""`: "null"}, null: "null", wrong: text422()},
	{field: "confirmation_mode", set: truth, null: "null", wrong: noTruth},
	{field: "llm_model", set: map[string]string{`"example/model"`: `"example/model"`, `"gpt-5"`: `"gpt-5"`,
		`""`: "null"}, null: "null", wrong: text422(`"mystery"`, "value_error")},
	{field: "llm_base_url", set: map[string]string{`"https://llm.example.com"`: `"https://llm.example.com"`, `""`: "null"},
		null:  "null",
		wrong: text422(`"nowhere"`, "value_error", `"https://ada:secret@llm.example.com"`, "value_error")},
	{field: "llm_reasoning_effort", set: map[string]string{`"high"`: `"high"`, `""`: "null"}, null: "null",
		wrong: text422(`"much"`, "enum")},
	{field: "llm_temperature", set: map[string]string{"0.2": "0.2", `"0.20"`: "0.2", "1": "1", "0": "0", "2": "2"},
		null: "null", wrong: map[string]string{`"warm"`: "float_parsing", "[]": "float_type", "-1": "string_pattern_mismatch",
			"2.5": "string_pattern_mismatch"}},
	{field: "remote_runtime_resource_factor", set: map[string]string{"1": "1", `"8"`: "8"}, null: "null",
		wrong: with(noInt, "3", "enum")},
	{field: "enable_default_condenser", set: truth, null: "true", wrong: noTruth},
	{field: "enable_sound_notifications", set: truth, null: "false", wrong: noTruth},
	{field: "enable_proactive_conversation_starters", set: truth, null: "true", wrong: noTruth},
	{field: "enable_solvability_analysis", set: truth, null: "true", wrong: noTruth},
	{field: "user_consents_to_analytics", set: truth, null: "null", wrong: noTruth},
	{field: "sandbox_base_container_image", set: map[string]string{`"example.com/a:1"`: `"example.com/a:1"`, `""`: "null"},
		null: "null", wrong: text422(`"NOT AN IMAGE"`, "value_error")},
	{field: "sandbox_runtime_container_image", set: map[string]string{`"example.com/b:1"`: `"example.com/b:1"`},
		null: "null", wrong: text422(`"a:b:c"`, "value_error")},
	{field: "max_budget_per_task", set: map[string]string{"4.5": "4.5", `"4.50"`: "4.5", "3": "3", "0": "0", "1e2": "100",
		"-0.0": "0"}, null: "null",
		wrong: map[string]string{`"much"`: "float_parsing", "[]": "float_type", "{}": "float_type", `"inf"`: "finite_number",
			`"nan"`: "finite_number", "-1": "string_pattern_mismatch"}},
	{field: "email", set: map[string]string{`"ada@example.com"`: `"ada@example.com"`, `""`: "null"}, null: "null",
		wrong: text422(`"nobody"`, "value_error")},
	{field: "expose_secrets_to_model", set: truth, null: "null", wrong: noTruth},
	{field: "expose_git_token_to_agent", set: truth, null: "null", wrong: noTruth},
	{field: "email_verified", set: truth, null: "null", wrong: noTruth},
	{field: "git_user_name", set: map[string]string{`"Ada Example"`: `"Ada Example"`}, null: "null",
		wrong: text422(`"Ada <ada@example.com>"`, "string_pattern_mismatch")},
	{field: "git_user_email", set: map[string]string{`"ada@example.com"`: `"ada@example.com"`}, null: "null",
		wrong: text422(`"@"`, "string_too_short")},
	{field: "mcp_config", set: map[string]string{"{}": "null"}, null: "null", wrong: map[string]string{"5": "dict_type",
		`"x"`: "dict_type", "[]": "dict_type"}},
	{field: "llm_api_key", absent: true, set: map[string]string{`"k"`: "null"}, null: "null", wrong: text422()},
	{field: "search_api_key", absent: true, set: map[string]string{`"k"`: "null"}, null: "null", wrong: text422()},
	{field: "sandbox_api_key", absent: true, set: map[string]string{`"k"`: "null"}, null: "null", wrong: text422()},
}

func with(base map[string]string, more ...string) map[string]string {
	all := maps.Clone(base)
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

func TestEachSettingIsValidatedStoredAndCleared(t *testing.T) {
	t.Parallel()
	for _, c := range fieldCases {
		t.Run(c.field, func(t *testing.T) {
			t.Parallel()
			ada := newPerson(t, "ada")
			// A second setting must keep its value.
			other, otherValue := "git_user_name", "Bystander"
			if c.field == other {
				other, otherValue = "security_analyzer", "bystander"
			}
			ada.post(t, "/api/settings", fmt.Sprintf(`{%q: %q}`, other, otherValue)).wants(t, 200)
			shows := func(want string) {
				t.Helper()
				reply := ada.get(t, "/api/settings").wants(t, 200)
				if got := jsonOf(t, reply.field(t, c.field)); got != want {
					t.Errorf("%s is %s, want %s", c.field, got, want)
				}
				if got := reply.field(t, other); got != otherValue {
					t.Errorf("%s became %v", other, got)
				}
			}
			shows(c.null)
			for _, sent := range slices.Sorted(maps.Keys(c.set)) {
				ada.post(t, "/api/settings", fmt.Sprintf(`{%q: %s}`, c.field, sent)).wants(t, 200)
				shows(c.set[sent])
				ada.post(t, "/api/settings", fmt.Sprintf(`{%q: %q, "unknown_field": {"x": 1}}`, other, otherValue)).wants(t, 200)
				shows(c.set[sent]) // the request leaves the field out, so it is unchanged
			}
			if c.absent {
				ada.keepsItsKey(t, c.field)
			}
			ada.post(t, "/api/settings", fmt.Sprintf(`{%q: null}`, c.field)).wants(t, 200)
			shows(c.null)
			for _, sent := range slices.Sorted(maps.Keys(c.wrong)) {
				reply := ada.post(t, "/api/settings", fmt.Sprintf(`{%q: %s}`, c.field, sent)).wants(t, 422)
				reply.complains(t, "body."+c.field+": "+c.wrong[sent])
				if value := strings.Trim(sent, `"`); len(value) > 4 {
					reply.lacks(t, value)
				}
			}
			shows(c.null)
		})
	}
}

// keepsItsKey checks that null and an absent field keep a key, and that an empty string deletes it.
func (p *person) keepsItsKey(t *testing.T, field string) {
	t.Helper()
	isSet := func() bool { return p.get(t, "/api/settings").field(t, field+"_set").(bool) }
	secret := p.name + "-" + strings.ReplaceAll(field, "_", "-")
	p.post(t, "/api/settings", fmt.Sprintf(`{%q: "first"}`, field)).wants(t, 200)
	for _, sent := range []string{"null", `"**********"`} {
		p.post(t, "/api/settings", fmt.Sprintf(`{%q: %s}`, field, sent)).wants(t, 200)
		if !isSet() || p.secret(t, secret) != "first" {
			t.Errorf("%s does not keep the key", sent)
		}
	}
	p.post(t, "/api/settings", fmt.Sprintf(`{%q: "second"}`, field)).wants(t, 200)
	if p.secret(t, secret) != "second" {
		t.Error("the second key was not stored")
	}
	p.post(t, "/api/settings", fmt.Sprintf(`{%q: ""}`, field)).wants(t, 200)
	if isSet() {
		t.Error("the empty string does not clear the key")
	}
}
