package webhook

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// referenceCase is a spec with a reference to the Secret "theirs" in a field.
type referenceCase struct{ kind, spec, field string }

var referenceCases = []referenceCase{
	{"UserSettings", "sessionKeyRef: {name: theirs, key: k}", "spec.sessionKeyRef"},
	{"UserSettings", "llmAPIKeyRef: {name: theirs, key: k}", "spec.llmAPIKeyRef"},
	{"UserSettings", "searchAPIKeyRef: {name: theirs, key: k}", "spec.searchAPIKeyRef"},
	{"UserSettings", "sandboxAPIKeyRef: {name: theirs, key: k}", "spec.sandboxAPIKeyRef"},
	{"UserSettings", "secretsStore: {providerTokens: [{provider: github}, {provider: gitlab, tokenRef: {name: theirs, " +
		"key: k}}]}", "spec.secretsStore.providerTokens[1].tokenRef"},
	{"UserSettings", "secretsStore: {customSecrets: [{name: A, secretRef: {name: theirs, key: k}}]}",
		"spec.secretsStore.customSecrets[0].secretRef"},
	{"UserSettings", "mcpConfig: {sseServers: [{url: 'https://example.com', apiKeyRef: {name: theirs, key: k}}]}",
		"spec.mcpConfig.sseServers[0].apiKeyRef"},
	{"UserSettings", "mcpConfig: {shttpServers: [{url: 'https://example.com', apiKeyRef: {name: theirs, key: k}}]}",
		"spec.mcpConfig.shttpServers[0].apiKeyRef"},
	{"UserSettings", "mcpConfig: {stdioServers: [{name: a, command: a, env: [{name: A, secretRef: {name: theirs, key: " +
		"k}}]}]}", "spec.mcpConfig.stdioServers[0].env[0].secretRef"},
	{"Conversation", "mcpConfig: {sseServers: [{url: 'https://example.com', apiKeyRef: {name: theirs, key: k}}]}",
		"spec.mcpConfig.sseServers[0].apiKeyRef"},
	{"Conversation", "mcpConfig: {shttpServers: [{url: 'https://example.com', apiKeyRef: {name: theirs, key: k}}]}",
		"spec.mcpConfig.shttpServers[0].apiKeyRef"},
	{"Conversation", "mcpConfig: {stdioServers: [{name: a, command: a, env: [{name: A, secretRef: {name: theirs, key: " +
		"k}}]}]}", "spec.mcpConfig.stdioServers[0].env[0].secretRef"},
}

func TestReferringToASecretNeedsAccessToIt(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, secret(namespace, "theirs"))
	unprivileged := user(t, "unprivileged", namespace, get("secrets", "other"), use("default"))
	reader := user(t, "reader", namespace, get("secrets", "theirs"), use("default"))
	lister := user(t, "lister", namespace, get("secrets"), use("default"))
	for _, c := range referenceCases {
		t.Run(c.kind+" "+c.field, func(t *testing.T) {
			t.Parallel()
			expectRefused(t, unprivileged.create(t, object(t, c.kind, namespace, c.spec)), `Secret "theirs"`, c.field)
			expectAccepted(t, reader.create(t, object(t, c.kind, namespace, c.spec)))
			expectAccepted(t, lister.create(t, object(t, c.kind, namespace, c.spec)))
		})
	}
}

func TestARefusalNamesOnlyTheDeniedReferences(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, secret(namespace, "mine"))
	mustCreate(t, secret(namespace, "theirs"))
	jane := user(t, "jane", namespace, get("secrets", "mine"))
	err := jane.create(t, object(t, "UserSettings", namespace, "{llmBaseURL: nowhere, llmAPIKeyRef: {name: mine, key: "+
		"k}, "+
		"searchAPIKeyRef: {name: theirs, key: k}, sandboxAPIKeyRef: {name: theirs, key: l}, sessionKeyRef: {name: absent, "+
		"key: k}}"))
	expectRefused(t, err, "", "spec.llmBaseURL", "spec.searchAPIKeyRef", "spec.sandboxAPIKeyRef", "spec.sessionKeyRef")
	// There are no warnings, because users without access must not learn whether a Secret exists.
	expectWarnings(t, jane)
}

func TestAReplayNeedsAccessToTheConfigMapOfTheRecording(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, configMap(namespace, "events", "no JSON"))
	const spec = "replayJSONRef: {name: events, key: events.json}"
	unprivileged := user(t, "unprivileged", namespace, use("default"))
	reader := user(t, "reader", namespace, use("default"), get("configmaps", "events"))
	expectRefused(t, unprivileged.create(t, object(t, "Conversation", namespace, spec)), `ConfigMap "events"`,
		"spec.replayJSONRef")
	expectRefused(t, reader.create(t, object(t, "Conversation", namespace, spec)), "JSON", "spec.replayJSONRef.key")
}

func TestReferringToImagesInAConfigMapNeedsAccessToIt(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, configMap(namespace, "mine", "no JSON"))
	mustCreate(t, configMap(namespace, "theirs", "no JSON"))
	const spec = "images: [{configMapKeyRef: {name: mine, key: events.json}, mediaType: image/png}, {url: " +
		"'https://example.com/a.png'}, " +
		"{configMapKeyRef: {name: theirs, key: events.json}, mediaType: image/png}, {configMapKeyRef: {name: theirs, key: " +
		"k}, mediaType: image/png}]"
	some := user(t, "some-images", namespace, use("default"), get("configmaps", "mine"))
	all := user(t, "all-images", namespace, use("default"), get("configmaps", "mine", "theirs"))
	expectRefused(t, some.create(t, object(t, "Conversation", namespace, spec)), `ConfigMap "theirs"`,
		"spec.images[2].configMapKeyRef", "spec.images[3].configMapKeyRef")
	// The warnings do not mention the images, because users without access must not learn the content
	// of a ConfigMap.
	expectWarnings(t, some, `spec.userSettingsName: UserSettings "default" do not exist yet`)
	expectAccepted(t, all.create(t, object(t, "Conversation", namespace, spec)))
}

func TestOnlyARecordingCanBeReplayed(t *testing.T) {
	namespace := env.Namespace(t, nil)
	binary := configMap(namespace, "binary", "")
	binary.Data, binary.BinaryData = nil, map[string][]byte{"events.json": []byte("[]")}
	mustCreate(t, binary)
	replay := func(name string) error {
		return admin(t).create(t, object(t, "Conversation", namespace, "replayJSONRef: {name: "+name+", key: events.json}"))
	}
	expectAccepted(t, replay("binary"))
	for name, content := range map[string]string{"list": `[{"id": 1}]`, "trajectory": `{"trajectory": [{"id": 1}]}`,
		"empty": "[]"} {
		mustCreate(t, configMap(namespace, name, content))
		expectAccepted(t, replay(name))
	}
	for name, content := range map[string]string{
		"broken": `[{"id": `, "object": "{}", "none": "null", "text": `"run"`,
		"no-list": `{"trajectory": 5}`, "nothing": "[null]", "texts": `["run"]`,
	} {
		mustCreate(t, configMap(namespace, name, content))
		expectRefused(t, replay(name), "JSON", "spec.replayJSONRef.key")
	}
}

func TestStartingASessionNeedsTheRightToUseItsSettingsOrToGetAllSecrets(t *testing.T) {
	namespace := env.Namespace(t, nil)
	settings := object(t, "UserSettings", namespace, "{llmAPIKeyRef: {name: llm, key: k}, searchAPIKeyRef: {name: "+
		"search, key: k}}")
	settings.SetName("theirs")
	mustCreate(t, settings)
	for _, c := range []struct {
		name, settings string
		actor          *actor
		accepted       bool
	}{
		{"no rights", "theirs", user(t, "nothing", namespace), false},
		{"one of the Secrets", "theirs", user(t, "some-secrets", namespace, get("secrets", "llm")), false},
		{"all Secrets that the settings refer to now", "theirs", user(t, "these-secrets", namespace, get("secrets", "llm",
			"search")), false},
		{"all Secrets", "theirs", user(t, "all-secrets", namespace, get("secrets")), true},
		{"use of the settings", "theirs", user(t, "user", namespace, use("theirs")), true},
		{"use of other settings", "theirs", user(t, "user-of-others", namespace, use("mine")), false},
		{"no rights, and the settings do not exist yet", "later", user(t, "nothing-yet", namespace, get("secrets", "llm",
			"search")), false},
		{"all Secrets, and the settings do not exist yet", "later", user(t, "all-secrets-yet", namespace, get("secrets")),
			true},
		{"use of the settings, which do not exist yet", "later", user(t, "user-yet", namespace, use("later")), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := c.actor.create(t, object(t, "Conversation", namespace, "userSettingsName: "+c.settings))
			if c.accepted {
				expectAccepted(t, err)
				return
			}
			expectRefused(t, err, "you must be allowed to use the UserSettings", "spec.userSettingsName")
			expectWarnings(t, c.actor)
		})
	}
}

func TestParleyMayReferToManagedSecrets(t *testing.T) {
	for _, component := range []string{facadeUser, managerUser} {
		t.Run(component, func(t *testing.T) {
			namespace := env.Namespace(t, nil)
			mustCreate(t, managedSecret(namespace, "of-jane", v1alpha1.LabelUserSettings, "jane"))
			mustCreate(t, managedSecret(namespace, "of-session", v1alpha1.LabelConversation, "session"))
			untyped := managedSecret(namespace, "untyped", v1alpha1.LabelUserSettings, "jane")
			untyped.Type = ""
			mustCreate(t, untyped)
			parley := user(t, component, namespace, use("jane"))
			other := user(t, "other", namespace)
			for _, c := range []struct {
				name, kind, object, secret string
				actor                      *actor
				accepted                   bool
			}{
				{"settings with their managed Secret", "UserSettings", "jane", "of-jane", parley, true},
				{"settings with a managed Secret of other settings", "UserSettings", "john", "of-jane", parley, false},
				{"settings with a Secret of a session with their name", "UserSettings", "session", "of-session", parley, false},
				{"settings with a Secret that is not managed", "UserSettings", "jane", "untyped", parley, false},
				{"settings with a missing Secret", "UserSettings", "jane", "absent", parley, false},
				{"settings with a managed Secret, by another user", "UserSettings", "jane", "of-jane", other, false},
				{"a session with its managed Secret", "Conversation", "session", "of-session", parley, true},
				{"a session with a managed Secret of its settings", "Conversation", "any", "of-jane", parley, true},
				{"a session with a managed Secret of another session", "Conversation", "any", "of-session", parley, false},
			} {
				t.Run(c.name, func(t *testing.T) {
					spec := "mcpConfig: {sseServers: [{url: 'https://example.com', apiKeyRef: {name: " + c.secret + ", key: k}}]}"
					if c.kind == "Conversation" {
						spec += "\nuserSettingsName: jane"
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
		})
	}
}

func TestTheFacadeMayReferToManagedConfigMaps(t *testing.T) {
	namespace := env.Namespace(t, nil)
	managed := configMap(namespace, "events", "[]")
	managed.Labels = map[string]string{v1alpha1.LabelConversation: "session"}
	mustCreate(t, managed)
	facade := user(t, facadeUser, namespace, use("default"))
	for field, spec := range map[string]string{
		"spec.replayJSONRef": "replayJSONRef: {name: events, key: events.json}",
		"spec.images[0].configMapKeyRef": "images: [{configMapKeyRef: {name: events, key: events.json}, mediaType: " +
			"image/png}]",
	} {
		refer := func(name string) error {
			o := object(t, "Conversation", namespace, spec)
			o.SetName(name)
			return facade.Create(t.Context(), o, client.DryRunAll)
		}
		expectAccepted(t, refer("session"))
		expectRefused(t, refer("other"), `ConfigMap "events"`, field)
	}
}
