package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// newHeir returns a person whose settings inherit from the settings of a team.
func newHeir(t *testing.T) *person {
	t.Helper()
	ada := newPerson(t, "ada")
	team := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "team"},
		Spec: v1alpha1.UserSettingsSpec{
			LLMModel: ptr.To("openai/gpt-5"), LLMAPIKeyRef: &v1alpha1.SecretKeyRef{Name: "team", Key: "key"},
			LLMReasoningEffort: ptr.To("high"), MaxBudgetPerTask: ptr.To("2.50"), MaxIterations: ptr.To[int32](7),
			SecretsStore: &v1alpha1.SecretsStore{ProviderTokens: []v1alpha1.ProviderToken{{Provider: v1alpha1.GitLab,
				Host: ptr.To("git.example.com"), TokenRef: &v1alpha1.SecretKeyRef{Name: "team", Key: "key"}}}},
			MCPConfig: &v1alpha1.MCPConfig{
				SHTTPServers: []v1alpha1.MCPRemoteServer{{URL: "https://tool.example.com",
					APIKeyRef: &v1alpha1.SecretKeyRef{Name: "team", Key: "key"}}},
				StdioServers: []v1alpha1.MCPStdioServer{{Name: "files", Command: "files", Args: []string{"-v"},
					Env: []v1alpha1.MCPEnvVar{{Name: "A", Value: ptr.To("b")}}}},
			},
		}}
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "team"},
		StringData: map[string]string{"key": canary()}}, team)
	ada.inherit(t)
	return ada
}

func (p *person) inherit(t *testing.T) {
	t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"inheritFrom": "team"}}`))
	if err := suite.Client.Patch(t.Context(), p.settings(t), patch); err != nil {
		t.Fatal(err)
	}
}

func inherited(t *testing.T, r reply) []string {
	t.Helper()
	var shown struct{ Inherited []string }
	if err := json.Unmarshal([]byte(r.body), &shown); err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(slices.Values(shown.Inherited))
}

func TestInheritedSettingsAreShownAndStayInherited(t *testing.T) {
	t.Parallel()
	ada := newHeir(t)
	shown := ada.get(t, "/api/settings").wants(t, 200)
	for name, want := range map[string]any{"llm_model": "openai/gpt-5", "llm_api_key_set": true, "llm_api_key": nil,
		"max_budget_per_task": 2.5, "max_iterations": 7.0} {
		if got := shown.field(t, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	all := []string{"llm_api_key", "llm_model", "llm_reasoning_effort", "max_budget_per_task", "max_iterations",
		"mcp_config", "secrets_store"}
	if got := inherited(t, shown); !slices.Equal(got, all) {
		t.Errorf("inherited are %v", got)
	}

	// A client posts the whole response back: first unchanged, then with one changed value.
	before := ada.settings(t).Spec
	ada.post(t, "/api/settings", shown.body).wants(t, 200)
	if changed := before.Differences(&ada.settings(t).Spec); len(changed) > 0 {
		t.Errorf("posting the response back stored %v", changed)
	}
	ada.post(t, "/api/settings", strings.Replace(shown.body, `"max_iterations":7`, `"max_iterations":9`, 1)).wants(t, 200)
	if changed := before.Differences(&ada.settings(t).Spec); !slices.Equal(changed, []string{"maxIterations"}) {
		t.Errorf("a changed value stored %v", changed)
	}

	// A client posts its own tool server and the inherited tool server. Only its own server is stored,
	// but responses show both servers.
	ada.post(t, "/api/settings", `{"mcp_config": {"shttp_servers": [{"url": "https://own.example.com"},
		{"url": "https://tool.example.com", "api_key": null, "api_key_set": true}]}}`).wants(t, 200)
	if tools := ada.settings(t).Spec.MCPConfig; tools == nil || len(tools.SHTTPServers) != 1 ||
		tools.SHTTPServers[0].URL != "https://own.example.com" {
		t.Errorf("the own tool servers are %+v", tools)
	}
	if got := ada.get(t, "/api/settings").body; !strings.Contains(got, "own.example.com") ||
		!strings.Contains(got, "tool.example.com") {
		t.Errorf("the settings are %s", got)
	}

	// The inherited model and key are enough for a conversation.
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	if got := ada.get(t, "/api/session").field(t, "settings_stored"); got != true {
		t.Errorf("settings_stored is %v", got)
	}
}

func TestSettingsRequestsCannotSendInheritedKeysToAnotherHost(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"own base URL":                  `{"llm_base_url": "https://evil.example.com"}`,
		"own model of another provider": `{"llm_model": "anthropic/claude"}`,
		"own model of the same provider, with the rest of the response": `{"llm_model": "openai/o3", "llm_api_key": null,
			"llm_base_url": null, "llm_reasoning_effort": "high"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ada := newHeir(t)
			ada.post(t, "/api/settings", body).wants(t, 200)
			shown := ada.get(t, "/api/settings").wants(t, 200)
			if shown.field(t, "llm_api_key_set") != false || slices.Contains(inherited(t, shown), "llm_model") {
				t.Errorf("the settings are %s", shown.body)
			}
			if ref := ada.settings(t).Spec.LLMAPIKeyRef; ref != nil {
				t.Errorf("the settings refer to %v", ref)
			}
		})
	}
	t.Run("own host of the git provider", func(t *testing.T) {
		t.Parallel()
		ada := newHeir(t)
		ada.post(t, "/api/settings", `{"secrets_store": {"provider_tokens": {"gitlab": {"token": null,
			"host": "evil.example.com"}}}}`).wants(t, 200)
		if got := ada.get(t, "/api/settings").field(t, "provider_tokens_set"); len(got.(map[string]any)) > 0 {
			t.Errorf("tokens of %v are set", got)
		}
	})
	t.Run("own image", func(t *testing.T) {
		t.Parallel()
		ada := newHeir(t)
		for _, image := range []string{"sandbox_base_container_image", "sandbox_runtime_container_image"} {
			ada.post(t, "/api/settings", `{"`+image+`": "evil.example.com/image:1"}`).wants(t, 422).
				complains(t, "body."+image+": value_error")
		}
	})
	t.Run("own model of a conversation", func(t *testing.T) {
		t.Parallel()
		newHeir(t).post(t, "/api/conversations", `{"llm_model": "evil/model"}`).wants(t, 422).
			complains(t, "body.llm_model: value_error")
	})
}

func TestANewOwnerDoesNotSeeTheFormerOwnersConversations(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	own := func(username string) {
		t.Helper()
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"owner": {"username": "`+username+`"}}}`))
		if err := suite.Client.Patch(t.Context(), ada.settings(t), patch); err != nil {
			t.Fatal(err)
		}
	}
	own("oidc:ada")
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	await(t, func() error {
		if ada.conversation(t, "talk").Status.Owner != "oidc:ada" {
			return errors.New("the owner is not recorded yet")
		}
		return nil
	})
	sees := func(want bool) {
		t.Helper()
		await(t, func() error {
			for _, path := range []string{"/api/conversations", "/api/conversations/talk"} {
				if reply := ada.get(t, path); strings.Contains(reply.body, `"talk"`) != want {
					return errors.New("GET " + path + " answers " + reply.body)
				}
			}
			return nil
		})
	}
	sees(true)
	own("oidc:bob")
	sees(false)
	ada.post(t, "/api/conversations/talk/start", "").wants(t, 404)
	own("oidc:ada")
	sees(true)
}
