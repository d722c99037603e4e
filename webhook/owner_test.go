package webhook

import (
	"fmt"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// impersonator lets a user impersonate other users or groups, and waits until the API server knows
// this right. The parameter resource is "users" or "groups".
func impersonator(t *testing.T, name, resource string, names ...string) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "impersonator-"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"impersonate"}, ResourceNames: names}}}
	mustCreate(t, role)
	mustCreate(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "impersonator-"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}})
	eventually(t, func() (bool, error) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: name,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: resource, Name: names[0]}}}
		err := env.Client.Create(t.Context(), review)
		return review.Status.Allowed, err
	})
}

func memberOf(t *testing.T, name, namespace string, groups ...string) *actor {
	t.Helper()
	user(t, name, namespace)
	config := rest.CopyConfig(env.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	return connect(t, &actor{}, config)
}

func owned(username, group string) string {
	if group == "" {
		return fmt.Sprintf("owner: {username: '%s'}", username)
	}
	return fmt.Sprintf("owner: {username: '%s', group: '%s'}", username, group)
}

func TestNamingAnOwnerNeedsTheRightToImpersonateThem(t *testing.T) {
	namespace := env.Namespace(t, nil)
	ada := memberOf(t, "oidc:ada", namespace, "oidc:team")
	const account = "system:serviceaccount:ci:builder"
	manager, facade := user(t, managerUser, namespace), user(t, facadeUser, namespace)
	lead := user(t, "oidc:lead", namespace)
	impersonator(t, "oidc:lead", "users", "oidc:ada")
	impersonator(t, "oidc:lead", "groups", "oidc:board")
	ci := env.Namespace(t, nil)
	pipeline := "system:serviceaccount:" + ci + ":builder"
	grant(t, "oidc:lead", ci, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"serviceaccounts"},
		Verbs: []string{"impersonate"}}})
	for _, c := range []struct {
		name   string
		actor  *actor
		owner  string
		fields []string
	}{
		{"themselves", ada, owned("oidc:ada", ""), nil},
		{"themselves in their group", ada, owned("oidc:ada", "oidc:team"), nil},
		{"themselves in another group", ada, owned("oidc:ada", "oidc:board"), []string{"spec.owner.group"}},
		{"another person", ada, owned("oidc:bob", ""), []string{"spec.owner.username"}},
		{"a ServiceAccount", ada, owned(account, ""), []string{"spec.owner.username"}},
		{"a person whom they may impersonate", lead, owned("oidc:ada", "oidc:board"), nil},
		{"a person whom they may not impersonate", lead, owned("oidc:bob", "oidc:team"),
			[]string{"spec.owner.username", "spec.owner.group"}},
		{"a ServiceAccount that they may impersonate", lead, owned(pipeline, ""), nil},
		{"a ServiceAccount of another namespace", lead, owned(account, ""), []string{"spec.owner.username"}},
		{"anyone, as the manager", manager, owned("oidc:bob", "oidc:team"), nil},
		{"anyone, as the facade", facade, owned("oidc:bob", "oidc:team"), []string{"spec.owner"}},
		{"itself, as the facade", facade, owned(facadeUser, ""), []string{"spec.owner"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			created := c.actor.create(t, object(t, "UserSettings", namespace, c.owner))
			settings := mustCreate(t, object(t, "UserSettings", namespace, "{}"))
			changed := c.actor.change(t, settings, func(o *unstructured.Unstructured) { setSpec(t, o, c.owner) })
			for _, err := range []error{created, changed} {
				if c.fields == nil {
					expectAccepted(t, err)
				} else {
					expectRefused(t, err, "", append([]string{}, c.fields...)...)
				}
			}
		})
	}
	// Not even the manager may set an owner whose name begins with "system:", unless the owner is a
	// ServiceAccount.
	if err := manager.create(t, object(t, "UserSettings", namespace, owned("system:admin", ""))); err == nil {
		t.Error("a name of the system is accepted")
	}
}

func TestRemovingAnOwnersGroupNeedsTheRightToImpersonateIt(t *testing.T) {
	namespace := env.Namespace(t, nil)
	ada := memberOf(t, "oidc:ada", namespace, "oidc:lifted", "oidc:other")
	lead := user(t, "oidc:lifter", namespace)
	impersonator(t, "oidc:lifter", "groups", "oidc:lifted")
	with := func(spec string) *unstructured.Unstructured {
		return mustCreate(t, object(t, "UserSettings", namespace, spec))
	}
	to := func(spec string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) { setSpec(t, o, spec) }
	}
	grouped := owned("oidc:ada", "oidc:lifted")
	// ada must not remove or replace the group of the owner. Otherwise, she could leave the group
	// and still have access to the settings.
	for _, spec := range []string{owned("oidc:ada", ""), owned("oidc:ada", "oidc:other"), "{}"} {
		expectRefused(t, ada.change(t, with(grouped), to(spec)), "lift", "spec.owner.group")
	}
	expectAccepted(t, ada.change(t, with(grouped), to("{language: de, "+grouped+"}")))
	expectAccepted(t, lead.change(t, with(grouped), to("{}")))
	// If the owner has no group, every user who may change the settings may remove the owner. Only
	// the facade may not.
	expectAccepted(t, user(t, "oidc:bob", namespace).change(t, with(owned("oidc:ada", "")), to("{}")))
	expectRefused(t, user(t, facadeUser, namespace).change(t, with(owned("oidc:ada", "")), to("{}")), "facade",
		"spec.owner")
}

func TestOnlyTheFacadeMaySetTheRequesterOfAConversation(t *testing.T) {
	namespace := env.Namespace(t, nil)
	conversation := func(requester string) *unstructured.Unstructured {
		o := object(t, "Conversation", namespace, "userSettingsName: ada")
		if requester != "-" {
			o.SetAnnotations(map[string]string{v1alpha1.AnnotationRequestedBy: requester})
		}
		return o
	}
	const path = "metadata.annotations[parley.dev/requested-by]"
	facade, ada := user(t, facadeUser, namespace, use("ada")), user(t, "oidc:ada", namespace, use("ada"))
	manager := user(t, managerUser, namespace, use("ada"))
	stored := conversation("oidc:ada")
	expectAccepted(t, facade.create(t, stored))
	for _, p := range []*actor{ada, manager, admin(t)} {
		expectRefused(t, p.create(t, conversation("oidc:ada")), "only the facade", path)
		expectRefused(t, p.create(t, conversation("")), "only the facade", path)
	}
	none := conversation("-")
	expectAccepted(t, ada.create(t, none))
	annotate := func(value string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{v1alpha1.AnnotationRequestedBy: value, "note": "x"})
		}
	}
	remove := func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{"note": "y"}) }
	for _, p := range []*actor{facade, ada, manager, admin(t)} {
		expectRefused(t, p.change(t, stored, annotate("oidc:eve")), "cannot be changed", path)
		expectRefused(t, p.change(t, stored, remove), "cannot be changed", path)
		expectRefused(t, p.change(t, none, annotate("oidc:eve")), "cannot be changed", path)
		expectAccepted(t, p.change(t, stored, annotate("oidc:ada"))) // only another annotation changes
		expectAccepted(t, p.change(t, none, remove))
	}
}

func TestInheritingNeedsTheRightToUseTheSettings(t *testing.T) {
	namespace := env.Namespace(t, nil)
	team := object(t, "UserSettings", namespace, "llmModel: openai/gpt-5")
	team.SetName("team")
	mustCreate(t, team)
	const inherits = "inheritFrom: team"
	stranger, member := user(t, "stranger", namespace), user(t, "member", namespace, use("team"))
	manager, facade := user(t, managerUser, namespace), user(t, facadeUser, namespace, use("team"))
	for _, c := range []struct {
		actor   *actor
		message string
	}{{stranger, `"team"`}, {facade, "facade"}, {member, ""}, {manager, ""}, {admin(t), ""}} {
		created := c.actor.create(t, object(t, "UserSettings", namespace, inherits))
		settings := mustCreate(t, object(t, "UserSettings", namespace, "{}"))
		changed := c.actor.change(t, settings, setField(t, "team", "spec", "inheritFrom"))
		for _, err := range []error{created, changed} {
			if c.message == "" {
				expectAccepted(t, err)
			} else {
				expectRefused(t, err, c.message, "spec.inheritFrom")
			}
		}
	}
	settings := mustCreate(t, object(t, "UserSettings", namespace, inherits))
	expectAccepted(t, stranger.change(t, settings, setField(t, "de", "spec", "language")))
	// The user stranger must not become the owner of these settings. Otherwise, stranger could
	// start sessions with the keys of "team".
	owner := setField(t, map[string]any{"username": "stranger"}, "spec", "owner")
	expectRefused(t, stranger.change(t, settings, owner), `"team"`, "spec.inheritFrom")
	expectAccepted(t, stranger.change(t, settings, func(o *unstructured.Unstructured) { setSpec(t, o, "{}") }))
}

func TestInheritanceOverTwoLevelsIsRefused(t *testing.T) {
	namespace := env.Namespace(t, nil)
	named := func(name, spec string) *unstructured.Unstructured {
		o := object(t, "UserSettings", namespace, spec)
		o.SetName(name)
		return o
	}
	team, heir := mustCreate(t, named("team", "{}")), mustCreate(t, named("heir", "inheritFrom: team"))
	expectRefused(t, admin(t).create(t, named("second", "inheritFrom: heir")), "without inheritFrom",
		"spec.inheritFrom")
	eventually(t, func() (bool, error) {
		err := cached.Get(t.Context(), client.ObjectKeyFromObject(heir), &v1alpha1.UserSettings{})
		return err == nil, client.IgnoreNotFound(err)
	})
	expectRefused(t, admin(t).change(t, team, setField(t, "other", "spec", "inheritFrom")), `"heir"`, "spec.inheritFrom")
	early := admin(t)
	expectAccepted(t, early.create(t, named("early", "inheritFrom: later")))
	expectWarnings(t, early, `spec.inheritFrom: UserSettings "later" do not exist yet`)
}

func TestAModelIsRefusedIfTheInheritedModelHasAnotherProvider(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for name, spec := range map[string]string{"team": "{llmModel: openai/gpt-5, llmAPIKeyRef: {name: team, key: k}}",
		"heir": "inheritFrom: team"} {
		o := object(t, "UserSettings", namespace, spec)
		o.SetName(name)
		mustCreate(t, o)
	}
	ada := user(t, "ada", namespace, use("heir"))
	expectRefused(t, ada.create(t, object(t, "Conversation", namespace, "{userSettingsName: heir, llmModel: evil/x}")),
		"provider", "spec.llmModel")
	expectAccepted(t, ada.create(t, object(t, "Conversation", namespace, "{userSettingsName: heir, llmModel: openai/o3}")))
}
