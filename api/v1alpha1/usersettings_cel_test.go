package v1alpha1_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestOnlyValidUserSettingsAreAccepted(t *testing.T) {
	const duplicate = "Duplicate value"
	runSpecCases(t, "UserSettings", []specCase{
		{name: "accepts no spec"},
		{name: "accepts an empty spec", spec: "{}"},

		{name: "accepts the longest language", spec: "language: " + long(64)},
		{name: "rejects a longer language", spec: "language: " + long(65), field: "spec.language", message: "64"},
		{name: "rejects an empty language", spec: `language: ""`, field: "spec.language"},
		{name: "rejects an empty agent", spec: `agent: ""`, field: "spec.agent"},
		{name: "rejects a long agent", spec: "agent: " + long(129), field: "spec.agent"},
		{name: "accepts one iteration", spec: "maxIterations: 1"},
		{name: "rejects no iterations", spec: "maxIterations: 0", field: "spec.maxIterations"},
		{name: "accepts the most iterations", spec: "maxIterations: 1000000"},
		{name: "rejects more iterations", spec: "maxIterations: 1000001", field: "spec.maxIterations", message: "1000000"},
		{name: "rejects iterations that are not an integer", spec: `maxIterations: "5"`, field: "spec.maxIterations"},
		{name: "rejects an empty security analyzer", spec: `securityAnalyzer: ""`, field: "spec.securityAnalyzer"},
		{name: "rejects a long security analyzer", spec: "securityAnalyzer: " + long(129), field: "spec.securityAnalyzer"},
		{name: "rejects a confirmation mode that is not a boolean", spec: `confirmationMode: "yes"`,
			field: "spec.confirmationMode"},
		{name: "rejects an empty model", spec: `llmModel: ""`, field: "spec.llmModel"},
		{name: "rejects a long model", spec: "llmModel: " + long(257), field: "spec.llmModel"},
		{name: "rejects a long base URL", spec: "llmBaseURL: https://example.com/" + long(2048), field: "spec.llmBaseURL"},
		{name: "accepts a resource factor of 1", spec: "remoteRuntimeResourceFactor: 1"},
		{name: "accepts a resource factor of 8", spec: "remoteRuntimeResourceFactor: 8"},
		{name: "rejects a resource factor of 3", spec: "remoteRuntimeResourceFactor: 3",
			field: "spec.remoteRuntimeResourceFactor"},
		{name: "rejects a long base image", spec: "sandboxBaseContainerImage: " + long(513),
			field: "spec.sandboxBaseContainerImage"},
		{name: "rejects a long runtime image", spec: "sandboxRuntimeContainerImage: " + long(513),
			field: "spec.sandboxRuntimeContainerImage"},

		{name: "accepts an owner with a group", spec: "owner: {username: 'oidc:ada', group: 'oidc:team'}"},
		{name: "accepts a ServiceAccount as owner", spec: "owner: {username: 'system:serviceaccount:ci:builder'}"},
		{name: "rejects a node as owner", spec: "owner: {username: 'system:node:one'}", field: "spec.owner.username",
			message: "system:"},
		{name: "rejects a ServiceAccount without a namespace", spec: "owner: {username: 'system:serviceaccount:builder'}",
			field: "spec.owner.username", message: "system:"},
		{name: "rejects a ServiceAccount with another part", spec: "owner: {username: 'system:serviceaccount:a:b:c'}",
			field: "spec.owner.username", message: "system:"},
		{name: "rejects a group of the system", spec: "owner: {username: ada, group: 'system:authenticated'}",
			field: "spec.owner.group", message: "system:"},
		{name: "accepts inherited settings", spec: "inheritFrom: team"},
		{name: "rejects an own image next to inherited settings", spec: "{inheritFrom: team, sandboxBaseContainerImage: a}",
			field: "spec.sandboxBaseContainerImage", message: "inheritFrom"},
		{name: "rejects an own runtime image next to inherited settings",
			spec: "{inheritFrom: team, sandboxRuntimeContainerImage: a}", field: "spec.sandboxRuntimeContainerImage",
			message: "inheritFrom"},

		{name: "accepts a budget without a fraction", spec: `maxBudgetPerTask: "4"`},
		{name: "accepts a budget with a fraction", spec: `maxBudgetPerTask: "4.50"`},
		{name: "rejects a budget that is a float", spec: "maxBudgetPerTask: 4.5", field: "spec.maxBudgetPerTask",
			message: "string"},
		{name: "rejects a negative budget", spec: `maxBudgetPerTask: "-1"`, field: "spec.maxBudgetPerTask"},
		{name: "rejects a budget with an exponent", spec: `maxBudgetPerTask: "1e3"`, field: "spec.maxBudgetPerTask"},
		{name: "accepts no reasoning", spec: "llmReasoningEffort: none"},
		{name: "rejects an unknown reasoning effort", spec: "llmReasoningEffort: much", field: "spec.llmReasoningEffort"},
		{name: "accepts a temperature with a fraction", spec: `llmTemperature: "0.25"`},
		{name: "accepts the highest temperature", spec: `llmTemperature: "2.0"`},
		{name: "rejects a temperature above 2", spec: `llmTemperature: "2.1"`, field: "spec.llmTemperature"},
		{name: "rejects a negative temperature", spec: `llmTemperature: "-1"`, field: "spec.llmTemperature"},
		{name: "rejects an empty email", spec: `email: ""`, field: "spec.email"},
		{name: "rejects a long email", spec: "email: " + long(321), field: "spec.email"},
		{name: "rejects a long git email", spec: "gitUserEmail: " + long(321), field: "spec.gitUserEmail"},
		{name: "accepts a git user name with spaces and accents", spec: "gitUserName: Zoë van Dijk"},
		{name: "rejects a git user name with an address", spec: "gitUserName: Jane <jane@example.com>",
			field: "spec.gitUserName"},
		{name: "rejects a git user name of two lines", spec: `gitUserName: "Jane\nDoe"`, field: "spec.gitUserName"},

		{name: "rejects an invalid Secret name", spec: "llmAPIKeyRef: {name: Not_A_Name, key: k}",
			field: "spec.llmAPIKeyRef.name"},
		{name: "rejects a reference without a key", spec: "llmAPIKeyRef: {name: s}", field: "spec.llmAPIKeyRef.key"},
		{name: "rejects an invalid key", spec: "searchAPIKeyRef: {name: s, key: a/b}", field: "spec.searchAPIKeyRef.key"},
		{name: "rejects a reference without a name", spec: "sandboxAPIKeyRef: {key: k}", field: "spec.sandboxAPIKeyRef.name"},
		{name: "rejects a session key reference without a name", spec: "sessionKeyRef: {key: k}",
			field: "spec.sessionKeyRef.name"},

		{name: "accepts a token of each provider", spec: "secretsStore: {providerTokens: [{provider: github}, {provider: " +
			"gitlab}, {provider: bitbucket}, {provider: enterprise_sso}]}"},
		{name: "rejects an unknown provider", spec: "secretsStore: {providerTokens: [{provider: sourceforge}]}",
			field: "spec.secretsStore.providerTokens[0].provider"},
		{name: "rejects two tokens for the same provider",
			spec: "secretsStore: {providerTokens: [{provider: github}, {provider: " +
				"github}]}", field: "spec.secretsStore.providerTokens[1]", message: duplicate},
		{name: "rejects a long provider host", spec: "secretsStore: {providerTokens: [{provider: github, host: " + long(262) +
			"}]}", field: "spec.secretsStore.providerTokens[0].host"},
		{name: "rejects an empty provider user", spec: `secretsStore: {providerTokens: [{provider: github, userID: ""}]}`,
			field: "spec.secretsStore.providerTokens[0].userID"},
		{name: "rejects a custom secret with an invalid variable name",
			spec: "secretsStore: {customSecrets: [{name: MY-KEY, " +
				"secretRef: {name: s, key: k}}]}", field: "spec.secretsStore.customSecrets[0].name"},
		{name: "rejects a custom secret without a reference", spec: "secretsStore: {customSecrets: [{name: MY_KEY}]}",
			field: "spec.secretsStore.customSecrets[0].secretRef"},
		{name: "rejects two custom secrets with the same name",
			spec: "secretsStore: {customSecrets: [{name: A, secretRef: {name: " +
				"s, key: k}}, {name: A, secretRef: {name: s, key: l}}]}", field: "spec.secretsStore.customSecrets[1]",
			message: duplicate},
		{name: "accepts the most custom secrets", spec: "secretsStore: {customSecrets: " + listOf(64,
			"{name: %d, secretRef: {name: s, key: k}}") + "}"},
		{name: "rejects more custom secrets", spec: "secretsStore: {customSecrets: " + listOf(65,
			"{name: %d, secretRef: {name: s, key: k}}") + "}", field: "spec.secretsStore.customSecrets", message: "64"},
		{name: "rejects a long description of a custom secret", spec: "secretsStore: {customSecrets: [{name: A, " +
			"description: " + long(1025) + ", secretRef: {name: s, key: k}}]}",
			field: "spec.secretsStore.customSecrets[0].description"},
	})
}

func TestUserSettingsNamesAreDNSLabels(t *testing.T) {
	namesAreDNSLabels(t, "UserSettings")
}

func namesAreDNSLabels(t *testing.T, kind string) {
	t.Helper()
	namespace := env.Namespace(t, nil)
	for _, c := range []struct{ title, name, message string }{
		{"accepts the longest name", strings.Repeat("a", 53), ""},
		{"rejects a longer name", strings.Repeat("a", 54), "at most 53 characters"},
		{"rejects a name with a dot", "a.b", "must be a DNS label"},
	} {
		t.Run(c.title, func(t *testing.T) {
			o := object(t, kind, namespace, "")
			o.SetName(c.name)
			err := create(t, o)
			if (err == nil) != (c.message == "") || err != nil && !strings.Contains(err.Error(), c.message) {
				t.Errorf("want a message with %q, got: %v", c.message, err)
			}
			if err != nil && !strings.Contains(err.Error(), "metadata.name") {
				t.Errorf("the message should name metadata.name: %v", err)
			}
		})
	}
}

func TestEmptyUserSettingsGetTheirDefaults(t *testing.T) {
	namespace := env.Namespace(t, nil)
	want := map[string]any{
		"enableDefaultCondenser":              true,
		"enableSoundNotifications":            false,
		"enableProactiveConversationStarters": true,
		"enableSolvabilityAnalysis":           true,
	}
	for title, spec := range map[string]string{
		"no spec": "",
		"nulls":   "{language: null, llmAPIKeyRef: null, enableDefaultCondenser: null, enableSoundNotifications: null}",
	} {
		t.Run(title, func(t *testing.T) {
			settings := mustCreate(t, "UserSettings", namespace, spec)
			if got := settings.Object["spec"]; !reflect.DeepEqual(got, want) {
				t.Errorf("want %v, got %v", want, got)
			}
			expectUnobserved(t, settings)
		})
	}
}

func expectUnobserved(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	observed, found, err := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	if err != nil || !found || observed != -1 {
		t.Errorf("status.observedGeneration should be -1, got %d (found: %v, %v)", observed, found, err)
	}
}

// userSettingsFields lists the fields of the settings: the name in the HTTP API (document), the
// name in the spec of UserSettings (field), and an example value.
var userSettingsFields = []struct{ document, field, value string }{
	{"language", "language", "zh-CN"},
	{"agent", "agent", "coder"},
	{"max_iterations", "maxIterations", "50"},
	{"security_analyzer", "securityAnalyzer", "invariant"},
	{"confirmation_mode", "confirmationMode", "true"},
	{"llm_model", "llmModel", "provider/model-1"},
	{"llm_api_key", "llmAPIKeyRef", "{name: llm, key: api-key}"},
	{"llm_base_url", "llmBaseURL", "https://llm.example.com/v1"},
	{"llm_reasoning_effort", "llmReasoningEffort", "high"},
	{"llm_temperature", "llmTemperature", `"0.25"`},
	{"remote_runtime_resource_factor", "remoteRuntimeResourceFactor", "4"},
	{"secrets_store", "secretsStore", "{providerTokens: [{provider: gitlab, tokenRef: {name: git, key: token}, userID: " +
		"jane, host: git.example.com}], customSecrets: [{name: DB_PASSWORD, secretRef: {name: db, key: password}, " +
		"description: the test database}]}"},
	{"enable_default_condenser", "enableDefaultCondenser", "false"},
	{"enable_sound_notifications", "enableSoundNotifications", "true"},
	{"enable_proactive_conversation_starters", "enableProactiveConversationStarters", "false"},
	{"enable_solvability_analysis", "enableSolvabilityAnalysis", "false"},
	{"user_consents_to_analytics", "userConsentsToAnalytics", "false"},
	{"sandbox_base_container_image", "sandboxBaseContainerImage", "registry.example.com/base:1"},
	{"sandbox_runtime_container_image", "sandboxRuntimeContainerImage", "registry.example.com/runtime:1"},
	{"mcp_config", "mcpConfig", mcpConfigOfEveryField},
	{"search_api_key", "searchAPIKeyRef", "{name: search, key: api-key}"},
	{"sandbox_api_key", "sandboxAPIKeyRef", "{name: sandbox, key: api-key}"},
	{"max_budget_per_task", "maxBudgetPerTask", `"4.50"`},
	{"email", "email", "jane@example.com"},
	{"email_verified", "emailVerified", "true"},
	{"git_user_name", "gitUserName", "Jane Doe"},
	{"git_user_email", "gitUserEmail", "jane@users.example.com"},
	{"expose_secrets_to_model", "exposeSecretsToModel", "true"},
	{"expose_git_token_to_agent", "exposeGitTokenToAgent", "true"},
}

func TestUserSettingsStoreEveryFieldOfTheHTTPAPI(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for _, f := range userSettingsFields {
		t.Run(f.document, func(t *testing.T) {
			t.Parallel()
			keepsField(t, "UserSettings", namespace, f.field, "{"+f.field+": "+f.value+"}")
		})
	}
}

// keepsField checks that a stored field is read back unchanged through the Go type.
func keepsField(t *testing.T, kind, namespace, field, spec string) {
	t.Helper()
	written := object(t, kind, namespace, spec).Object["spec"].(map[string]any)[field]
	stored := mustCreate(t, kind, namespace, spec)
	var typed client.Object = &v1alpha1.UserSettings{}
	if kind == "Conversation" {
		typed = &v1alpha1.Conversation{}
	}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(stored), typed); err != nil {
		t.Fatalf("read it back: %v", err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		t.Fatal(err)
	}
	if read := fields["spec"].(map[string]any)[field]; !reflect.DeepEqual(read, written) {
		t.Errorf("spec.%s was written as %v and read as %v", field, written, read)
	}
}

func TestSecretValuesCannotBeWrittenIntoSettings(t *testing.T) {
	namespace := env.Namespace(t, nil)
	const canary = "canary-5f1c9a"
	for title, spec := range map[string]string{
		"llm_api_key":     "{llmAPIKey: " + canary + "}",
		"search_api_key":  "{searchAPIKey: " + canary + "}",
		"sandbox_api_key": "{sandboxAPIKey: " + canary + "}",
		"session key":     "{sessionKey: " + canary + "}",
		"a reference":     "{llmAPIKeyRef: {name: s, key: k, value: " + canary + "}}",
		"provider_tokens": "{secretsStore: {providerTokens: [{provider: github, token: " + canary + "}]}}",
		"custom_secrets": "{secretsStore: {customSecrets: [{name: A, secret: " + canary +
			", secretRef: {name: s, key: k}}]}}",
		"an SSE server":  "{mcpConfig: {sseServers: [{url: 'https://mcp.example.com', apiKey: " + canary + "}]}}",
		"an HTTP server": "{mcpConfig: {shttpServers: [{url: 'https://mcp.example.com', apiKey: " + canary + "}]}}",
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			if err := create(t, object(t, "UserSettings", namespace, spec)); err == nil || !strings.Contains(err.Error(),
				"unknown field") {
				t.Errorf("a strict client should get an unknown-field error, got: %v", err)
			}
			lenient := object(t, "UserSettings", namespace, spec)
			if err := env.Client.Create(t.Context(), lenient, client.FieldValidation("Ignore")); err != nil {
				t.Fatal(err)
			}
			stored, err := lenient.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(stored), canary) {
				t.Errorf("the value was stored: %s", stored)
			}
		})
	}
}

func TestSettingsCannotInheritFromThemselves(t *testing.T) {
	settings := object(t, "UserSettings", env.Namespace(t, nil), "inheritFrom: me")
	settings.SetName("me")
	expect(t, create(t, settings), "spec.inheritFrom", "must name other UserSettings")
}
