package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/rest"
)

func TestEachFieldOfAConversationIsChecked(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	task := func(change string) string {
		fields := map[string]any{"git_provider": "github", "task_type": "OPEN_ISSUE", "repo": "o/r", "issue_number": 1,
			"title": "t"}
		_ = json.Unmarshal([]byte(change), &fields)
		return `{"suggested_task": ` + jsonOf(t, fields) + `}`
	}
	for _, c := range []struct{ name, body, complaint string }{
		{"a repository that is a number", `{"repository": 5}`, "body.repository: string_type"},
		{"an invalid repository", `{"repository": "widgets"}`, "body.repository: value_error"},
		{"an unknown provider", `{"git_provider": "sourceforge"}`, "body.git_provider: enum"},
		{"a provider that is a number", `{"git_provider": 5}`, "body.git_provider: string_type"},
		{"a branch without a repository", `{"selected_branch": "main"}`, "body.selected_branch: value_error"},
		{"an invalid branch", `{"repository": "o/r", "selected_branch": "a..b"}`, "body.selected_branch: value_error"},
		{"a branch that is a list", `{"repository": "o/r", "selected_branch": []}`, "body.selected_branch: string_type"},
		{"an agent that is a number", `{"agent": 5}`, "body.agent: string_type"},
		{"a model with a space", `{"llm_model": "ollama/a b"}`, "body.llm_model: string_pattern_mismatch"},
		{"a model that is a list", `{"llm_model": []}`, "body.llm_model: string_type"},
		{"a message that is an object", `{"initial_user_msg": {}}`, "body.initial_user_msg: string_type"},
		{"a message that is too long", `{"initial_user_msg": "` + strings.Repeat("m", 131073) + `"}`,
			"body.initial_user_msg: string_too_long"},
		{"images that are text", `{"image_urls": "https://example.com/a.png"}`, "body.image_urls: list_type"},
		{"an image that is a number", `{"image_urls": ["https://example.com/a.png", 5]}`, "body.image_urls.1: string_type"},
		{"an invalid image URL", `{"image_urls": ["https://example.com/a.png", "nowhere"]}`,
			"body.image_urls.1: value_error"},
		{"an image with a password in its URL", `{"image_urls": ["data:image/png;base64,AA==", ` +
			`"https://u:p@example.com/a.png"]}`, "body.image_urls.1: value_error"},
		{"an image whose URL is too long", `{"image_urls": ["https://example.com/` + strings.Repeat("a", 16384) + `"]}`,
			"body.image_urls.0: string_too_long"},
		{"data of another type", `{"image_urls": ["data:image/png;base64,AA==", "data:text/html;base64,AA=="]}`,
			"body.image_urls.1: value_error"},
		{"data without a media type", `{"image_urls": ["data:,AA"]}`, "body.image_urls.0: value_error"},
		{"invalid base64 data", `{"image_urls": ["data:image/png;base64,?!"]}`, "body.image_urls.0: value_error"},
		{"invalid percent-encoding", `{"image_urls": ["data:image/svg+xml,%3Csvg/%3"]}`,
			"body.image_urls.0: value_error"},
		{"an image without data", `{"image_urls": ["data:image/png;base64,"]}`, "body.image_urls.0: value_error"},
		{"an image without a comma", `{"image_urls": ["data:image/png;base64"]}`, "body.image_urls.0: value_error"},
		{"too many images", `{"image_urls": [` + strings.Repeat(`"https://example.com/a.png",`, 16) +
			`"https://example.com/a.png"]}`, "body.image_urls: too_long"},
		{"a replay that is an object", `{"replay_json": {}}`, "body.replay_json: string_type"},
		{"a replay of invalid JSON", `{"replay_json": "[{"}`, "body.replay_json: json_invalid"},
		{"a replay that is an object without a trajectory", `{"replay_json": "{}"}`, "body.replay_json: value_error"},
		{"a replay whose trajectory is not a list", `{"replay_json": "{\"trajectory\": 5}"}`,
			"body.replay_json: value_error"},
		{"a replay that is null", `{"replay_json": "null"}`, "body.replay_json: value_error"},
		{"a replay of null events", `{"replay_json": "[null]"}`, "body.replay_json: value_error"},
		{"a replay of strings", `{"replay_json": "[\"run\"]"}`, "body.replay_json: value_error"},
		{"a replay with a message", `{"replay_json": "[]", "initial_user_msg": "m"}`, "body.initial_user_msg: value_error"},
		{"a replay with images", `{"replay_json": "[]", "image_urls": ["https://example.com/a.png"]}`,
			"body.image_urls: value_error"},
		{"a replay with image data", `{"replay_json": "[]", "image_urls": ["data:image/png;base64,AA=="]}`,
			"body.image_urls: value_error"},
		{"a task of another provider", `{"git_provider": "gitlab", "suggested_task": {"git_provider": "github", ` +
			`"task_type": "OPEN_ISSUE", "repo": "o/r", "issue_number": 1, "title": "t"}}`, "body.git_provider: value_error"},
		{"a task that is text", `{"suggested_task": "x"}`, "body.suggested_task: dict_type"},
		{"a task without a title", `{"suggested_task": {"git_provider": "github", "task_type": "OPEN_ISSUE", "repo": "o/r",` +
			` "issue_number": 1}}`, "body.suggested_task.title: missing"},
		{"a task of an unknown type", task(`{"task_type": "DANCE"}`), "body.suggested_task.task_type: enum"},
		{"a task of an unknown provider", task(`{"git_provider": "x"}`), "body.suggested_task.git_provider: enum"},
		{"a task with an invalid number", task(`{"issue_number": "x"}`), "body.suggested_task.issue_number: int_parsing"},
		{"a task whose number is a fraction", task(`{"issue_number": 1.5}`),
			"body.suggested_task.issue_number: int_from_float"},
		{"a task whose number is zero", task(`{"issue_number": 0}`), "body.suggested_task.issue_number: greater_than_equal"},
		{"a task whose title is null", task(`{"title": null}`), "body.suggested_task.title: string_type"},
		{"a task with an invalid repository", task(`{"repo": "r"}`), "body.suggested_task.repo: value_error"},
		{"a task with an unknown field", task(`{"color": 1}`), "body.suggested_task.color: extra_forbidden"},
		{"a microagent that is a list", `{"create_microagent": []}`, "body.create_microagent: dict_type"},
		{"a microagent without a repository", `{"create_microagent": {"title": "t"}}`,
			"body.create_microagent.repo: missing"},
		{"a microagent of an unknown provider", `{"create_microagent": {"repo": "o/r", "git_provider": "x"}}`,
			"body.create_microagent.git_provider: enum"},
		{"instructions that are a number", `{"conversation_instructions": 1}`, "body.conversation_instructions: string_type"},
		{"tool servers that are text", `{"mcp_config": "x"}`, "body.mcp_config: dict_type"},
		{"a tool server with a bad URL", `{"mcp_config": {"shttp_servers": ["nowhere"]}}`,
			"body.mcp_config.shttp_servers.0.url: value_error"},
		{"a tool server with an unknown field", `{"mcp_config": {"sse_servers": [{"url": "https://a.example.com", "color": ` +
			`1}]}}`, "body.mcp_config.sse_servers.0.color: extra_forbidden"},
		{"an ID that is a number", `{"conversation_id": 5}`, "body.conversation_id: string_type"},
		{"an ID that is no DNS label", `{"conversation_id": "Not_A_Label"}`, "body.conversation_id: string_pattern_mismatch"},
		{"an ID that is too long", `{"conversation_id": "` + strings.Repeat("a", 54) + `"}`,
			"body.conversation_id: string_pattern_mismatch"},
		{"an empty ID", `{"conversation_id": ""}`, "body.conversation_id: string_pattern_mismatch"},
		{"an unknown field", `{"color": "red"}`, "body.color: extra_forbidden"},
		{"an unknown field that might be a key", `{"sk-12345": "red"}`, "body: extra_forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ada.post(t, "/api/conversations", c.body).wants(t, 422).complains(t, c.complaint)
		})
	}
	for name, body := range map[string]string{
		"no fields": `{}`,
		"every field null": `{"repository": null, "git_provider": null, "selected_branch": null, "initial_user_msg": null, ` +
			`"image_urls": null, "replay_json": null, "suggested_task": null, "create_microagent": null, ` +
			`"conversation_instructions": null, "agent": null, "llm_model": null, "mcp_config": null, "conversation_id": null}`,
		"a trajectory": `{"replay_json": "{\"trajectory\": [{\"id\": 0}]}"}`,
		"empty fields": `{"repository": "", "selected_branch": "", "initial_user_msg": "", "image_urls": [], ` +
			`"replay_json": "", "conversation_instructions": "", "agent": "", "llm_model": "", "mcp_config": {}}`,
	} {
		t.Run("accepts "+name, func(t *testing.T) {
			t.Parallel()
			ada.post(t, "/api/conversations", body).wants(t, 200)
		})
	}
}

func TestAllErrorsOfAValidationStageAreReportedTogether(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	value := canary()
	types := `"color": "` + value + `", "initial_user_msg": 5, "conversation_id": "` + value + `_", `
	rules := `"selected_branch": "a..` + value + `", "image_urls": ["` + value + `"], "repository": "` + value + `"`
	for _, stage := range []struct {
		body       string
		complaints []string
	}{
		{types + `"git_provider": "` + value + `", ` + rules, []string{"body.color: extra_forbidden",
			"body.initial_user_msg: string_type", "body.conversation_id: string_pattern_mismatch"}},
		{`"git_provider": "` + value + `", ` + rules, []string{"body.git_provider: enum"}},
		{rules, []string{"body.repository: value_error", "body.selected_branch: value_error",
			"body.image_urls.0: value_error"}},
		{`"create_microagent": {"repo": 5}, "repository": "` + value + `"`,
			[]string{"body.create_microagent.repo: string_type"}},
	} {
		ada.post(t, "/api/conversations", "{"+stage.body+"}").wants(t, 422).lacks(t, value).complains(t, stage.complaints...)
	}
}

func TestTasksAndMicroagentsProvideADefaultRepository(t *testing.T) {
	t.Parallel()
	ada := newcomer(t) // no provider token: public repositories need none
	for name, body := range map[string]string{
		"MERGE_CONFLICTS": `{"suggested_task": {"git_provider": "github", "task_type": "MERGE_CONFLICTS", "repo": ` +
			`"o/r", "issue_number": 1, "title": "t"}}`,
		"FAILING_CHECKS": `{"suggested_task": {"git_provider": "github", "task_type": "FAILING_CHECKS", "repo": "o/r",` +
			` "issue_number": 1, "title": "t"}}`,
		"UNRESOLVED_COMMENTS": `{"suggested_task": {"git_provider": "github", "task_type": "UNRESOLVED_COMMENTS", "repo": ` +
			`"o/r", "issue_number": 1, "title": "t"}}`,
		"OPEN_ISSUE": `{"suggested_task": {"git_provider": "github", "task_type": "OPEN_ISSUE", "repo": "o/r", ` +
			`"issue_number": 1, "title": "t"}}`,
		"a microagent": `{"create_microagent": {"repo": "o/r", "git_provider": "github", "title": "t"}}`,
		"a microagent with a different repository": `{"repository": "o/r", "git_provider": "github", ` +
			`"create_microagent": {"repo": "p/q"}}`,
		"only a repository": `{"repository": "o/r", "git_provider": "github"}`,
	} {
		t.Run(name, func(t *testing.T) {
			id := ada.post(t, "/api/conversations", body).wants(t, 200).field(t, "conversation_id").(string)
			shown := ada.get(t, "/api/conversations/"+id).wants(t, 200)
			shown.shows(t, "selected_repository", `"o/r"`).shows(t, "git_provider", `"github"`)
		})
	}
}
func TestErrorsAboutLongListsAreBounded(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	long := strings.Repeat("1,", 500_000) + "1"
	entries := strings.Builder{}
	for i := range 1001 {
		fmt.Fprintf(&entries, `"N%d": {},`, i)
	}
	for _, c := range []struct{ path, body, complaint string }{
		{"/api/conversations", `{"image_urls": [` + long + `]}`, "body.image_urls: too_long"},
		{"/api/conversations", `{"mcp_config": {"sse_servers": [` + long + `]}}`, "body.mcp_config.sse_servers: too_long"},
		{"/api/settings", `{"mcp_config": {"stdio_servers": [` + long + `]}}`, "body.mcp_config.stdio_servers: too_long"},
		{"/api/settings", `{"secrets_store": {"custom_secrets": {` + entries.String() + `"Z": {}}}}`,
			"body.secrets_store.custom_secrets: too_long"},
	} {
		ada.post(t, c.path, c.body).wants(t, 422).complains(t, c.complaint)
	}
	many := ada.post(t, "/api/conversations", `{"image_urls": [1`+strings.Repeat(",1", 999)+`]}`).wants(t, 422)
	var body rest.Invalid
	if err := json.Unmarshal([]byte(many.body), &body); err != nil || len(body.Detail) != rest.MaxDetails {
		t.Errorf("the answer has %d details (%v)", len(body.Detail), err)
	}
}
