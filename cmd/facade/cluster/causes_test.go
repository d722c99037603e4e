package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func jsonOf(t *testing.T, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAPIServerErrorsAreTranslatedToRequestFields(t *testing.T) {
	t.Parallel()
	const value = `se"cret: x`
	path := field.NewPath("spec")
	for _, c := range []struct {
		name      string
		err       *field.Error
		loc       string
		kind, msg string
	}{
		{"a minimum", field.Invalid(path.Child("maxIterations"), int64(0), "spec.maxIterations in body should be greater "+
			"than or equal to 1"),
			"body max_iterations", "greater_than_equal", "Input should be greater than or equal to 1"},
		{"a pattern", field.Invalid(path.Child("gitUserName"), value, "spec.gitUserName in body should match 'x'"),
			"body git_user_name", "string_pattern_mismatch", "Input should match 'x'"},
		{"a detail with the value", field.Invalid(path.Child("email"), value, "cannot parse "+value), "body email",
			"value_error", "Input is not allowed here"},
		{"no value", field.Invalid(path.Child("llmBaseURL"), field.OmitValueType{}, "must be a valid URL"),
			"body llm_base_url", "value_error", "must be a valid URL"},
		{"a hint at a Secret", field.Invalid(path.Child("llmBaseURL"), field.OmitValueType{},
			"must not hold a key in its query: name a Secret in llmAPIKeyRef"),
			"body llm_base_url", "value_error", "must not hold a key in its query: send it as llm_api_key"},
		{"an enumeration", field.NotSupported(path.Child("gitProvider"), v1alpha1.GitProvider(value),
			[]v1alpha1.GitProvider{"github"}),
			"body git_provider", "enum", `Input should be one of the supported values: "github"`},
		{"an object", field.Duplicate(path.Child("mcpConfig", "sseServers").Index(1), map[string]any{"url": value}),
			"body mcp_config sse_servers 1", "value_error", "An entry is listed twice"},
		{"a rule", field.Invalid(path.Child("initialUserMsg"), "object", "initialUserMsg must be absent when replayJSONRef "+
			"is set"),
			"body initial_user_msg", "value_error", "initial_user_msg must be absent when replay_json is set"},
		{"a reference", field.Required(path.Child("llmAPIKeyRef", "name"), ""), "body llm_api_key", "missing",
			"Field required"},
		{"too long", field.TooLong(path.Child("agent"), value, 128), "body agent", "string_too_long",
			"String is too long: may not be more than 128 bytes"},
		{"too many", field.TooMany(path.Child("imageURLs"), 17, 16), "body image_urls", "too_long",
			"List is too long: must have at most 16 items"},
		{"an entry with a name", field.Invalid(path.Child("secretsStore", "customSecrets").Index(0).Child("name"), value,
			"should match"),
			"body secrets_store custom_secrets TOKEN name", "string_pattern_mismatch", "should match"},
		{"a variable", field.Invalid(path.Child("mcpConfig", "stdioServers").Index(2).Child("env").Index(3).Child("name"),
			value, "is bad"),
			"body mcp_config stdio_servers 2 env", "value_error", "is bad"},
		{"the name", field.Invalid(field.NewPath("metadata", "name"), value, "is bad"), "body conversation_id", "value_error",
			"is bad"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cause := metav1.StatusCause{Type: metav1.CauseType(c.err.Type), Field: c.err.Field, Message: c.err.ErrorBody()}
			got := details([]metav1.StatusCause{cause}, func(string, int) string { return "TOKEN" })
			var loc []string
			for _, step := range got[0].Loc {
				loc = append(loc, strings.Trim(jsonOf(t, step), `"`))
			}
			if at := strings.Join(loc, " "); at != c.loc || got[0].Type != c.kind || got[0].Msg != c.msg {
				t.Errorf("translated to %s %+v", at, got[0])
			}
			if strings.Contains(jsonOf(t, got), "cret: x") {
				t.Errorf("the value is repeated in %s", jsonOf(t, got))
			}
		})
	}
}
