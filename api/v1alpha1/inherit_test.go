package v1alpha1_test

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func specOf(t *testing.T, text string) *v1alpha1.UserSettingsSpec {
	t.Helper()
	spec := &v1alpha1.UserSettingsSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return spec
}

func TestAKeyIsInheritedOnlyTogetherWithItsAddress(t *testing.T) {
	const model = "llmModel: openai/gpt-5, llmBaseURL: 'https://team.example', llmAPIKeyRef: {name: team, key: k}"
	const gitlab = "{provider: gitlab, host: git.team.example, userID: bot, tokenRef: {name: team, key: k}}"
	const tool = "{url: 'https://tool.example', apiKeyRef: {name: team, key: k}}"
	for _, c := range []struct{ name, own, from, want string }{
		{"plain values one by one", "{language: de, maxIterations: 5}", "{language: en, agent: coder, maxBudgetPerTask: '2'}",
			"{language: de, maxIterations: 5, agent: coder, maxBudgetPerTask: '2'}"},
		{"false is a value", "{confirmationMode: false}", "{confirmationMode: true}", "{confirmationMode: false}"},
		{"personal values are not", "{}", "{email: a@b.c, gitUserName: a, gitUserEmail: a@b.c, sessionClassName: big, " +
			"sessionKeyRef: {name: a, key: k}, owner: {username: ada}, userConsentsToAnalytics: true, " +
			"exposeSecretsToModel: true, secretsStore: {customSecrets: [{name: A, secretRef: {name: a, key: k}}]}}", "{}"},

		{"a model with its key", "{}", "{" + model + ", llmTemperature: '1'}", "{" + model + ", llmTemperature: '1'}"},
		{"no key for an own model", "{llmModel: ollama/x}", "{" + model + ", llmTemperature: '1'}", "{llmModel: ollama/x}"},
		{"no key for an own base URL", "{llmBaseURL: 'https://evil.example'}", "{" + model + "}",
			"{llmBaseURL: 'https://evil.example'}"},
		{"no model for an own key", "{llmAPIKeyRef: {name: a, key: k}}", "{" + model + "}",
			"{llmAPIKeyRef: {name: a, key: k}}"},

		{"a token with its host", "{secretsStore: {customSecrets: [{name: A, secretRef: {name: a, key: k}}]}}",
			"{secretsStore: {providerTokens: [" + gitlab + "]}}", "{secretsStore: {providerTokens: [" + gitlab +
				"], customSecrets: [{name: A, secretRef: {name: a, key: k}}]}}"},
		{"no token for an own host", "{secretsStore: {providerTokens: [{provider: gitlab, host: evil.example}]}}",
			"{secretsStore: {providerTokens: [" + gitlab + "]}}",
			"{secretsStore: {providerTokens: [{provider: gitlab, host: evil.example}]}}"},

		{"a tool server with its key", "{}", "{mcpConfig: {sseServers: [" + tool + "]}}",
			"{mcpConfig: {sseServers: [" + tool + "]}}"},
		{"no key for an own tool server", "{mcpConfig: {shttpServers: [{url: 'https://tool.example'}]}}",
			"{mcpConfig: {sseServers: [" + tool + "]}}", "{mcpConfig: {shttpServers: [{url: 'https://tool.example'}]}}"},
		{"additional tool servers", "{mcpConfig: {shttpServers: [{url: 'https://own.example'}]}}",
			"{mcpConfig: {shttpServers: [" + tool + "], stdioServers: [{name: a, command: a}]}}",
			"{mcpConfig: {shttpServers: [{url: 'https://own.example'}, " + tool + "], stdioServers: [{name: a, command: a}]}}"},
		{"no stdio server with a secret", "{}",
			"{mcpConfig: {stdioServers: [{name: a, command: a, env: [{name: A, secretRef: {name: team, key: k}}]}]}}", "{}"},

		{"images are always inherited", "{sandboxBaseContainerImage: evil, sandboxRuntimeContainerImage: evil}",
			"{sandboxBaseContainerImage: good}", "{sandboxBaseContainerImage: good}"},
		{"a search key", "{}", "{searchAPIKeyRef: {name: team, key: k}}", "{searchAPIKeyRef: {name: team, key: k}}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			own, from := specOf(t, c.own), specOf(t, c.from)
			got, _ := json.Marshal(own.Inherit(from))
			want, _ := json.Marshal(specOf(t, c.want))
			if string(got) != string(want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			unchanged, _ := json.Marshal(from)
			if before, _ := json.Marshal(specOf(t, c.from)); string(unchanged) != string(before) {
				t.Errorf("the inherited settings became %s", unchanged)
			}
		})
	}
}

func TestUsersCanHideInheritedTokensButCannotExposeThem(t *testing.T) {
	const inherited = "secretsStore: {providerTokens: [{provider: gitlab, tokenRef: {name: team, key: k}}]}"
	const own = "secretsStore: {providerTokens: [{provider: github, tokenRef: {name: own, key: k}}]}"
	expose := map[string]string{"true": "exposeGitTokenToAgent: true, ", "false": "exposeGitTokenToAgent: false, ", "": ""}
	for _, c := range []struct {
		own, from string
		ownToken  bool
		want      string
	}{
		{"true", "", false, ""}, {"true", "false", false, "false"}, {"true", "true", false, "true"},
		{"false", "true", false, "false"}, {"", "true", false, "true"}, {"", "false", false, "false"},
		{"true", "", true, ""}, {"true", "true", true, "true"}, {"", "true", true, ""}, {"", "false", true, "false"},
	} {
		spec := "{" + expose[c.own] + "}"
		if c.ownToken {
			spec = "{" + expose[c.own] + own + "}"
		}
		effective := specOf(t, spec).Inherit(specOf(t, "{"+expose[c.from]+inherited+"}"))
		got := ""
		if effective.ExposeGitTokenToAgent != nil {
			got = map[bool]string{true: "true", false: "false"}[*effective.ExposeGitTokenToAgent]
		}
		if got != c.want {
			t.Errorf("own %q, inherited %q, own token %v: %q, want %q", c.own, c.from, c.ownToken, got, c.want)
		}
	}
	if e := specOf(t, "{"+expose["true"]+own+"}").Inherit(specOf(t, "{}")); !*e.ExposeGitTokenToAgent {
		t.Error("the user's own token is not exposed")
	}
}

func TestAConversationBelongsToSettingsWithTheRecordedOwnerOrUID(t *testing.T) {
	settings := func(uid, owner string) *v1alpha1.UserSettings {
		s := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}
		if uid != "" {
			s.UID = "2"
		}
		if owner != "" {
			s.Spec.Owner = &v1alpha1.SettingsOwner{Username: owner}
		}
		return s
	}
	for _, c := range []struct {
		name                  string
		uid, owner, requester string
		settings              *v1alpha1.UserSettings
		belongs               bool
	}{
		{"nothing recorded", "", "", "", settings("", "ada"), true},
		{"nothing recorded, requested by the owner", "", "", "ada", settings("", "ada"), true},
		{"nothing recorded, requested by another person", "", "", "ada", settings("", "bob"), false},
		{"nothing recorded, requested by a person, no owner", "", "", "ada", settings("", ""), false},
		{"same settings without an owner", "1", "", "", settings("", ""), true},
		{"recreated settings without an owner", "1", "", "", settings("2", ""), false},
		{"settings that got an owner", "1", "", "", settings("", "ada"), true},
		{"recreated settings that have an owner", "1", "", "", settings("2", "ada"), false},
		{"same owner", "1", "ada", "", settings("", "ada"), true},
		{"recreated settings of the same owner", "1", "ada", "", settings("2", "ada"), true},
		{"another owner", "1", "ada", "", settings("", "bob"), false},
		{"a removed owner", "1", "ada", "", settings("", ""), false},
	} {
		conversation := &v1alpha1.Conversation{Spec: v1alpha1.ConversationSpec{UserSettingsName: "a"}}
		conversation.Status.SettingsUID, conversation.Status.Owner = metav1.ObjectMeta{UID: "1"}.UID, c.owner
		if c.uid == "" {
			conversation.Status.SettingsUID = ""
		}
		if c.requester != "" {
			conversation.Annotations = map[string]string{v1alpha1.AnnotationRequestedBy: c.requester}
		}
		if conversation.BelongsTo(c.settings) != c.belongs {
			t.Errorf("%s: belongs is %v", c.name, !c.belongs)
		}
		other := c.settings.DeepCopy()
		other.Name = "b"
		if conversation.BelongsTo(other) {
			t.Errorf("%s: it belongs to settings with another name", c.name)
		}
	}
}
