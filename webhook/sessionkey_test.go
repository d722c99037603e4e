package webhook

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestChangingASessionKeyNeedsTheSameRightsAsSettingTheOwner(t *testing.T) {
	namespace := env.Namespace(t, nil)
	team := object(t, "UserSettings", namespace, "llmModel: openai/gpt-5")
	team.SetName("team")
	mustCreate(t, team)
	for _, name := range []string{"mine", "first"} {
		mustCreate(t, secret(namespace, name))
	}
	read := get("secrets", "mine", "first")
	stranger, member := user(t, "oidc:stranger", namespace, read), user(t, "oidc:user", namespace, read, use("team"))
	user(t, "oidc:ada", namespace, read)
	ada := memberOf(t, "oidc:ada", namespace, "oidc:keyed")
	lead := user(t, "oidc:keylead", namespace, read)
	impersonator(t, "oidc:keylead", "users", "oidc:ada")
	impersonator(t, "oidc:keylead", "groups", "oidc:keyed")
	for _, c := range []struct {
		name, spec, message string
		actor               *actor
	}{
		{"without an owner", "{}", "", stranger},
		{"of settings that inherit", "inheritFrom: team", `use the UserSettings "team"`, stranger},
		{"of settings that inherit, with the right to use them", "inheritFrom: team", "", member},
		{"of another person", owned("oidc:ada", ""), `owner "oidc:ada"`, stranger},
		{"of themselves", owned("oidc:ada", ""), "", ada},
		{"of a person whom they may impersonate", owned("oidc:ada", "oidc:keyed"), "", lead},
		{"of themselves in their group", owned("oidc:ada", "oidc:keyed"), `group "oidc:keyed"`, ada},
		{"of themselves, as a former member", owned("oidc:ada", "oidc:left"), `group "oidc:left"`, ada},
		{"of themselves, with inherited keys", "{inheritFrom: team, " + owned("oidc:ada", "") + "}", `"team"`, ada},
		{"as an administrator", "{inheritFrom: team, " + owned("oidc:ada", "oidc:left") + "}", "", admin(t)},
		{"as the facade", "{}", "facade", user(t, facadeUser, namespace, read, use("team"))},
		{"as the manager", "{inheritFrom: team, " + owned("oidc:ada", "oidc:left") + "}", "",
			user(t, managerUser, namespace, read)},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings := mustCreate(t, object(t, "UserSettings", namespace, c.spec))
			keyed := mustCreate(t, object(t, "UserSettings", namespace, c.spec))
			first := setField(t, map[string]any{"name": "first", "key": "k"}, "spec", "sessionKeyRef")
			expectAccepted(t, admin(t).change(t, keyed, first))
			mine := setField(t, map[string]any{"name": "mine", "key": "k"}, "spec", "sessionKeyRef")
			remove := func(o *unstructured.Unstructured) {
				unstructured.RemoveNestedField(o.Object, "spec", "sessionKeyRef")
			}
			// Every actor may change another field: only changes of the session key need more rights.
			expectAccepted(t, c.actor.change(t, keyed, setField(t, "de", "spec", "language")))
			for _, err := range []error{c.actor.change(t, settings, mine), c.actor.change(t, keyed, mine),
				c.actor.change(t, keyed, remove)} {
				if c.message == "" {
					expectAccepted(t, err)
				} else {
					expectRefused(t, err, c.message, "spec.sessionKeyRef")
				}
			}
		})
	}
	inherits := "{inheritFrom: team, sessionKeyRef: {name: mine, key: k}}"
	expectRefused(t, stranger.create(t, object(t, "UserSettings", namespace, inherits)), `"team"`, "spec.inheritFrom",
		"spec.sessionKeyRef")
}
