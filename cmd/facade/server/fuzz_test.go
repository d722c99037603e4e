package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
)

// mark is added to every string of a fuzzed body. A refusal must not contain it.
const mark = "zq9mark"

// These requests contain every field, as a Go client sends them.
var (
	everySetting = rest.Settings{
		Language: rest.Set("en"), MaxIterations: rest.Set(int32(100)), ConfirmationMode: rest.Null[bool](),
		LLMAPIKey:        rest.NewKey("k"),
		MaxBudgetPerTask: rest.Set(json.Number("4.5")),
		SecretsStore: rest.Set(rest.UserSecrets{
			ProviderTokens: map[string]*rest.ProviderToken{"github": {Token: rest.NewKey("t"),
				Host: rest.Set("git.example.com")}, "gitlab": nil},
			CustomSecrets: map[string]*rest.CustomSecret{"TOKEN": {Secret: rest.NewKey("s"),
				Description: rest.Set("for staging")}},
		}),
		MCPConfig: rest.Set(everyTool),
	}
	everyTool = rest.MCPConfig{
		SSEServers: []rest.MCPRemoteServer{{URL: "https://a.example.com", APIKey: rest.NewKey("k")}},
		StdioServers: []rest.MCPStdioServer{{Name: "files", Command: "mcp-files", Args: []string{"--root", "/w"},
			Env: map[string]rest.Key{"A": rest.NewKey("a"), "B": {}}}},
	}
	everyConversationField = rest.ConversationRequest{
		Repository: ptr.To("o/r"), SelectedBranch: ptr.To("main"), InitialUserMsg: ptr.To("hello"),
		ImageURLs: []rest.Image{{URL: "https://example.com/a.png"}, {MediaType: "image/png", Data: []byte{0, 1}}},
		SuggestedTask: &rest.SuggestedTask{GitProvider: "github", TaskType: "OPEN_ISSUE", Repo: "o/r", IssueNumber: 7,
			Title: "t"},
		MCPConfig: &everyTool, ConversationID: ptr.To("talk"),
	}
)

func jsonOf(t testing.TB, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func FuzzSettings(f *testing.F) {
	for _, seed := range []string{
		jsonOf(f, everySetting), `{"max_iterations": "10", "confirmation_mode": "yes", "max_budget_per_task": "1e3"}`,
		`{"max_iterations": 10.5, "llm_api_key": null, "secrets_store": {"provider_tokens": {"github": null}}}`,
		`{"mcp_config": {"sse_servers": ["https://a.example.com"], "stdio_servers": [{"name": "n", "command": "c", "args": ` +
			`"a 'b c'", "env": "K=V,K2=V2"}]}}`,
		`{`, `null`, `[]`, `"x"`, ``,
	} {
		f.Add([]byte(seed))
	}
	fuzzBody(f, "/api/settings")
}

func FuzzConversation(f *testing.F) {
	for _, seed := range []string{
		jsonOf(f, everyConversationField), `{"replay_json": "[]", "conversation_id": "talk"}`,
		`{"replay_json": "[", "initial_user_msg": 5}`,
		`{"create_microagent": {"repo": "o/r", "git_provider": null}, "unknown": {"deep": [1, 2]}}`,
		`{"suggested_task": {"issue_number": "1.0"}}`, `{"image_urls": ["data:image/svg+xml;utf8,%3Csvg/%3E", "data:,", ` +
			`"data:image/png;base64,%"]}`, `{`, `null`, `[]`, `"x"`, ``,
	} {
		f.Add([]byte(seed))
	}
	fuzzBody(f, "/api/conversations")
}

// fuzzBody checks that no body causes a server error and that refusals repeat no value.
func fuzzBody(f *testing.F, path string) {
	options := DefaultOptions()
	options.Limits.Rate = 0
	handler := New(&stubCluster{}, options, prometheus.NewRegistry())
	f.Fuzz(func(t *testing.T, body []byte) {
		body = marked(body)
		request := httptest.NewRequest("POST", path, bytes.NewReader(body))
		request.Header.Set(rest.KeyHeader, stubKey)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		if answer.Code >= http.StatusInternalServerError {
			t.Errorf("%s answered with %d %s", body, answer.Code, answer.Body)
		}
		if answer.Code != http.StatusOK && strings.Contains(answer.Body.String(), mark) {
			t.Errorf("%s is repeated in the answer %s", body, answer.Body)
		}
	})
}

func marked(body []byte) []byte {
	var value any
	if json.Unmarshal(body, &value) != nil {
		return body
	}
	result, err := json.Marshal(mapTexts(value))
	if err != nil {
		return body
	}
	return result
}

func mapTexts(value any) any {
	switch value := value.(type) {
	case string:
		// Keep an empty string, because it has a special meaning.
		if value == "" {
			return value
		}
		return value + mark
	case []any:
		for i := range value {
			value[i] = mapTexts(value[i])
		}
	case map[string]any:
		for name := range value {
			value[name] = mapTexts(value[name])
		}
	}
	return value
}
