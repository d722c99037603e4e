package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	ac "github.com/parley-dev/parley/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// everySetting is a settings request with every field.
const everySetting = `{
	"language": "en", "agent": "CodeActAgent", "max_iterations": 100, "security_analyzer": "llm",
		"confirmation_mode": true,
	"llm_model": "example/model-large", "llm_api_key": "llm-key-1", "llm_base_url": "https://llm.example.com/v1",
	"llm_reasoning_effort": "high", "llm_temperature": 0.2,
	"remote_runtime_resource_factor": 2,
	"secrets_store": {
		"provider_tokens": {"github": {"token": "github-token-1", "user_id": "ada", "host": "git.example.com"},
			"gitlab": {"token": "gitlab-token-1"}},
		"custom_secrets": {"DEPLOY_TOKEN": {"secret": "deploy-1", "description": "for staging"}}
	},
	"enable_default_condenser": false, "enable_sound_notifications": true, "enable_proactive_conversation_starters": false,
	"enable_solvability_analysis": false, "user_consents_to_analytics": true,
	"sandbox_base_container_image": "example.com/base:1", "sandbox_runtime_container_image": "example.com/runtime:1",
	"mcp_config": {
		"sse_servers": [{"url": "https://tools.example.com/sse", "api_key": "sse-key-1"}],
		"stdio_servers": [{"name": "files", "command": "mcp-files", "args": ["--root", "/workspace"],
			"env": {"TOKEN": "stdio-1"}}],
		"shttp_servers": ["https://tools.example.com/mcp"]
	},
	"search_api_key": "search-key-1", "sandbox_api_key": "sandbox-key-1", "max_budget_per_task": 4.5,
	"email": "ada@example.com", "email_verified": true, "git_user_name": "Ada Example",
	"git_user_email": "git@example.com", "expose_secrets_to_model": true,
	"expose_git_token_to_agent": true
}`

var everyKey = []string{"llm-key-1", "github-token-1", "gitlab-token-1", "deploy-1", "sse-key-1", "stdio-1",
	"search-key-1", "sandbox-key-1"}

func TestEverySettingIsStoredAndResponsesContainNoKeys(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	ada.get(t, "/api/settings").wants(t, 404).says(t, `{"error": "Settings not found"}`)
	ada.post(t, "/api/settings", everySetting).wants(t, 200).says(t, `{"message": "Settings stored"}`)
	shown := ada.get(t, "/api/settings").wants(t, 200).lacks(t, everyKey...)
	shown.says(t, `{
		"language": "en", "agent": "CodeActAgent", "max_iterations": 100, "security_analyzer": "llm",
			"confirmation_mode": true,
		"llm_model": "example/model-large", "llm_api_key": null, "llm_base_url": "https://llm.example.com/v1",
		"llm_reasoning_effort": "high", "llm_temperature": 0.2,
		"remote_runtime_resource_factor": 2,
		"secrets_store": {
			"provider_tokens": {"github": {"token": null, "user_id": "ada", "host": "git.example.com"},
				"gitlab": {"token": null, "user_id": null, "host": null}},
			"custom_secrets": {"DEPLOY_TOKEN": {"secret": null, "description": "for staging"}}
		},
		"enable_default_condenser": false, "enable_sound_notifications": true,
			"enable_proactive_conversation_starters": false,
		"enable_solvability_analysis": false, "user_consents_to_analytics": true,
		"sandbox_base_container_image": "example.com/base:1", "sandbox_runtime_container_image": "example.com/runtime:1",
		"mcp_config": {
			"sse_servers": [{"url": "https://tools.example.com/sse", "api_key": null, "api_key_set": true}],
			"stdio_servers": [{"name": "files", "command": "mcp-files", "args": ["--root", "/workspace"],
				"env": {"TOKEN": null}}],
			"shttp_servers": [{"url": "https://tools.example.com/mcp", "api_key": null, "api_key_set": false}]
		},
		"search_api_key": null, "sandbox_api_key": null, "max_budget_per_task": 4.5,
		"email": "ada@example.com", "email_verified": true, "git_user_name": "Ada Example",
			"git_user_email": "git@example.com", "expose_secrets_to_model": true, "expose_git_token_to_agent": true,
		"llm_api_key_set": true, "search_api_key_set": true, "sandbox_api_key_set": true,
		"provider_tokens_set": {"github": "git.example.com", "gitlab": null}, "inherited": []
	}`)
	var typed rest.StoredSettings
	decoder := json.NewDecoder(strings.NewReader(shown.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&typed); err != nil {
		t.Errorf("the answer does not match its type: %v", err)
	}
	shown.says(t, jsonOf(t, typed))
	stored := ada.settings(t)
	for _, c := range []struct{ secret, value string }{
		{stored.Spec.LLMAPIKeyRef.Name, "llm-key-1"},
		{"ada-search-api-key", "search-key-1"}, {"ada-sandbox-api-key", "sandbox-key-1"},
		{"ada-token-github", "github-token-1"}, {"ada-token-gitlab", "gitlab-token-1"},
		{stored.Spec.SecretsStore.CustomSecrets[0].SecretRef.Name, "deploy-1"},
		{stored.Spec.MCPConfig.SSEServers[0].APIKeyRef.Name, "sse-key-1"},
		{stored.Spec.MCPConfig.StdioServers[0].Env[0].SecretRef.Name, "stdio-1"},
	} {
		if got := ada.secret(t, c.secret); got != c.value {
			t.Errorf("%s holds %q, want %q", c.secret, got, c.value)
		}
	}

	t.Run("the answer can be posted back", func(t *testing.T) {
		ada.post(t, "/api/settings", shown.body).wants(t, 200)
		ada.get(t, "/api/settings").wants(t, 200).says(t, shown.body)
	})
	t.Run("the operator finds every key", func(t *testing.T) {
		await(t, func() error {
			for _, c := range ada.settings(t).Status.Conditions {
				if c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("not ready: %v", ada.settings(t).Status.Conditions)
		})
	})
}

func TestSecretsAreMergedEntryByEntry(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	store := func(body string) {
		t.Helper()
		ada.post(t, "/api/settings", `{"secrets_store": `+body+`}`).wants(t, 200)
	}
	shows := func(want string) {
		t.Helper()
		ada.get(t, "/api/settings").wants(t, 200).shows(t, "secrets_store", want)
	}
	ada.post(t, "/api/settings", `{"language": "en"}`).wants(t, 200)
	store(`{"provider_tokens": {"github": {"token": "t1", "user_id": "ada", "host": "git.example.com"}}}`)
	store(`{"custom_secrets": {"A": {"secret": "a", "description": "one"}, "B": {"secret": "b"}}}`)
	shows(`{"provider_tokens": {"github": {"token": null, "user_id": "ada", "host": "git.example.com"}},
		"custom_secrets": {"A": {"secret": null, "description": "one"}, "B": {"secret": null, "description": null}}}`)

	t.Run("an empty token keeps the stored one", func(t *testing.T) {
		store(`{"provider_tokens": {"github": {"token": "", "host": null}, "enterprise_sso": {"token": "t2"}}}`)
		shows(
			`{"provider_tokens": {"enterprise_sso": {"token": null, "user_id": null, "host": null},
				"github": {"token": null, "user_id": "ada", "host": null}},
			"custom_secrets": {"A": {"secret": null, "description": "one"}, "B": {"secret": null, "description": null}}}`)
		if ada.secret(t, "ada-token-github") != "t1" || ada.secret(t, "ada-token-enterprise-sso") != "t2" {
			t.Error("a token changed")
		}
	})
	t.Run("null keeps all, null for an entry removes it", func(t *testing.T) {
		ada.post(t, "/api/settings", `{"secrets_store": null}`).wants(t, 200)
		store(`{"provider_tokens": null, "custom_secrets": {}}`)
		store(`{"provider_tokens": {"github": null}, "custom_secrets": {"A": null, "NEVER": null}}`)
		shows(`{"provider_tokens": {"enterprise_sso": {"token": null, "user_id": null, "host": null}}, "custom_secrets": ` +
			`{"B": {"secret": null, "description": null}}}`)
		store(`{"provider_tokens": {"enterprise_sso": null}, "custom_secrets": {"B": null}}`)
		shows(`{"provider_tokens": {}, "custom_secrets": {}}`)
	})
	for name, c := range map[string]struct{ body, complaint string }{
		"not an object":          {`5`, "body.secrets_store: dict_type"},
		"tokens of another type": {`{"provider_tokens": []}`, "body.secrets_store.provider_tokens: dict_type"},
		"a token of another type": {`{"provider_tokens": {"github": "t"}}`,
			"body.secrets_store.provider_tokens.github: dict_type"},
		"an unknown provider": {`{"provider_tokens": {"sourceforge": {"token": "t"}}}`,
			"body.secrets_store.provider_tokens.sourceforge: enum"},
		"a token that is a number": {`{"provider_tokens": {"github": {"token": 5}}}`,
			"body.secrets_store.provider_tokens.github.token: string_type"},
		"a host that is a URL": {`{"provider_tokens": {"github": {"host": "https://git.example.com"}}}`,
			"body.secrets_store.provider_tokens.github.host: value_error"},
		"a secret without a value": {`{"custom_secrets": {"NEW": {"description": "x"}}}`,
			"body.secrets_store.custom_secrets.NEW.secret: missing"},
		"a secret with a bad name": {`{"custom_secrets": {"not-a-name": {"secret": "x"}}}`,
			"body.secrets_store.custom_secrets.name: string_pattern_mismatch"},
		"a secret of another type": {`{"custom_secrets": {"X": "x"}}`, "body.secrets_store.custom_secrets.X: dict_type"},
	} {
		t.Run(name, func(t *testing.T) {
			ada.post(t, "/api/settings", `{"secrets_store": `+c.body+`}`).wants(t, 422).complains(t, c.complaint)
		})
	}
}

// shows is an assertion that a field of the body equals this JSON.
func (r reply) shows(t *testing.T, field, want string) reply {
	t.Helper()
	reply{body: jsonOf(t, r.field(t, field))}.says(t, want)
	return r
}

func TestAToolServerKeepsItsKeyWhenTheListIsReplaced(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	store := func(body string) reply {
		t.Helper()
		return ada.post(t, "/api/settings", `{"mcp_config": `+body+`}`)
	}
	store(`{"sse_servers": [{"url": "https://a.example.com", "api_key": "ka"}, "https://b.example.com"],
		"stdio_servers": [{"name": "s", "command": "c", "args": "--flag 'two words' \"q\\\"q\" $HOME *",
			"env": "K=V,K2=V2=x"}]}`).wants(t, 200)
	ada.get(t, "/api/settings").shows(t, "mcp_config", `{
		"sse_servers": [{"url": "https://a.example.com", "api_key": null, "api_key_set": true},
			{"url": "https://b.example.com", "api_key": null, "api_key_set": false}],
		"stdio_servers": [{"name": "s", "command": "c", "args": ["--flag", "two words", "q\"q", "$HOME", "*"],
			"env": {"K": null, "K2": null}}],
		"shttp_servers": []}`)
	spec := ada.settings(t).Spec.MCPConfig
	if got := ada.secret(t, spec.StdioServers[0].Env[1].SecretRef.Name); got != "V2=x" {
		t.Errorf("K2 is %q", got)
	}

	t.Run("a missing server is removed, a kept one keeps its key", func(t *testing.T) {
		store(`{"sse_servers": [{"url": "https://a.example.com", "api_key": null}],
			"stdio_servers": [{"name": "s", "command": "c2", "env": {"K": null, "NEW": "n", "EMPTY": "",
				"NEVER": null}}]}`).wants(t, 200)
		ada.get(t, "/api/settings").shows(t, "mcp_config", `{
			"sse_servers": [{"url": "https://a.example.com", "api_key": null, "api_key_set": true}],
			"stdio_servers": [{"name": "s", "command": "c2", "args": [], "env": {"EMPTY": null, "K": null, "NEW": null}}],
			"shttp_servers": []}`)
	})
	t.Run("an empty key clears it", func(t *testing.T) {
		store(`{"sse_servers": [{"url": "https://a.example.com", "api_key": ""}]}`).wants(t, 200)
		ada.get(t, "/api/settings").shows(t, "mcp_config", `{"sse_servers": [{"url": "https://a.example.com", "api_key": `+
			`null, "api_key_set": false}], "stdio_servers": [], "shttp_servers": []}`)
	})
	for name, c := range map[string]struct {
		body       string
		complaints []string
	}{
		"lists of another type": {`{"sse_servers": {}, "stdio_servers": 5, "shttp_servers": "x"}`,
			[]string{"body.mcp_config.sse_servers: list_type", "body.mcp_config.stdio_servers: list_type",
				"body.mcp_config.shttp_servers: list_type"}},
		"a server without a URL": {`{"sse_servers": [{"api_key": "k"}]}`,
			[]string{"body.mcp_config.sse_servers.0.url: missing"}},
		"a server that is a number": {`{"shttp_servers": ["https://a.example.com", 5]}`,
			[]string{"body.mcp_config.shttp_servers.1: dict_type"}},
		"a server with a bad URL": {`{"shttp_servers": ["https://a.example.com", "ftp://b.example.com"]}`,
			[]string{"body.mcp_config.shttp_servers.1.url: value_error"}},
		"a process without a name": {`{"stdio_servers": [{"command": "c"}]}`,
			[]string{"body.mcp_config.stdio_servers.0.name: missing"}},
		"a process without a command": {`{"stdio_servers": [{"name": "n"}]}`,
			[]string{"body.mcp_config.stdio_servers.0.command: missing"}},
		"a command with arguments": {`{"stdio_servers": [{"name": "n", "command": "a b"}]}`,
			[]string{"body.mcp_config.stdio_servers.0.command: string_pattern_mismatch"}},
		"an open quote in the arguments": {`{"stdio_servers": [{"name": "n", "command": "c", "args": "'a"}]}`,
			[]string{"body.mcp_config.stdio_servers.0.args: value_error"}},
		"arguments that are numbers": {`{"stdio_servers": [{"name": "n", "command": "c", "args": [1]}]}`,
			[]string{"body.mcp_config.stdio_servers.0.args.0: string_type"}},
		"an environment of words": {`{"stdio_servers": [{"name": "n", "command": "c", "env": "words"}]}`,
			[]string{"body.mcp_config.stdio_servers.0.env: value_error"}},
		"an environment of numbers": {`{"stdio_servers": [{"name": "n", "command": "c", "env": {"K": 1}}]}`,
			[]string{"body.mcp_config.stdio_servers.0.env.K: string_type"}},
		"a variable with a bad name": {`{"stdio_servers": [{"name": "n", "command": "c", "env": {"not-a-name": "v"}}]}`,
			[]string{"body.mcp_config.stdio_servers.0.env: string_pattern_mismatch"}},
		"a server listed twice": {`{"sse_servers": ["https://a.example.com", "https://a.example.com"]}`,
			[]string{"body.mcp_config.sse_servers.1: value_error"}},
		"a variable that is too long": {`{"stdio_servers": [{"name": "n", "command": "c", "env": {"K": "` +
			strings.Repeat("v", (100<<10)+1) + `"}}]}`, []string{"body.mcp_config.stdio_servers.0.env.K: string_too_long"}},
		"a variable with a zero byte": {`{"stdio_servers": [{"name": "n", "command": "c", "env": {"K": "a\u0000b"}}]}`,
			[]string{"body.mcp_config.stdio_servers.0.env.K: value_error"}},
		"a server in both lists": {`{"sse_servers": ["https://a.example.com"], "shttp_servers": ["https://a.example.com"]}`,
			[]string{"body.mcp_config.shttp_servers: value_error"}},
	} {
		t.Run(name, func(t *testing.T) {
			store(c.body).wants(t, 422).complains(t, c.complaints...)
		})
	}
	store(`{"sse_servers": ["", ""]}`).wants(t, 422)
	t.Run("a misspelt name removes nothing", func(t *testing.T) {
		store(`{"shttp_servers": [{"url": "https://a.example.com", "api_key": "k"}]}`).wants(t, 200)
		for body, complaint := range map[string]string{
			`{"shttp_server": [{"url": "https://b.example.com"}]}`: "body.mcp_config.shttp_server: extra_forbidden",
			`{"foo": []}`: "body.mcp_config.foo: extra_forbidden",
			`{"shttp_servers": [{"url": "https://a.example.com", "apikey": "k"}]}`: "body." +
				"mcp_config.shttp_servers.0.apikey: extra_forbidden",
			`{"stdio_servers": [{"name": "n", "command": "c", "environment": {"K": "v"}}]}`: "body." +
				"mcp_config.stdio_servers.0.environment: extra_forbidden",
		} {
			store(body).wants(t, 422).complains(t, complaint)
		}
		ada.get(t, "/api/settings").shows(t, "mcp_config", `{"sse_servers": [], "stdio_servers": [], "shttp_servers": `+
			`[{"url": "https://a.example.com", "api_key": null, "api_key_set": true}]}`)
	})
	t.Run("a client may post back an answer with a timeout", func(t *testing.T) {
		store(`{"sse_servers": [], "stdio_servers": [], "shttp_servers": [{"url": "https://a.example.com", "api_key": null,`+
			` "api_key_set": true, "timeout": 60}]}`).wants(t, 200)
	})
	t.Run("arguments that look like a key are accepted", func(t *testing.T) {
		store(`{"stdio_servers": [{"name": "n", "command": "c", "args": ["--token", "hunter2"]}]}`).wants(t, 200)
	})
}

func TestSettingsErrorsAreReportedTogetherAndNothingIsStored(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	secret := canary()
	types := `"max_iterations": "` + secret + `", "confirmation_mode": [], `
	schema := `"remote_runtime_resource_factor": 3, "git_user_name": "<` + secret + `>", `
	rules := `"language": "` + secret + ` x", "llm_base_url": "` + secret + `", "llm_api_key": "` + secret +
		`", "email": "ada@example.com"`
	for _, stage := range []struct {
		body       string
		complaints []string
	}{
		{types + schema + rules, []string{"body.max_iterations: int_parsing", "body.confirmation_mode: bool_type"}},
		{schema + rules, []string{"body.remote_runtime_resource_factor: enum",
			"body.git_user_name: string_pattern_mismatch"}},
		{rules, []string{"body.language: value_error", "body.llm_base_url: value_error"}},
	} {
		ada.post(t, "/api/settings", "{"+stage.body+"}").wants(t, 422).lacks(t, secret).complains(t, stage.complaints...)
	}
	ada.get(t, "/api/settings").wants(t, 404)
	var secrets corev1.SecretList
	if err := suite.Client.List(t.Context(), &secrets, client.InNamespace(ada.namespace),
		client.MatchingFields{"type": string(v1alpha1.SecretTypeUserKey)}); err != nil || len(secrets.Items) > 0 {
		t.Errorf("%d keys (%v) are stored, want none", len(secrets.Items), err)
	}
	if log := suite.facade.Log.String(); strings.Contains(log, secret) {
		t.Error("the value is in the log")
	}
}

func TestFieldsManagedByAGitOpsToolAreNotOverwritten(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "from-git"},
		StringData: map[string]string{"k": "v"}})
	git := ac.UserSettings(ada.name, ada.namespace).WithSpec(ac.UserSettingsSpec().
		WithLanguage("en").WithEnableSoundNotifications(false).
		WithLLMAPIKeyRef(ac.SecretKeyRef().WithName("from-git").WithKey("k")).
		WithSecretsStore(ac.SecretsStore().WithProviderTokens(ac.ProviderToken().WithProvider(v1alpha1.GitHub).WithHost(
			"git.example.com"))).
		WithMCPConfig(ac.MCPConfig().WithSSEServers(ac.MCPRemoteServer().WithURL("https://git.example.com/sse"))))
	if err := suite.Client.Apply(t.Context(), git, client.FieldOwner("argocd-controller"),
		client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body   string
		fields []string
	}{
		"a plain field":                 {`{"language": "de"}`, []string{"body.language: field_conflict"}},
		"a plain field that is cleared": {`{"language": null}`, []string{"body.language: field_conflict"}},
		"a field that is reset to its default": {`{"enable_sound_notifications": true}`,
			[]string{"body.enable_sound_notifications: field_conflict"}},
		"a key":                 {`{"llm_api_key": "mine"}`, []string{"body.llm_api_key: field_conflict"}},
		"a key that is cleared": {`{"llm_api_key": ""}`, []string{"body.llm_api_key: field_conflict"}},
		"a token's host": {`{"secrets_store": {"provider_tokens": {"github": {"host": "other.example.com"}}}}`,
			[]string{"body.secrets_store.provider_tokens: field_conflict"}},
		"a token that is removed": {`{"secrets_store": {"provider_tokens": {"github": null}}}`,
			[]string{"body.secrets_store: field_conflict"}},
		"a tool server that is removed": {`{"mcp_config": {"sse_servers": ["https://mine.example.com"]}}`,
			[]string{"body.mcp_config: field_conflict"}},
		"several": {`{"language": "de", "enable_sound_notifications": true, "email": "ada@example.com"}`,
			[]string{"body.language: field_conflict", "body.enable_sound_notifications: field_conflict"}},
	} {
		t.Run(name, func(t *testing.T) {
			reply := ada.post(t, "/api/settings", c.body).wants(t, 409).complains(t, c.fields...)
			if !strings.Contains(reply.body, "argocd-controller") {
				t.Errorf("the manager is not named: %s", reply.body)
			}
		})
	}
	t.Run("posting back an answer takes no ownership", func(t *testing.T) {
		ada.post(t, "/api/settings", ada.get(t, "/api/settings").wants(t, 200).body).wants(t, 200)
		owned, err := ac.ExtractUserSettings(ada.settings(t), cluster.FieldOwner)
		if err != nil || owned.Spec != nil && jsonOf(t, owned.Spec) != "{}" {
			t.Errorf("the facade owns %s (%v)", jsonOf(t, owned.Spec), err)
		}
	})
	t.Run("other fields can be stored", func(t *testing.T) {
		ada.post(t, "/api/settings",
			`{"email": "ada@example.com", "enable_default_condenser": false,
				"secrets_store": {"provider_tokens": {"gitlab": {"token": "mine"}}},
			"mcp_config": {"sse_servers": ["https://git.example.com/sse", "https://mine.example.com"]}}`).wants(t, 200)
		stored := ada.settings(t).Spec
		owned, err := ac.ExtractUserSettings(ada.settings(t), cluster.FieldOwner)
		if err != nil || len(owned.Spec.MCPConfig.SSEServers) != 1 || len(owned.Spec.SecretsStore.ProviderTokens) != 1 {
			t.Errorf("the facade owns %s (%v)", jsonOf(t, owned.Spec), err)
		}
		if *stored.Language != "en" || stored.LLMAPIKeyRef.Name != "from-git" ||
			len(stored.SecretsStore.ProviderTokens) != 2 || len(stored.MCPConfig.SSEServers) != 2 ||
			*stored.EnableDefaultCondenser {
			t.Errorf("stored %+v", stored)
		}
	})
}

func TestAnAdministratorsKeyIsNotSentToAnotherEndpoint(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "from-admin"},
		StringData: map[string]string{"k": "v"}})
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"llmModel": "openai/gpt-5",
		"llmAPIKeyRef": {"name": "from-admin", "key": "k"}, "secretsStore": {"providerTokens": [
		{"provider": "gitlab", "tokenRef": {"name": "from-admin", "key": "k"}}]}}}`))
	if err := suite.Client.Patch(t.Context(), ada.settings(t), patch); err != nil {
		t.Fatal(err)
	}
	const llm, token = "body.llm_api_key: value_error", "body.secrets_store.provider_tokens.gitlab.token: value_error"
	for body, fields := range map[string][]string{
		`{"llm_base_url": "https://evil.example.com"}`:                                                    {llm},
		`{"sandbox_base_container_image": "evil.example.com/image:1"}`:                                    {llm, token},
		`{"secrets_store": {"provider_tokens": {"gitlab": {"token": null, "host": "evil.example.com"}}}}`: {token},
	} {
		reply := ada.post(t, "/api/settings", body).wants(t, 422).complains(t, fields...)
		if !strings.Contains(reply.body, "an administrator set this key") {
			t.Errorf("the answer is %s", reply.body)
		}
	}
	ada.post(t, "/api/add-git-providers", `{"provider_tokens": {"gitlab": {"host": "evil.example.com"}}}`).wants(t, 422)
	ada.post(t, "/api/settings", ada.get(t, "/api/settings").wants(t, 200).body).wants(t, 200)
	ada.post(t, "/api/settings", `{"language": "de", "search_api_key": "mine"}`).wants(t, 200)
}

func TestADefaultSetByKubectlApplyIsNotOverwritten(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	ada.post(t, "/api/settings", `{"enable_default_condenser": false}`).wants(t, 200) // the setting was unset
	applied := jsonOf(t, map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		corev1.LastAppliedConfigAnnotation: `{"spec": {"enableSoundNotifications": false}}`,
	}}})
	if err := suite.Client.Patch(t.Context(), ada.settings(t), client.RawPatch(types.MergePatchType,
		[]byte(applied))); err != nil {
		t.Fatal(err)
	}
	ada.post(t, "/api/settings", `{"enable_sound_notifications": true}`).wants(t, 409).complains(t,
		"body.enable_sound_notifications: field_conflict")
	ada.post(t, "/api/settings", `{"enable_solvability_analysis": false}`).wants(t, 200)
}

func TestAForeignSecretIsNotOverwritten(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "ada-llm-api-key"},
		StringData: map[string]string{"key": "theirs"}}
	create(t, theirs)
	reply := ada.post(t, "/api/settings", `{"llm_api_key": "mine", "language": "en"}`).wants(t, 409).complains(t,
		"body.llm_api_key: secret_conflict")
	if !strings.Contains(reply.body, "ada-llm-api-key") {
		t.Errorf("the Secret is not named: %s", reply.body)
	}
	if err := suite.Client.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil ||
		string(theirs.Data["key"]) != "theirs" {
		t.Errorf("the Secret is %q (%v)", theirs.Data["key"], err)
	}
	ada.get(t, "/api/settings").wants(t, 404)
}

func TestTheSecretOfAStoredKeyRecordsItsOwnerAndItsWriteTime(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	ada.post(t, "/api/settings", `{"llm_api_key": "k"}`).wants(t, 200)
	secret := &corev1.Secret{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: "ada-llm-api-key"},
		secret); err != nil {
		t.Fatal(err)
	}
	if !metav1.IsControlledBy(secret, ada.settings(t)) || secret.Labels[v1alpha1.LabelUserSettings] != "ada" ||
		secret.Labels[v1alpha1.LabelManagedBy] != v1alpha1.ManagedBy {
		t.Errorf("metadata %+v", secret.ObjectMeta)
	}
	if written, err := time.Parse(time.RFC3339, secret.Annotations[v1alpha1.AnnotationWrittenAt]); err != nil ||
		time.Since(written) > time.Minute {
		t.Errorf("written at %v (%v)", written, err)
	}
}

// Another field manager may apply an empty value. The facade never writes empty values. It must
// treat the empty value like a missing value and report no conflict.
func TestEmptyValuesOfOtherFieldManagersDoNotConflict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		applied string
		bodies  []string
	}{
		"empty lists of tool servers": {`{"mcpConfig": {"sseServers": []}}`, []string{`{"mcp_config": null}`,
			`{"language": "de", "mcp_config": {"sse_servers": []}}`}},
		"an empty list of tokens": {`{"secretsStore": {"providerTokens": []}}`,
			[]string{`{"secrets_store": {"custom_secrets": {"X": null}}}`}},
		"an empty description": {`{"secretsStore": {"customSecrets": [{"name": "A", "description": "", "secretRef": ` +
			`{"name": "a", "key": "k"}}]}}`,
			[]string{`{"secrets_store": {"custom_secrets": {"B": {"secret": "v"}}}}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ada := newPerson(t, "ada")
			applied := &unstructured.Unstructured{}
			if err := json.Unmarshal(fmt.Appendf(nil, `{"apiVersion": "parley.dev/v1alpha1", "kind": "UserSettings", `+
				`"metadata": {"namespace": %q, "name": %q}, "spec": %s}`, ada.namespace, ada.name, c.applied),
				applied); err != nil {
				t.Fatal(err)
			}
			if err := suite.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied),
				client.FieldOwner("flux")); err != nil {
				t.Fatal(err)
			}
			for _, body := range c.bodies {
				ada.post(t, "/api/settings", body).wants(t, 200)
			}
			ada.post(t, "/api/settings", ada.get(t, "/api/settings").wants(t, 200).body).wants(t, 200)
		})
	}
}

// The facade and another field manager own the field "key" of a Secret reference. Only the other
// field manager owns the field "name" of this reference.
func TestTheFacadeDoesNotBecomeTheOwnerOfAnotherFieldManagersField(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	ada.post(t, "/api/settings", `{"llm_api_key": "mine"}`).wants(t, 200)
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "vault"},
		StringData: map[string]string{v1alpha1.ManagedSecretKey: "v"}})
	flux := ac.UserSettings(ada.name, ada.namespace).WithSpec(ac.UserSettingsSpec().WithLLMAPIKeyRef(
		ac.SecretKeyRef().WithName("vault").WithKey(v1alpha1.ManagedSecretKey)))
	if err := suite.Client.Apply(t.Context(), flux, client.FieldOwner("flux"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	ada.post(t, "/api/settings", `{"language": "de"}`).wants(t, 200)
	owned, err := ac.ExtractUserSettings(ada.settings(t), cluster.FieldOwner)
	if err != nil || owned.Spec.LLMAPIKeyRef != nil && owned.Spec.LLMAPIKeyRef.Name != nil {
		t.Errorf("the facade owns %s (%v)", jsonOf(t, owned.Spec), err)
	}
}

func TestAVariableWithoutANameIsRefused(t *testing.T) {
	t.Parallel()
	newPerson(t, "ada").post(t, "/api/settings", `{"mcp_config": {"stdio_servers": [{"name": "s", "command": "c", `+
		`"env": {"": "secret"}}]}}`).
		wants(t, 422).complains(t, "body.mcp_config.stdio_servers.0.env: string_too_short")
}

func TestSettingsRequestsBeyondClassLimitsAreRefused(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "small-" + ada.namespace},
		Spec: v1alpha1.SessionClassSpec{
			Images:    &v1alpha1.SessionImages{Allowed: []string{"example.com/team/*"}},
			Resources: &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](1)},
			Agents:    []string{"coder"},
		}}
	create(t, class)
	settings := ada.settings(t)
	settings.Spec.SessionClassName = &class.Name
	if err := suite.Client.Update(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		return codeOf(ada.post(t, "/api/settings", `{"remote_runtime_resource_factor": 2}`), 422)
	})
	ada.post(t, "/api/settings", `{"remote_runtime_resource_factor": 2, "sandbox_base_container_image": `+
		`"example.com/other:1"}`).wants(t, 422).
		complains(t, "body.remote_runtime_resource_factor: value_error", "body.sandbox_base_container_image: value_error")
	ada.post(t, "/api/settings", `{"remote_runtime_resource_factor": 1, "sandbox_base_container_image": `+
		`"example.com/team/x:1"}`).wants(t, 200)
}
