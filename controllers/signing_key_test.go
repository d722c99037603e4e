package controllers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/objects"
	documents "github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// awaitSigningKey waits for a key that differs from the given keys.
func awaitSigningKey(t *testing.T, namespace string, not ...[]byte) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: session.SigningSecret},
			secret); err != nil {
			return err
		}
		key := secret.Data[session.SigningPrivateKey]
		for _, other := range append(not, nil) {
			if bytes.Equal(key, other) {
				return errors.New("no new key exists yet")
			}
		}
		return nil
	})
	return secret
}

func documentOf(t *testing.T, namespace, name string) (doc session.Document) {
	t.Helper()
	secret := &corev1.Secret{}
	await(t, func() error {
		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.SessionName(name)}, secret)
	})
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func publicHalfOf(t *testing.T, secret *corev1.Secret) []byte {
	t.Helper()
	keys, err := session.ParseSigningKeys(secret.Data[session.SigningPrivateKey])
	if err != nil {
		t.Fatal(err)
	}
	return session.PublicHalf(keys[0])
}

func TestTheSigningKeyIsCreatedAtStartAndAfterADeletion(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil) // also the operator's namespace in this test
	startManagerIn(t, ns, ns)
	first := awaitSigningKey(t, ns)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	if doc := documentOf(t, ns, "c"); !bytes.Equal(doc.PublicKey, publicHalfOf(t, first)) {
		t.Error("a session has another key than the facade")
	}
	if err := env.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second := awaitSigningKey(t, ns, first.Data[session.SigningPrivateKey])
	create(t, withTask(ns, "d").Obj())
	if doc := documentOf(t, ns, "d"); !bytes.Equal(doc.PublicKey, publicHalfOf(t, second)) {
		t.Error("a session that starts later has another key than the facade")
	}
}

func TestConcurrentManagersCreateOneSigningKey(t *testing.T) {
	t.Parallel()
	for name, exists := range map[string]bool{"an empty Secret": true, "no Secret": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := env.Namespace(t, nil)
			if exists {
				create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: session.SigningSecret}})
			}
			keys := make([][]byte, 8)
			var all sync.WaitGroup
			for i := range keys {
				all.Go(func() {
					key := &signingKeyReconciler{client: env.Client, clock: clock.RealClock{},
						name: client.ObjectKey{Namespace: ns, Name: session.SigningSecret}}
					secret, err := key.ensure(t.Context())
					for apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
						secret, err = key.ensure(t.Context())
					}
					if err != nil {
						t.Error(err)
						return
					}
					keys[i] = publicHalfOf(t, secret)
				})
			}
			all.Wait()
			want := publicHalfOf(t, awaitSigningKey(t, ns))
			for i, key := range keys {
				if !bytes.Equal(key, want) {
					t.Errorf("manager %d has another key", i)
				}
			}
		})
	}
}

// A signing key that an earlier version or an administrator created has no secret for snapshots.
func TestASigningKeyWithoutASnapshotSecretGetsOne(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	data, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: session.SigningSecret}, Data: data})
	key := &signingKeyReconciler{client: env.Client, clock: clock.RealClock{},
		name: client.ObjectKey{Namespace: ns, Name: session.SigningSecret}}
	first, err := key.ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := key.ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(second.Data[session.SigningPrivateKey], data[session.SigningPrivateKey]) {
		t.Error("the signing key was replaced")
	}
	if got := second.Data[session.SnapshotSecret]; len(got) != session.SnapshotKeySize ||
		!bytes.Equal(got, first.Data[session.SnapshotSecret]) {
		t.Errorf("the snapshot secret has %d bytes, or changed", len(got))
	}
}

func TestAnInvalidSigningKeyIsReportedAndNotReplaced(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	const text = "canary-of-a-signing-key"
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: session.SigningSecret},
		StringData: map[string]string{session.SigningPrivateKey: text}})
	startManagerIn(t, ns, ns)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	if !strings.Contains(c.Status.Message, session.SigningSecret) || strings.Contains(c.Status.Message, text) {
		t.Errorf("message %q", c.Status.Message)
	}
	if secret := awaitSigningKey(t, ns); string(secret.Data[session.SigningPrivateKey]) != text {
		t.Error("the existing key was replaced")
	}
}

// allowOwnSecrets gives the manager the same rights in a namespace as in the operator's namespace.
func allowOwnSecrets(t *testing.T, ns string) {
	t.Helper()
	manifest, err := os.ReadFile(testenv.Path("config", "rbac", "manager", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	roles, err := documents.Decode(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range roles {
		if role.GetKind() == "Role" {
			role.SetNamespace(ns)
			create(t, role, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: role.GetName()},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.GetName()},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: managerUser}}})
		}
	}
}

func TestAnAnnotationRotatesASigningKeyOnce(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	allowOwnSecrets(t, ns)
	startManagerIn(t, ns, ns)
	first := awaitSigningKey(t, ns)
	rotate := func(annotation, value string) {
		t.Helper()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: session.SigningSecret}}
		patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, annotation, value)
		if err := env.Client.Patch(t.Context(), secret, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	rotate(session.AnnotationRotateSigningKey, "1")
	second := awaitSigningKey(t, ns, first.Data[session.SigningPrivateKey])
	for _, key := range []string{session.SigningPrivateKey, session.SigningPublicKey} {
		if !bytes.HasSuffix(second.Data[key], first.Data[key]) {
			t.Errorf("%s does not end with the previous key", key)
		}
	}
	if !bytes.Equal(second.Data[session.SnapshotSecret], first.Data[session.SnapshotSecret]) {
		t.Error("the secret of snapshots changed too")
	}
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	if doc := documentOf(t, ns, "c"); !bytes.Equal(doc.PublicKey, publicHalfOf(t, second)) ||
		!bytes.Equal(doc.PreviousPublicKey, publicHalfOf(t, first)) {
		t.Error("the session does not have the current and the previous key")
	}

	rotate(session.AnnotationRotateSnapshotSecret, "1")
	third := &corev1.Secret{}
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(second), third); err != nil {
			return err
		}
		if !bytes.Equal(third.Data[session.PreviousSnapshotSecret], second.Data[session.SnapshotSecret]) {
			return errors.New("the secret of snapshots is not rotated yet")
		}
		return nil
	})
	if !bytes.Equal(third.Data[session.SigningPrivateKey], second.Data[session.SigningPrivateKey]) {
		t.Error("the signing key was rotated again")
	}
}

// An administrator may delete the key, for example after a theft. The previous key must then be
// dropped too.
func TestADeletedSigningKeyIsReplacedAndThePreviousKeyIsDropped(t *testing.T) {
	t.Parallel()
	secret := &corev1.Secret{}
	secret.Annotations = map[string]string{session.AnnotationRotateSigningKey: "1"}
	for range 2 {
		if _, err := objects.CompleteSigningSecret(secret, "", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if keys, err := session.ParseSigningKeys(secret.Data[session.SigningPrivateKey]); err != nil || len(keys) != 2 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	snapshots := secret.Data[session.SnapshotSecret]
	delete(secret.Data, session.SigningPrivateKey)
	delete(secret.Data, session.SigningPublicKey)
	if changed, err := objects.CompleteSigningSecret(secret, "", time.Now()); err != nil || !changed {
		t.Fatal(changed, err)
	}
	for _, key := range []string{session.SigningPrivateKey, session.SigningPublicKey} {
		if n := bytes.Count(secret.Data[key], []byte("-----BEGIN")); n != 1 {
			t.Errorf("%s has %d keys", key, n)
		}
	}
	if !bytes.Equal(secret.Data[session.SnapshotSecret], snapshots) {
		t.Error("the secret of snapshots changed")
	}
}
