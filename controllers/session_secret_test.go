package controllers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestSecretValuesReachTheSessionUnchanged(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	const sshKey = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
	settings := userSettings(ns, "ada")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{CustomSecrets: []v1alpha1.CustomSecret{{Name: "SSH_KEY",
		SecretRef: *ref("ssh")}}}
	create(t, secretWith(ns, "ssh", sshKey), settings)
	create(t, &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "talk"},
		Spec: v1alpha1.ConversationSpec{UserSettingsName: "ada"}})
	secret := &corev1.Secret{}
	await(t, func() error {
		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName("talk")}, secret)
	})
	if got := string(secret.Data["custom.0"]); got != sshKey {
		t.Errorf("the session gets %q", got)
	}
}

func TestSecretsThatDoNotFitIntoTheSessionsSecretAreReported(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	settings := userSettings(ns, "ada")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{}
	for i := range 11 {
		name := fmt.Sprintf("key-%d", i)
		create(t, secretWith(ns, name, strings.Repeat("x", session.MaxSecret)))
		settings.Spec.SecretsStore.CustomSecrets = append(settings.Spec.SecretsStore.CustomSecrets,
			v1alpha1.CustomSecret{Name: fmt.Sprintf("KEY_%d", i), SecretRef: *ref(name)})
	}
	create(t, settings, makeConversation(ns, "c").Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	status := p.expect("c", v1alpha1.StateStarting, v1alpha1.ReasonRejected)
	if !strings.Contains(status.Message, "can hold at most 1024 KiB: remove or shorten secrets") {
		t.Errorf("the message is %q", status.Message)
	}
	change(t, settings, func(s *v1alpha1.UserSettings) {
		s.Spec.SecretsStore.CustomSecrets = s.Spec.SecretsStore.CustomSecrets[:9]
	})
	p.advance(minRetryDelay)
	p.reconcile("c")
	if pods := len(runningPods(t, ns)); pods != 1 {
		t.Errorf("%d pods run without the last secrets", pods)
	}
}

func TestASecretThatIsTooLargeForAVariableIsReported(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{CustomSecrets: []v1alpha1.CustomSecret{{Name: "CERTIFICATES",
		SecretRef: *ref("certificates")}}}
	secret := secretWith(ns, "certificates", strings.Repeat("x", session.MaxSecret+1))
	create(t, secret, settings, makeConversation(ns, "c").Obj())
	const names = "spec.secretsStore.customSecrets[0].secretRef: the key key of Secret certificates "
	says := func(message string) {
		t.Helper()
		await(t, func() error {
			if c := getConversation(t, ns, "c"); c.Status.Reason != v1alpha1.ReasonSettingsNotReady ||
				c.Status.Message != message {
				return fmt.Errorf("%s: %s", c.Status.Reason, c.Status.Message)
			}
			s := &v1alpha1.UserSettings{}
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(settings), s); err != nil {
				return err
			}
			for _, condition := range []string{v1alpha1.ConditionCustomSecretsResolved, v1alpha1.ConditionReady} {
				if c := meta.FindStatusCondition(s.Status.Conditions, condition); c == nil || c.Reason != v1alpha1.ReasonKeyUnfit ||
					c.Message != message {
					return fmt.Errorf("%s: %+v", condition, c)
				}
			}
			return nil
		})
	}
	says(names + "is longer than 100 KiB")
	for _, binary := range []string{"a\x00b", "\xff\xfe"} {
		change(t, secret, func(s *corev1.Secret) { s.Data = map[string][]byte{"key": []byte(binary)} })
		says(names + "must be UTF-8 text without zero bytes")
	}
	change(t, secret, func(s *corev1.Secret) {
		s.Data = map[string][]byte{"key": []byte(strings.Repeat("x", session.MaxSecret))}
	})
	kubelet{t, ns, "c"}.pod()
}

func TestModelPricesReachTheSession(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil) // also the operator's namespace in this test
	startManagerIn(t, ns, ns)
	prices := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.ModelsName},
		Data: map[string]string{"ours": "good: {input: 1, output: 2.50}\nbad: {input: much}"}}
	create(t, prices, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.AgentCatalogueName},
		Data: map[string]string{"coder": "command: [coder]"}})
	free, bound := userSettings(ns, "free"), userSettings(ns, "bound")
	free.Spec.Agent, bound.Spec.Agent, bound.Spec.MaxBudgetPerTask = ptr.To("coder"), ptr.To("coder"), ptr.To("1.50")
	ofClass := userSettings(ns, "of-class") // the class sets the budget
	ofClass.Spec.Agent, ofClass.Spec.SessionClassName = ptr.To("coder"), ptr.To(createClass(t, ns,
		v1alpha1.SessionClassSpec{MaxBudgetPerTask: ptr.To("1.50")}))
	create(t, free, bound, ofClass)
	for _, name := range []string{"free", "bound", "of-class"} {
		create(t, makeConversation(ns, name).With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = name }).Obj())
	}
	models := func(name string) session.Models {
		t.Helper()
		kubelet{t, ns, name}.pod()
		secret, doc := &corev1.Secret{}, session.Document{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName(name)},
			secret); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil {
			t.Fatal(err)
		}
		return doc.Models
	}
	// Without a budget, invalid prices do not block a session.
	if got := models("free"); len(got) != 1 || got["good"] != (session.Model{Input: "1", Output: "2.5"}) {
		t.Errorf("the session has %+v", got)
	}
	for _, name := range []string{"bound", "of-class"} {
		c := awaitState(t, ns, name, v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
		if !strings.Contains(c.Status.Message, `ours: model bad: "much" is not a price`) {
			t.Errorf("%s: message %q", name, c.Status.Message)
		}
	}
	change(t, prices, func(m *corev1.ConfigMap) { m.Data["ours"] = "good: {input: 1, output: '2.50'}" })
	if got := models("bound"); got["good"] != (session.Model{Input: "1", Output: "2.50"}) {
		t.Errorf("the session has %+v", got)
	}
}
