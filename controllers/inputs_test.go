package controllers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// If each waiting session read all its Secrets again, a tenant could cause thousands of reads with
// each change of a Secret.
func TestASessionWithAMissingSecretRereadsOnlyThatSecret(t *testing.T) {
	t.Parallel()
	const waiting, secrets = 10, 8
	ns := env.Namespace(t, nil)
	settings := userSettings(ns, "ada")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{}
	for i := range secrets {
		create(t, secretWith(ns, fmt.Sprintf("key-%d", i), "k"))
		settings.Spec.SecretsStore.CustomSecrets = append(settings.Spec.SecretsStore.CustomSecrets,
			v1alpha1.CustomSecret{Name: fmt.Sprintf("KEY_%d", i), SecretRef: *ref(fmt.Sprintf("key-%d", i))})
	}
	settings.Spec.SecretsStore.CustomSecrets[secrets-1].SecretRef.Key = "missing"
	startManager(t, ns)
	create(t, settings)
	for i := range waiting {
		create(t, makeConversation(ns, fmt.Sprintf("c-%d", i)).Obj())
	}
	for i := range waiting {
		awaitState(t, ns, fmt.Sprintf("c-%d", i), v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	}
	reads := func() (ofMissing, ofOthers int) {
		for _, r := range testenv.Requests(t, auditDir, managerUser) {
			switch {
			case r.Object.Namespace != ns || r.Object.Resource != "secrets" || r.Verb != "get":
			case r.Object.Name == fmt.Sprintf("key-%d", secrets-1):
				ofMissing++
			case strings.HasPrefix(r.Object.Name, "key-"):
				ofOthers++
			}
		}
		return ofMissing, ofOthers
	}
	missingBefore, othersBefore := reads()
	change(t, secretWith(ns, "key-0", ""), func(s *corev1.Secret) { s.Data = map[string][]byte{"key": []byte("changed")} })
	var others int
	await(t, func() error {
		var missing int
		if missing, others = reads(); missing < missingBefore+waiting {
			return fmt.Errorf("the sessions looked %d times for the missing key", missing-missingBefore)
		}
		return nil
	})
	if others -= othersBefore; others > waiting {
		t.Errorf("%d sessions that lack a key read other Secrets %d times", waiting, others)
	}
}
