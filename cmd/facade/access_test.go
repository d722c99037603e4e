package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/facadeenv"
)

func TestFacadeRBACIsMinimal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		group, resource string
		may, mayNot     string
	}{
		{"", "secrets", "create update", "get list watch patch delete deletecollection"},
		{"", "configmaps", "create", "get list watch update patch delete deletecollection"},
		{"parley.dev", "usersettings", "get list watch patch use", "create update delete deletecollection"},
		{"parley.dev", "conversations", "get list watch create patch delete", "update deletecollection"},
		{"parley.dev", "sessionclasses", "get", "list watch create update patch delete use"},
		{"parley.dev", "usersettings/status", "", "get update patch"},
		{"parley.dev", "conversations/status", "", "get update patch"},
		{"authentication.k8s.io", "tokenreviews", "create", ""},
		{"", "pods", "", "get list create delete"},
		{"", "pods/exec", "", "create get"},
		{"", "serviceaccounts/token", "", "create"},
		{"rbac.authorization.k8s.io", "clusterroles", "", "get create update bind escalate"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies", "", "get update patch delete"},
	} {
		can := func(verb string) bool {
			resource, subresource, _ := strings.Cut(c.resource, "/")
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: facadeenv.FacadeUser, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:parley-system",
					"system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "anywhere", Verb: verb, Group: c.group,
					Resource: resource, Subresource: subresource},
			}}
			create(t, review)
			return review.Status.Allowed
		}
		for verb := range strings.FieldsSeq(c.may) {
			if !can(verb) {
				t.Errorf("the facade cannot %s %s, but needs to", verb, c.resource)
			}
		}
		for verb := range strings.FieldsSeq(c.mayNot) {
			if can(verb) {
				t.Errorf("the facade can %s %s, but must not", verb, c.resource)
			}
		}
	}
}

func TestAPolicyLimitsTheSecretsAndConfigMapsThatTheFacadeWrites(t *testing.T) {
	t.Parallel()
	namespace := suite.Namespace(t, nil)
	admin := client.NewNamespacedClient(suite.Client, namespace)
	facade, err := client.New(suite.AsFacade, client.Options{Scheme: suite.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	secret := func(name string, kind corev1.SecretType, labels map[string]string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Type: kind,
			StringData: map[string]string{"key": "v"}}
	}
	ofAda := map[string]string{v1alpha1.LabelUserSettings: "ada"}
	ofTalk := map[string]string{v1alpha1.LabelConversation: "talk"}
	for _, c := range []struct {
		name    string
		object  *corev1.Secret
		allowed bool
	}{
		{"a key of settings", secret("ada-llm-api-key", v1alpha1.SecretTypeUserKey, ofAda), true},
		{"a key of an endpoint", secret("ada-llm-api-key-0123456789abcdef", v1alpha1.SecretTypeUserKey, ofAda), true},
		{"a key of a conversation", secret("talk-tool-0123456789abcdef", v1alpha1.SecretTypeUserKey, ofTalk), true},
		{"a key of settings for a tool", secret("ada-mcp-0123456789abcdef", v1alpha1.SecretTypeUserKey, ofAda), true},
		{"a token of settings", secret("ada-token-enterprise-sso", v1alpha1.SecretTypeUserKey, ofAda), true},
		{"a user's key in place of the session key", secret("ada-session-key", v1alpha1.SecretTypeUserKey, ofAda), false},
		{"a key of a conversation with the suffix of a settings key", secret("talk-llm-api-key", v1alpha1.SecretTypeUserKey,
			ofTalk), false},
		{"a token of an unknown provider", secret("ada-token-sourceforge", v1alpha1.SecretTypeUserKey, ofAda), false},
		{"an opaque Secret", secret("ada-opaque", corev1.SecretTypeOpaque, ofAda), false},
		{"a session key", secret("ada-session-key", v1alpha1.SecretTypeSessionKey, ofAda), false},
		{"a key without labels", secret("ada-none", v1alpha1.SecretTypeUserKey, nil), false},
		{"a key without the name of its owner", secret("database", v1alpha1.SecretTypeUserKey, ofAda), false},
	} {
		t.Run("creates "+c.name, func(t *testing.T) {
			expectPolicy(t, facade.Create(t.Context(), c.object), c.allowed)
		})
	}
	t.Run("overwrites a key", func(t *testing.T) {
		expectPolicy(t, facade.Update(t.Context(), secret("ada-llm-api-key", v1alpha1.SecretTypeUserKey, ofAda)), true)
	})
	t.Run("overwrites a foreign Secret", func(t *testing.T) {
		theirs := secret("ada-theirs", corev1.SecretTypeOpaque, ofAda)
		if err := admin.Create(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		// The facade cannot turn this Secret into a user's key, because the API server refuses every
		// change of a Secret's type.
		if err := facade.Update(t.Context(), secret("ada-theirs", v1alpha1.SecretTypeUserKey, ofAda)); !apierrors.IsInvalid(
			err) {
			t.Errorf("should be refused, got: %v", err)
		}
		expectPolicy(t, facade.Update(t.Context(), secret("ada-theirs", corev1.SecretTypeOpaque, ofAda)), false)
	})
	t.Run("overwrites a key without the facade's labels", func(t *testing.T) {
		theirs := secret("unlabelled", v1alpha1.SecretTypeUserKey, nil)
		if err := admin.Create(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		expectPolicy(t, facade.Update(t.Context(), secret("unlabelled", v1alpha1.SecretTypeUserKey,
			map[string]string{v1alpha1.LabelUserSettings: "un"})), false)
	})
	configMap := func(name string, labels map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	}
	replay := v1alpha1.ManagedName("talk", v1alpha1.ManagedReplay, "[]")
	t.Run("creates a replay", func(t *testing.T) {
		expectPolicy(t, facade.Create(t.Context(), configMap(replay+"-abcdefgh23", ofTalk)), true)
	})
	t.Run("creates an image", func(t *testing.T) {
		image := v1alpha1.ManagedName("talk", v1alpha1.ManagedImage, "x") + "-abcdefgh23"
		expectPolicy(t, facade.Create(t.Context(), configMap(image, ofTalk)), true)
	})
	t.Run("creates another ConfigMap", func(t *testing.T) {
		expectPolicy(t, facade.Create(t.Context(), configMap("talk-other", ofTalk)), false)
		expectPolicy(t, facade.Create(t.Context(), configMap("talk-replay-1", ofTalk)), false)
		expectPolicy(t, facade.Create(t.Context(), configMap(replay+"-bcdefgh234", nil)), false)
	})
	t.Run("does not confine others", func(t *testing.T) {
		if err := admin.Create(t.Context(), configMap("anything", nil)); err != nil {
			t.Error(err)
		}
	})
}

// Whoever has a session key can use the account of its user. If the facade could choose the Secret
// that holds the key, an attacker with the facade's identity could impersonate the user forever.
func TestTheFacadeCannotChangeSessionKeyReferences(t *testing.T) {
	t.Parallel()
	namespace := suite.Namespace(t, nil)
	facade, err := client.New(suite.AsFacade, client.Options{Scheme: suite.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	const own, stolen = `{"name": "own", "key": "key"}`, `{"name": "ada-llm-api-key", "key": "key"}`
	for _, c := range []struct {
		name, before, change string
		allowed              bool
	}{
		{"sets the first reference", `null`, `{"sessionKeyRef": ` + stolen + `}`, false},
		{"changes the Secret", own, `{"sessionKeyRef": ` + stolen + `}`, false},
		{"changes the key in the Secret", own, `{"sessionKeyRef": {"key": "other"}}`, false},
		{"removes the reference", own, `{"sessionKeyRef": null}`, false},
		{"keeps the reference", own, `{"sessionKeyRef": ` + own + `, "language": "de"}`, true},
		{"changes another field", own, `{"language": "de"}`, true},
		{"changes another field without a reference", `null`, `{"language": "de"}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "ada-"}}
			if err := json.Unmarshal([]byte(c.before), &settings.Spec.SessionKeyRef); err != nil {
				t.Fatal(err)
			}
			create(t, settings)
			patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": `+c.change+`}`))
			expectPolicy(t, facade.Patch(t.Context(), settings, patch), c.allowed)
		})
	}
	t.Run("does not confine others", func(t *testing.T) {
		settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bob"}}
		create(t, settings)
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"sessionKeyRef": `+own+`}}`))
		if err := suite.Client.Patch(t.Context(), settings, patch); err != nil {
			t.Error(err)
		}
	})
}

// An attacker with the facade's identity must not get the settings, keys or classes of other
// people.
func TestTheFacadeCannotChangeTheOwnerOrTheInheritanceOrTheClassOfSettings(t *testing.T) {
	t.Parallel()
	namespace := suite.Namespace(t, nil)
	facade, err := client.New(suite.AsFacade, client.Options{Scheme: suite.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	const owned = `{"owner": {"username": "oidc:ada", "group": "oidc:team"}, "inheritFrom": "team", ` +
		`"sessionClassName": "small"}`
	for _, c := range []struct {
		name, before, change string
		allowed              bool
	}{
		{"sets the first owner", `{}`, `{"owner": {"username": "oidc:eve"}}`, false},
		{"changes the owner", owned, `{"owner": {"username": "oidc:eve"}}`, false},
		{"removes the owner", owned, `{"owner": null}`, false},
		{"removes the group", owned, `{"owner": {"group": null}}`, false},
		{"inherits", `{}`, `{"inheritFrom": "team"}`, false},
		{"inherits from others", owned, `{"inheritFrom": "board"}`, false},
		{"stops inheriting", owned, `{"inheritFrom": null}`, false},
		{"chooses a class", `{}`, `{"sessionClassName": "big"}`, false},
		{"chooses another class", owned, `{"sessionClassName": "big"}`, false},
		{"chooses the default class", owned, `{"sessionClassName": null}`, false},
		{"keeps all of them", owned, owned[:len(owned)-1] + `, "language": "de"}`, true},
		{"changes another field", owned, `{"language": "de"}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "ada-"}}
			if err := json.Unmarshal([]byte(c.before), &settings.Spec); err != nil {
				t.Fatal(err)
			}
			create(t, settings)
			patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": `+c.change+`}`))
			expectPolicy(t, facade.Patch(t.Context(), settings, patch), c.allowed)
		})
	}
	for class, allowed := range map[string]bool{"": true, "big": false} {
		talk := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "talk-"}}
		if class != "" {
			talk.Spec.SessionClassName = &class
		}
		expectPolicy(t, facade.Create(t.Context(), talk), allowed)
	}
	big := "big"
	talk := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "talk"},
		Spec: v1alpha1.ConversationSpec{SessionClassName: &big}}
	create(t, talk)
	expectPolicy(t, facade.Patch(t.Context(), talk, client.RawPatch(types.MergePatchType,
		[]byte(`{"spec": {"suspend": true}}`))), true)
}

func expectPolicy(t *testing.T, err error, allowed bool) {
	t.Helper()
	switch {
	case allowed && err != nil:
		t.Errorf("refused: %v", err)
	case !allowed && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy "+
		"'parley-facade'")):
		t.Errorf("the policy should refuse it, got: %v", err)
	}
}

func TestEveryCallRequiresAValidKey(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	for name, key := range map[string]string{
		"no key": "", "a wrong key": "wrong", "a key with a suffix": ada.key + "x",
		"half a key":        ada.key[:len(ada.key)/2],
		"the hash of a key": ada.settings(t).Status.SessionKeyHash,
	} {
		p := &person{url: ada.url, key: key}
		for _, c := range userCalls(t) {
			if strings.HasPrefix(c.path, "/socket.io/") {
				continue // it answers in frames: see TestNoCallReachesAnotherPersonsConversation
			}
			t.Run(name+" "+c.method+" "+c.path, func(t *testing.T) {
				// The invalid JSON shows that the body is not read: an unauthorized request gets
				// 401, not a decoding error.
				p.do(t, c.method, c.resolved(), "{").wants(t, 401).says(t, `{"detail": "Unauthorized"}`)
			})
		}
	}
}

func TestADeletedKeyIsRefused(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	old := *ada
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace,
		Name: v1alpha1.SessionKeySecretName(ada.name)}}
	if err := suite.Client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		ada.learnKey(t)
		if ada.key == old.key {
			return errStillOld
		}
		return nil
	})
	old.get(t, "/api/settings").wants(t, 401)
	ada.get(t, "/api/settings").wants(t, 200)
}

var errStillOld = errors.New("the key has not changed yet")

func TestAKeySharedByTwoUsersIsRefused(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	shared := canary()
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "shared"},
		StringData: map[string]string{"key": shared}})
	ref := &v1alpha1.SecretKeyRef{Name: "shared", Key: "key"}
	one := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "one"},
		Spec: v1alpha1.UserSettingsSpec{SessionKeyRef: ref}}
	create(t, one)
	p := &person{url: ada.url, key: shared}
	await(t, func() error { return codeOf(p.get(t, "/api/conversations"), 200) })
	two := one.DeepCopy()
	two.ObjectMeta = metav1.ObjectMeta{Namespace: ada.namespace, Name: "two"}
	create(t, two)
	await(t, func() error { return codeOf(p.get(t, "/api/conversations"), 401) })
	if err := suite.Client.Delete(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return codeOf(p.get(t, "/api/conversations"), 200) })
	if strings.Contains(suite.facade.Log.String(), shared) {
		t.Error("the key is in the log")
	}
}
