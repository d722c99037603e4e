package controllers

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/status"
)

// awaitSettings waits until Ready has this reason and the status is up to date.
func awaitSettings(t *testing.T, settings *v1alpha1.UserSettings, reason string) {
	t.Helper()
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(settings), settings); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(settings.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Reason != reason || settings.Status.ObservedGeneration != settings.Generation {
			return fmt.Errorf("Ready is %v, want %s", ready, reason)
		}
		return nil
	})
}

func TestDeletingTheSessionKeySecretRotatesTheKey(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	create(t, settings)
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	if got := kstatusOf(t, settings); got != status.CurrentStatus {
		t.Errorf("kstatus is %s", got)
	}
	secret := &corev1.Secret{}
	read := func() string {
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "ada-session-key"}, secret); err != nil {
			t.Fatal(err)
		}
		return string(secret.Data["key"])
	}
	first := read()
	if sum := sha256.Sum256([]byte(first)); settings.Status.SessionKeyHash != hex.EncodeToString(sum[:]) ||
		len(first) < 52 {
		t.Errorf("hash %q does not match the key, or the key is too short", settings.Status.SessionKeyHash)
	}
	if !owned(secret, settings) {
		t.Error("the settings do not own the key")
	}
	before := settings.Status.SessionKeyHash
	if err := env.Client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		awaitSettings(t, settings, v1alpha1.ReasonReady)
		if settings.Status.SessionKeyHash == before {
			return errors.New("the hash did not change")
		}
		return nil
	})
	if read() == first {
		t.Error("the key did not change")
	}
}

func TestAnAnnotationChangeDoesNotHideAnEarlierSpecChange(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	create(t, settings)
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	for i := range 10 {
		patch := func(format string) {
			t.Helper()
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, i))
			if err := env.Client.Patch(t.Context(), settings.DeepCopy(), patch); err != nil {
				t.Fatal(err)
			}
		}
		patch(`{"spec":{"llmModel":"model-%d"}}`)
		patch(`{"metadata":{"annotations":{"example.com/n":"%d"}}}`)
		awaitSettings(t, settings, v1alpha1.ReasonReady)
	}
}

func TestAUserMayProvideTheirOwnSessionKey(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.SessionKeyRef = ref("mine")
	create(t, settings)
	awaitSettings(t, settings, v1alpha1.ReasonSecretNotFound)
	if got := kstatusOf(t, settings); got != status.InProgressStatus {
		t.Errorf("kstatus is %s", got)
	}
	mine := secretWith(ns, "mine", "short")
	create(t, mine)
	awaitSettings(t, settings, v1alpha1.ReasonKeyTooShort)
	if got := kstatusOf(t, settings); got != status.FailedStatus {
		t.Errorf("kstatus is %s", got)
	}
	change(t, mine, func(s *corev1.Secret) { s.StringData = map[string]string{"key": "long-enough-to-be-a-key\n"} })
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	// The file of a key may end with a newline, which an HTTP header cannot hold. The hash must not
	// include the newline.
	if sum := sha256.Sum256([]byte("long-enough-to-be-a-key")); settings.Status.SessionKeyHash != hex.EncodeToString(
		sum[:]) {
		t.Errorf("hash is %s", settings.Status.SessionKeyHash)
	}
	if err := gone(t, secretWith(ns, "ada-session-key", "")); err != nil {
		t.Errorf("a key was created although the user brings one: %v", err)
	}
}

func TestASecretOfAnotherTypeIsNotASessionKey(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	settings := userSettings(ns, "ada")
	create(t, settings)
	planted := secretWith(ns, "ada-session-key", "planted-by-a-writer-of-users-keys")
	planted.Type = v1alpha1.SecretTypeUserKey
	planted.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(settings,
		v1alpha1.SchemeGroupVersion.WithKind("UserSettings"))}
	create(t, planted)
	startManager(t, ns)
	awaitSettings(t, settings, v1alpha1.ReasonForeignObject)
	if settings.Status.SessionKeyHash != "" {
		t.Error("the hash of the planted key is published")
	}
}

func TestAForeignSecretWithTheNameOfASessionKeyIsReported(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	foreign := secretWith(ns, "ada-session-key", "a-foreign-value")
	create(t, foreign)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	create(t, settings)
	awaitSettings(t, settings, v1alpha1.ReasonForeignObject)
	if settings.Status.SessionKeyHash != "" || kstatusOf(t, settings) != status.FailedStatus {
		t.Errorf("hash %q, kstatus %s", settings.Status.SessionKeyHash, kstatusOf(t, settings))
	}
	if err := env.Client.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	awaitSettings(t, settings, v1alpha1.ReasonReady)
}

func TestConditionsNameUnresolvedReferences(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec = everySecret()
	create(t, settings)
	awaitSettings(t, settings, v1alpha1.ReasonSecretNotFound)
	for condition, secret := range map[string]string{
		v1alpha1.ConditionLLMAPIKeyResolved: "llm", v1alpha1.ConditionSearchAPIKeyResolved: "search",
		v1alpha1.ConditionSandboxAPIKeyResolved:  "sandbox",
		v1alpha1.ConditionProviderTokensResolved: "github", v1alpha1.ConditionCustomSecretsResolved: "npm",
		v1alpha1.ConditionMCPKeysResolved: "sse",
	} {
		c := meta.FindStatusCondition(settings.Status.Conditions, condition)
		if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "Secret "+secret+" does not exist") {
			t.Errorf("%s: %+v", condition, c)
		}
	}
	for _, name := range []string{"llm", "search", "sandbox", "github", "gitlab", "npm", "sse", "shttp"} {
		create(t, secretWith(ns, name, "v"))
	}
	empty := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "stdio"}}
	create(t, empty)
	awaitSettings(t, settings, v1alpha1.ReasonKeyNotFound)
	change(t, empty, func(s *corev1.Secret) { s.StringData = map[string]string{"key": "v"} })
	awaitSettings(t, settings, v1alpha1.ReasonReady)
}

func TestStoredKeysAreAdoptedIfUsedAndDeletedIfUnused(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	managed := func(name, secretType, written string) *corev1.Secret {
		s := secretWith(ns, name, "v")
		s.Type = corev1.SecretType(secretType)
		s.Labels = map[string]string{v1alpha1.LabelUserSettings: "ada"}
		s.Annotations = map[string]string{v1alpha1.AnnotationWrittenAt: written}
		return s
	}
	long, now := "2020-01-01T00:00:00Z", time.Now().UTC().Format(time.RFC3339)
	userKey := string(v1alpha1.SecretTypeUserKey)
	used, unused := managed("used", userKey, long), managed("unused", userKey, long)
	young, theirs := managed("young", userKey, now), managed("theirs", string(corev1.SecretTypeOpaque), long)
	conversations := managed("conversations", userKey, long)
	conversations.Labels[v1alpha1.LabelConversation] = "c"
	create(t, used, unused, young, theirs, conversations)
	settings := userSettings(ns, "ada")
	settings.Spec.LLMAPIKeyRef = ref("used")
	create(t, settings)
	await(t, func() error { return gone(t, unused) })
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(used), used); err != nil {
			return err
		}
		if !owned(used, settings) {
			return errors.New("not adopted")
		}
		return nil
	})
	if err := gone(t, young); err == nil {
		t.Error("a new key was pruned before it could be referenced")
	}
	if err := gone(t, conversations); err == nil {
		t.Error("a Conversation's own key was pruned")
	}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil ||
		len(theirs.OwnerReferences) != 0 {
		t.Errorf("a labelled Secret of another type was changed: %v", err)
	}
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMAPIKeyRef = nil })
	await(t, func() error { return gone(t, used) })
}
