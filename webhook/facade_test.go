package webhook

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	someHash   = "0123456789abcdef"
	someRandom = "abcdefgh27"
)

func TestTheFacadeMayReferToSecretsBeforeWritingThem(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for _, name := range []string{"ada-llm-api-key", "talk-tool-" + someHash} {
		mustCreate(t, secret(namespace, name+"x")) // other Secrets with similar names do not matter
	}
	theirs := mustCreate(t, secret(namespace, "ada-search-api-key"))
	facade := user(t, facadeUser, namespace, use("ada"))
	stranger := user(t, "stranger", namespace, use("ada"))
	for _, c := range []struct {
		name, kind, object, secret string
		actor                      *actor
		accepted                   bool
	}{
		{"a key of the settings", "UserSettings", "ada", "ada-llm-api-key", facade, true},
		{"a key of an endpoint", "UserSettings", "ada", "ada-llm-api-key-" + someHash, facade, true},
		{"a token of the settings", "UserSettings", "ada", "ada-token-enterprise-sso", facade, true},
		{"a custom secret of the settings", "UserSettings", "ada", "ada-secret-" + someHash, facade, true},
		{"a tool's key of the settings", "UserSettings", "ada", "ada-mcp-" + someHash, facade, true},
		{"a key of other settings", "UserSettings", "ada", "bob-llm-api-key", facade, false},
		{"a key of settings with a longer name", "UserSettings", "ada", "ada-b-llm-api-key", facade, false},
		{"a name with only the prefix", "UserSettings", "ada", "ada-database", facade, false},
		{"a name with only the suffix", "UserSettings", "ada", "x-ada-llm-api-key", facade, false},
		{"an existing Secret of another user", "UserSettings", "ada", theirs.Name, facade, false},
		{"a tool's key of a session with the settings' name", "UserSettings", "ada", "ada-tool-" + someHash, facade, false},
		{"a tool's key of the session", "Conversation", "talk", "talk-tool-" + someHash, facade, true},
		{"a tool's key of another session", "Conversation", "talk", "walk-tool-" + someHash, facade, false},
		{"a tool's key with another hash", "Conversation", "talk", "talk-tool-password", facade, false},
		{"a missing key of the session's settings", "Conversation", "talk", "ada-llm-api-key", facade, false},
		{"a key of the settings, by a stranger", "UserSettings", "ada", "ada-llm-api-key", stranger, false},
		{"a tool's key of the session, by a stranger", "Conversation", "talk", "talk-tool-" + someHash, stranger, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := "mcpConfig: {sseServers: [{url: 'https://example.com', apiKeyRef: {name: " + c.secret + ", key: k}}]}"
			if c.kind == "Conversation" {
				spec += "\nuserSettingsName: ada"
			}
			o := object(t, c.kind, namespace, spec)
			o.SetName(c.object)
			err := c.actor.Create(t.Context(), o, client.DryRunAll)
			if c.accepted {
				expectAccepted(t, err)
			} else {
				expectRefused(t, err, `Secret "`+c.secret+`"`, "spec.mcpConfig.sseServers[0].apiKeyRef")
			}
		})
	}
}

func TestTheFacadeMayReferToConfigMapsBeforeWritingThem(t *testing.T) {
	namespace := env.Namespace(t, nil)
	facade := user(t, facadeUser, namespace, use("default"))
	stranger := user(t, "stranger", namespace, use("default"))
	for content, c := range map[string]struct{ field, spec string }{
		"replay": {"spec.replayJSONRef", "replayJSONRef: {name: %s, key: replay.json}"},
		"image": {"spec.images[0].configMapKeyRef", "images: [{configMapKeyRef: {name: %s, key: image}, mediaType: " +
			"image/png}]"},
	} {
		refer := func(p *actor, name string) error {
			o := object(t, "Conversation", namespace, fmt.Sprintf(c.spec, name))
			o.SetName("talk")
			return p.Create(t.Context(), o, client.DryRunAll)
		}
		ours := "talk-" + content + "-" + someHash + "-" + someRandom
		expectAccepted(t, refer(facade, ours))
		expectRefused(t, refer(stranger, ours), "ConfigMap", c.field)
		expectRefused(t, refer(facade, "walk-"+content+"-"+someHash+"-"+someRandom), "ConfigMap", c.field)
		expectRefused(t, refer(facade, "talk-"+content), "ConfigMap", c.field)
	}
}

func TestTheFacadeMayRestartASessionWithUnreadableReferences(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, secret(namespace, "theirs"))
	conversation := mustCreate(t, object(t, "Conversation", namespace, "{suspend: true, userSettingsName: ada, "+
		"replayJSONRef: {name: theirs, key: k}, "+
		"mcpConfig: {sseServers: [{url: 'https://example.com', apiKeyRef: {name: theirs, key: k}}]}}"))
	resume := setField(t, false, "spec", "suspend")
	stranger := user(t, "stranger", namespace, use("ada"))
	expectRefused(t, stranger.change(t, conversation, resume), `"theirs"`, "spec.mcpConfig.sseServers[0].apiKeyRef",
		"spec.replayJSONRef")
	expectRefused(t, user(t, facadeUser, namespace).change(t, conversation, resume), "ada", "spec.userSettingsName")
	expectAccepted(t, user(t, facadeUser, namespace, use("ada")).change(t, conversation, resume))
}

func TestTheFacadeMayLeaveUnreadableReferencesUnchanged(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, secret(namespace, "theirs"))
	mustCreate(t, secret(namespace, "other"))
	settings := object(t, "UserSettings", namespace, "{llmAPIKeyRef: {name: theirs, key: k}, "+
		"secretsStore: {customSecrets: [{name: B, secretRef: {name: other, key: k}}]}}")
	settings.SetName("ada")
	mustCreate(t, settings)
	facade := user(t, facadeUser, namespace)

	t.Run("another field may change", func(t *testing.T) {
		expectAccepted(t, facade.change(t, settings, setField(t, "de", "spec", "language")))
	})
	t.Run("the list position of a reference may change", func(t *testing.T) {
		mustCreate(t, managedSecret(namespace, "ada-secret-"+someHash, v1alpha1.LabelUserSettings, "ada"))
		expectAccepted(t, facade.change(t, settings, setField(t, []any{
			map[string]any{"name": "A", "secretRef": map[string]any{"name": "ada-secret-" + someHash, "key": "k"}},
			map[string]any{"name": "B", "secretRef": map[string]any{"name": "other", "key": "k"}},
		}, "spec", "secretsStore", "customSecrets")))
	})
	t.Run("a reference cannot move to another field or key", func(t *testing.T) {
		moved := setField(t, map[string]any{"name": "theirs", "key": "k"}, "spec", "searchAPIKeyRef")
		expectRefused(t, facade.change(t, settings, moved), `Secret "theirs"`, "spec.searchAPIKeyRef")
		otherKey := setField(t, map[string]any{"name": "theirs", "key": "l"}, "spec", "llmAPIKeyRef")
		expectRefused(t, facade.change(t, settings, otherKey), `Secret "theirs"`, "spec.llmAPIKeyRef")
	})
	t.Run("other users may not keep such references", func(t *testing.T) {
		stranger := user(t, "stranger", namespace)
		err := stranger.change(t, settings, func(o *unstructured.Unstructured) {
			setField(t, "fr", "spec", "language")(o)
		})
		expectRefused(t, err, "", "spec.llmAPIKeyRef", "spec.secretsStore.customSecrets[0].secretRef",
			"spec.secretsStore.customSecrets[1].secretRef")
	})
}

func TestTheFacadeCannotDivertAnAdministratorsKeys(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, secret(namespace, "theirs"))
	mustCreate(t, managedSecret(namespace, "managed", v1alpha1.LabelUserSettings, "ada"))
	facade := user(t, facadeUser, namespace)
	const model = "llmModel: openai/gpt-5, llmAPIKeyRef: {name: KEY, key: k}"
	token := func(provider, host string) string {
		return "secretsStore: {providerTokens: [{provider: " + provider + host + ", tokenRef: {name: KEY, key: k}}]}"
	}
	tool := func(list, url string) string {
		return "mcpConfig: {" + list + ": [{url: 'https://" + url + "', apiKeyRef: {name: KEY, key: k}}]}"
	}
	stdio := func(program, env string) string {
		return "mcpConfig: {stdioServers: [{name: a, command: " + program + ", env: [" + env +
			"{name: A, secretRef: {name: KEY, key: k}}]}]}"
	}
	const tokenField, search = "spec.secretsStore.providerTokens[0].tokenRef", "searchAPIKeyRef: {name: KEY, key: k}"
	for name, c := range map[string]struct{ before, after, field string }{
		"another base URL":     {model, model + ", llmBaseURL: 'https://evil.example.com'", "spec.llmAPIKeyRef"},
		"another provider":     {model, strings.Replace(model, "openai/", "evil/", 1), "spec.llmAPIKeyRef"},
		"another git host":     {token("gitlab", ""), token("gitlab", ", host: evil.example.com"), tokenField},
		"another git provider": {token("gitlab", ""), token("github", ""), tokenField},
		"another tool server": {tool("sseServers", "a.com"), tool("sseServers", "b.com"),
			"spec.mcpConfig.sseServers[0].apiKeyRef"},
		"another remote server": {tool("shttpServers", "a.com"), tool("shttpServers", "b.com"),
			"spec.mcpConfig.shttpServers[0].apiKeyRef"},
		"another program": {stdio("a", ""), stdio("b", ""), "spec.mcpConfig.stdioServers[0].env[0].secretRef"},
		"another variable of a program": {stdio("a", ""), stdio("a", "{name: HTTPS_PROXY, value: b}, "),
			"spec.mcpConfig.stdioServers[0].env[1].secretRef"},
		"another image":                 {search, search + ", sandboxBaseContainerImage: evil", "spec.searchAPIKeyRef"},
		"another runtime image":         {search, search + ", sandboxRuntimeContainerImage: evil", "spec.searchAPIKeyRef"},
		"another model of the provider": {model, strings.Replace(model, "gpt-5", "o3", 1), ""},
		"the session key and an image": {"sessionKeyRef: {name: KEY, key: k}",
			"sandboxBaseContainerImage: fine, sessionKeyRef: {name: KEY, key: k}", ""},
		"a removed key": {model, "llmModel: evil/model", ""},
	} {
		t.Run(name, func(t *testing.T) {
			try := func(key string) error {
				settings := object(t, "UserSettings", namespace, "{"+strings.ReplaceAll(c.before, "KEY", key)+"}")
				settings.SetName("ada")
				mustCreate(t, settings)
				defer func() {
					if err := env.Client.Delete(t.Context(), settings); err != nil {
						t.Error(err)
					}
				}()
				return facade.change(t, settings, func(o *unstructured.Unstructured) {
					setSpec(t, o, "{"+strings.ReplaceAll(c.after, "KEY", key)+"}")
				})
			}
			expectAccepted(t, try("managed"))
			if c.field == "" {
				expectAccepted(t, try("theirs"))
			} else {
				expectRefused(t, try("theirs"), "administrator", c.field)
			}
		})
	}
}
