package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/objects"
)

func tenantWith(t *testing.T, namespace string, rule rbacv1.PolicyRule) client.Client {
	t.Helper()
	objectMeta := metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}
	create(t, &rbacv1.Role{ObjectMeta: objectMeta, Rules: []rbacv1.PolicyRule{rule}},
		&rbacv1.RoleBinding{ObjectMeta: objectMeta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tenant"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant-of-" + namespace}}})
	config := rest.CopyConfig(env.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "tenant-of-" + namespace}
	c, err := client.New(config, client.Options{Scheme: env.Scheme, Mapper: env.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func readSecret(t *testing.T, c client.Client, namespace, name string) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	await(t, func() error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.SessionName(name)}, secret)
	})
	return secret
}

// copyOf returns a copy of a Secret that can be created after the original is deleted.
func copyOf(secret *corev1.Secret) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name, Labels: maps.Clone(secret.Labels),
			Annotations: maps.Clone(secret.Annotations), OwnerReferences: slices.Clone(secret.OwnerReferences)},
		Type: secret.Type, Data: maps.Clone(secret.Data), Immutable: secret.Immutable,
	}
}

func (k kubelet) lose() {
	k.t.Helper()
	if err := env.Client.Delete(k.t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
		k.t.Fatal(err)
	}
}

func (k kubelet) awaitAttempt(attempt string) (pod *corev1.Pod) {
	k.t.Helper()
	await(k.t, func() error {
		if pod = k.pod(); pod.Labels[v1alpha1.LabelAttempt] != attempt {
			return fmt.Errorf("the pod has attempt %q", pod.Labels[v1alpha1.LabelAttempt])
		}
		return nil
	})
	return pod
}

// A tenant who may write Secrets, but no pods, must not choose the class, the image or the
// resources of a pod.
func TestAForgedSessionSecretIsNotUsed(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	strict := createClass(t, ns, v1alpha1.SessionClassSpec{
		Images:    &v1alpha1.SessionImages{Allowed: []string{"example.com/team/*"}},
		Resources: &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](1)},
	})
	privileged := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "privileged-" + ns},
		Spec: v1alpha1.SessionClassSpec{Placement: &v1alpha1.SessionPlacement{NodeSelector: map[string]string{"gpu": "yes"}}}}
	settings := userSettings(ns, "ada")
	settings.Spec.SessionClassName = &strict
	create(t, privileged, settings)
	t.Cleanup(func() { _ = env.Client.Delete(t.Context(), privileged) })
	tenant := tenantWith(t, ns, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"},
		Verbs: []string{"get", "create", "delete"}})

	forge := func(t *testing.T, secret *corev1.Secret) {
		t.Helper()
		doc := session.Document{}
		if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil {
			t.Fatal(err)
		}
		doc.Settings.SessionClassName = &privileged.Name
		doc.Settings.SandboxBaseContainerImage = ptr.To("example.com/evil:1")
		doc.Settings.RemoteRuntimeResourceFactor = ptr.To[int32](64)
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		secret.Data[session.DocumentFile] = text
	}
	other := makeConversation(ns, "other").Obj()
	create(t, other)
	for name, change := range map[string]func(*testing.T, *corev1.Secret){
		"changed-data": forge,
		"no-mac": func(t *testing.T, s *corev1.Secret) {
			forge(t, s)
			s.Annotations = nil
		},
		"of-another-conversation": func(t *testing.T, s *corev1.Secret) {
			theirs := readSecret(t, env.Client, ns, "other")
			s.Labels, s.Annotations, s.Data = theirs.Labels, theirs.Annotations, theirs.Data
		},
		"later-attempt": func(_ *testing.T, s *corev1.Secret) { s.Labels[v1alpha1.LabelAttempt] = "2" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			create(t, makeConversation(ns, name).Obj())
			k := kubelet{t, ns, name}
			k.start()
			awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
			genuine := readSecret(t, tenant, ns, name)
			forged := copyOf(genuine)
			change(t, forged)
			if err := errors.Join(tenant.Delete(t.Context(), genuine), tenant.Create(t.Context(), forged)); err != nil {
				t.Fatal(err)
			}
			k.lose()
			c := awaitState(t, ns, name, v1alpha1.StateStarting, v1alpha1.ReasonForeignObject)
			if !strings.Contains(c.Status.Message, forged.Name) ||
				!meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionStalled) {
				t.Errorf("%q, %+v", c.Status.Message, c.Status.Conditions)
			}
			if err := gone(t, k.object()); err != nil {
				t.Error(err)
			}
			if still := readSecret(t, tenant, ns, name); still.UID != forged.UID || still.ResourceVersion !=
				forged.ResourceVersion {
				t.Error("the foreign Secret was changed")
			}
			if name != "changed-data" {
				return
			}
			// After the forged Secret is deleted, the attempt starts with the user's settings.
			if err := tenant.Delete(t.Context(), forged); err != nil {
				t.Fatal(err)
			}
			pod := k.awaitAttempt("2")
			if pod.Labels[v1alpha1.LabelSessionClass] != strict || len(pod.Spec.NodeSelector) > 0 ||
				strings.Contains(pod.Spec.Containers[0].Image, "evil") {
				t.Errorf("the pod has %v, %v", pod.Labels, pod.Spec)
			}
		})
	}
}

func TestOnlySignedSecretsOfTheCurrentStartAreTrusted(t *testing.T) {
	t.Parallel()
	ours, previous, earlier := session.NewSnapshotSecret(), session.NewSnapshotSecret(), session.NewSnapshotSecret()
	secretOf := func(c *v1alpha1.Conversation, key []byte) *corev1.Secret {
		secret, err := objects.Secret(c, objects.SecretInputs{SnapshotSecrets: [][]byte{key}}, at(0))
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	// resumed returns a session in its third attempt. The second attempt began when a user resumed
	// the session.
	resumed := func() *v1alpha1.Conversation {
		c := makeConversation("ns", "c").Conversation
		c.Status = v1alpha1.ConversationStatus{Attempt: 3, FirstAttempt: 2,
			SessionClass: &v1alpha1.StartedClass{FirstAttempt: 2, SignedSecret: true}}
		return c
	}
	inAttempt := func(n int32) *v1alpha1.Conversation {
		c := resumed()
		c.Status.Attempt = n
		return c
	}
	unsigned := func(c *v1alpha1.Conversation) *corev1.Secret { return secretOf(c, nil) }
	changed := func(change func(*corev1.Secret)) *corev1.Secret {
		secret := secretOf(resumed(), ours)
		change(secret)
		return secret
	}
	const trusted, replaced, foreign, stale = "trusted", "replaced", "foreign", "stale"
	for name, c := range map[string]struct {
		secret *corev1.Secret
		change func(*v1alpha1.Conversation)
		key    []byte
		want   string
	}{
		"of this attempt":              {secret: secretOf(resumed(), ours), key: ours, want: trusted},
		"of the lost attempt":          {secret: secretOf(inAttempt(2), ours), key: ours, want: trusted},
		"of the start before":          {secret: secretOf(inAttempt(1), ours), key: ours, want: replaced},
		"of a later attempt":           {secret: secretOf(inAttempt(4), ours), key: ours, want: stale},
		"signed with the previous key": {secret: secretOf(resumed(), previous), key: ours, want: trusted},
		"signed with another key":      {secret: secretOf(resumed(), earlier), key: ours, want: foreign},
		"signed, and no key is left":   {secret: secretOf(resumed(), ours), want: replaced},
		"unsigned":                     {secret: unsigned(resumed()), key: ours, want: foreign},
		"unsigned, of an older version": {secret: unsigned(resumed()), key: ours, want: replaced,
			change: func(c *v1alpha1.Conversation) { c.Status.SessionClass.SignedSecret = false }},
		"unsigned, of a start without a pod": {secret: unsigned(resumed()), key: ours, want: replaced,
			change: func(c *v1alpha1.Conversation) { c.Status.SessionClass = nil }},
		"wrongly signed, of a start without a pod": {secret: secretOf(resumed(), earlier), key: ours, want: foreign,
			change: func(c *v1alpha1.Conversation) { c.Status.SessionClass = nil }},
		"another attempt in its label": {key: ours, want: foreign,
			secret: changed(func(s *corev1.Secret) { s.Labels[v1alpha1.LabelAttempt] = "2" })},
		"another value": {key: ours, want: foreign,
			secret: changed(func(s *corev1.Secret) { s.Data[session.KeyFile] = []byte("known") })},
		"one more value": {key: ours, want: foreign,
			secret: changed(func(s *corev1.Secret) { s.Data["x"] = nil })},
		"other inputs": {key: ours, want: foreign,
			secret: changed(func(s *corev1.Secret) { s.Annotations[objects.AnnotationInputs] = "x" })},
		"the revision of a sent model": {key: ours, want: trusted,
			secret: changed(func(s *corev1.Secret) { s.Annotations[v1alpha1.AnnotationModel] = "x" })},
		"a label of another program": {key: ours, want: trusted,
			secret: changed(func(s *corev1.Secret) { s.Labels["team"] = "x" })},
		"for a Conversation of another UID": {key: ours, want: foreign, secret: changed(func(*corev1.Secret) {}),
			change: func(c *v1alpha1.Conversation) { c.UID = "other" }},
	} {
		conversation := resumed()
		if c.change != nil {
			c.change(conversation)
		}
		c.secret.OwnerReferences[0].UID = conversation.UID
		got := replaced
		switch ok, err := checkSecret(c.secret, conversation,
			signingKeys{snapshots: c.key, previousSnapshots: previous}); {
		case ok && err == nil:
			got = trusted
		case errors.Is(err, errStale):
			got = stale
		case err != nil:
			got = foreign
		}
		if got != c.want {
			t.Errorf("a Secret %s is %s, want %s", name, got, c.want)
		}
	}
}

func TestEveryAttemptStaysWithinTheLimitsOfItsRecordedClass(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: createClass(t, ns, v1alpha1.SessionClassSpec{})}}
	settings := userSettings(ns, "ada")
	settings.Spec.SessionClassName, settings.Spec.RemoteRuntimeResourceFactor = &class.Name, ptr.To[int32](4)
	create(t, settings, makeConversation(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)

	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.SessionClassName = nil })
	if err := env.Client.Delete(t.Context(), readSecret(t, env.Client, ns, "c")); err != nil {
		t.Fatal(err)
	}
	k.lose()
	if got := k.awaitAttempt("2").Labels[v1alpha1.LabelSessionClass]; got != class.Name {
		t.Errorf("without its Secret, the second attempt has class %q", got)
	}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)

	change(t, class, func(c *v1alpha1.SessionClass) {
		c.Spec.Resources = &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](1)}
	})
	k.lose()
	if c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed); !strings.Contains(c.Status.Message,
		"remoteRuntimeResourceFactor") {
		t.Errorf("message %q", c.Status.Message)
	}
}

// Sessions that an earlier version of Parley started have Secrets without a MAC. If such a session
// loses its pod, the next pod starts with the current settings.
func TestAnUpgradeKeepsSessionsWithUnsignedSecrets(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	stop := startManager(t, ns)
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	stop()
	c.Status.SessionClass.SignedSecret = false
	if err := managerClient(t).Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	secret := readSecret(t, env.Client, ns, "c")
	change(t, secret, func(s *corev1.Secret) { s.Annotations = nil })
	startManager(t, ns)
	k.lose()
	k.awaitAttempt("2")
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if replaced := readSecret(t, env.Client, ns, "c"); replaced.UID == secret.UID || !objects.Signed(replaced) {
		t.Error("the unsigned Secret was used again")
	}
}
