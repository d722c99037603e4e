package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestATitleCanBeChanged(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/conversations", `{"conversation_id": "talk", "initial_user_msg": "hello"}`).wants(t, 200)
	title := func() any { return ada.get(t, "/api/conversations/talk").wants(t, 200).field(t, "title") }
	if got := title(); got != "hello" {
		t.Errorf("the title is %q", got)
	}
	ada.do(t, "PATCH", "/api/conversations/talk", `{"title": "Größe"}`).wants(t, 200).says(t, `true`)
	if got := title(); got != "Größe" {
		t.Errorf("the title is %q", got)
	}
	for body, want := range map[string]string{
		`{"title": ""}`: "body.title: string_too_short",
		`{"title": "` + strings.Repeat("ö", 201) + `"}`: "body.title: string_too_long",
		`{"title": 5}`: "body.title: string_type",
		`{}`:           "body.title: missing",
		`[]`:           "body: model_attributes_type",
	} {
		ada.do(t, "PATCH", "/api/conversations/talk", body).wants(t, 422).complains(t, want)
	}
	ada.do(t, "PATCH", "/api/conversations/talk", `{"title": "`+strings.Repeat("ö", 200)+`"}`).wants(t, 200)
}

func TestSecretsAreCreatedListedAndDeleted(t *testing.T) {
	t.Parallel()
	ada, value := newcomer(t), canary()
	ada.get(t, "/api/secrets").wants(t, 200).says(t, `{"custom_secrets": []}`)
	body := `{"name": "DEPLOY_TOKEN", "value": "` + value + `", "description": "for staging"}`
	ada.post(t, "/api/secrets", body).wants(t, 201).says(t, `{"message": "Secret created successfully"}`)
	ada.post(t, "/api/secrets", body).wants(t, 400).says(t, `{"message": "Secret DEPLOY_TOKEN already exists"}`)
	ada.get(t, "/api/secrets").wants(t, 200).says(t, `{"custom_secrets": [{"name": "DEPLOY_TOKEN", "description": "for `+
		`staging"}]}`)
	stored := func() string {
		return ada.secret(t, ada.settings(t).Spec.SecretsStore.CustomSecrets[0].SecretRef.Name)
	}
	if stored() != value {
		t.Error("the stored value is wrong")
	}
	ada.do(t, "PUT", "/api/secrets/DEPLOY_TOKEN", `{"name": "DEPLOY_TOKEN", "description": "for production"}`).wants(t,
		200)
	ada.get(t, "/api/secrets").wants(t, 200).says(t, `{"custom_secrets": [{"name": "DEPLOY_TOKEN", "description": "for `+
		`production"}]}`)
	if stored() != value {
		t.Error("the change of the description removed the value")
	}
	ada.do(t, "PUT", "/api/secrets/DEPLOY_TOKEN", `{"name": "OTHER"}`).wants(t, 400)
	ada.do(t, "PUT", "/api/secrets/OTHER", `{"name": "OTHER"}`).wants(t, 404).says(t, `{"message": "Secret not found"}`)
	ada.do(t, "DELETE", "/api/secrets/OTHER", "").wants(t, 404)
	ada.do(t, "DELETE", "/api/secrets/DEPLOY_TOKEN", "").wants(t, 200)
	ada.get(t, "/api/secrets").wants(t, 200).says(t, `{"custom_secrets": []}`)

	ada.post(t, "/api/secrets", `{"name": "X"}`).wants(t, 422).complains(t, "body.value: missing")
	ada.post(t, "/api/secrets", `{"name": "not a name", "value": "`+value+`"}`).wants(t, 422).lacks(t, value)
	if strings.Contains(suite.facade.Log.String(), value) {
		t.Error("the value is in the log")
	}
}

func TestTokensOfGitProvidersAreStoredAndRemoved(t *testing.T) {
	t.Parallel()
	ada, token := newcomer(t), canary()
	tokens := func() any { return ada.get(t, "/api/settings").wants(t, 200).field(t, "provider_tokens_set") }
	ada.post(t, "/api/add-git-providers", `{"provider_tokens": {"github": {"token": "`+token+
		`", "host": "git.example.com"}}}`).wants(t, 200).says(t, `{"message": "Git providers stored"}`)
	if got := jsonOf(t, tokens()); got != `{"github":"git.example.com"}` {
		t.Errorf("the tokens are %s", got)
	}
	ada.post(t, "/api/add-git-providers", `{"provider_tokens": {"elsewhere": {"token": "x"}}}`).wants(t, 422)
	ada.post(t, "/api/unset-provider-tokens", "").wants(t, 200).says(t, `{"message": "Unset Git provider tokens"}`)
	if got := jsonOf(t, tokens()); got != `{}` {
		t.Errorf("the tokens are %s", got)
	}
}

func TestGitHostResponsesAreEmptyWithoutAToken(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	for _, path := range []string{"repositories", "search/repositories", "repository/branches", "installations",
		"suggested-tasks"} {
		ada.get(t, "/api/user/"+path).wants(t, 200).says(t, `[]`)
	}
	ada.post(t, "/api/settings", `{"git_user_name": "Ada", "email": "ada@example.com", "secrets_store": `+
		`{"provider_tokens": {"github": {"token": "t"}}}}`).wants(t, 200)
	await(t, func() error { // the facade reads its cache
		if reply := ada.get(t, "/api/user/repositories"); reply.code != 503 {
			return fmt.Errorf("answered %d", reply.code)
		}
		return nil
	})
	info := ada.get(t, "/api/user/info").wants(t, 200)
	if info.field(t, "login") != "ada" {
		t.Errorf("the user is %s", info.body)
	}
}

// This test is not parallel, because sessions of other tests also read the catalogue.
func TestOptionsComeFromTheClustersCatalogues(t *testing.T) {
	lists := []client.Object{
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "parley-system", Name: v1alpha1.AgentCatalogueName},
			Data: map[string]string{"Writer": "{responses: true}", "CodeActAgent": "{}"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "parley-system", Name: v1alpha1.ModelsName},
			Data: map[string]string{"mine": "a/model: {input: 1, output: 2}\nclaude-opus-4-5: {input: 1, output: 2}\n" +
				"anthropic/claude-opus-4-5: {input: 1, output: 2}\nours: {input: 1, output: 2}\n" +
				"gpt-5-codex: {input: 1, output: 2, api: responses}"}},
	}
	create(t, lists...)
	t.Cleanup(func() {
		for _, list := range lists {
			if err := suite.Client.Delete(context.Background(), list); err != nil {
				t.Error(err)
			}
		}
	})
	ada := newcomer(t)
	ada.get(t, "/api/options/agents").wants(t, 200).says(t, `["CodeActAgent", "Writer"]`)
	ada.get(t, "/api/options/models").wants(t, 200).says(t, `["a/model", "anthropic/claude-opus-4-5"]`)
	// A model that needs OpenAI's responses API is offered only for an agent that uses this API.
	// The agent is named in the request, or else in the settings.
	const all = `["a/model", "anthropic/claude-opus-4-5", "openai/gpt-5-codex"]`
	ada.get(t, "/api/options/models?agent=Writer").wants(t, 200).says(t, all)
	ada.get(t, "/api/options/models?agent=").wants(t, 200).says(t, `["a/model", "anthropic/claude-opus-4-5"]`)
	ada.post(t, "/api/settings", `{"agent": "Writer"}`).wants(t, 200)
	await(t, func() error { // the facade reads its cache
		if reply := ada.get(t, "/api/options/models"); !strings.Contains(reply.body, "openai/gpt-5-codex") {
			return fmt.Errorf("the models are %s", reply.body)
		}
		return nil
	})
	ada.get(t, "/api/options/models?agent=CodeActAgent").wants(t, 200).says(t,
		`["a/model", "anthropic/claude-opus-4-5"]`)
	ada.get(t, "/api/options/security-analyzers").wants(t, 200).says(t, `["llm"]`)
	if got := stranger().get(t, "/api/options/config").wants(t, 200).field(t, "APP_MODE"); got != "oss" {
		t.Errorf("the mode is %s", got)
	}
	stranger().get(t, "/api/options/models").wants(t, 401)
}
