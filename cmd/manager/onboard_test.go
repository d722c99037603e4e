package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/openid"
)

// The manager in this test is not the leader, and has only the rights of the manager's role.
func TestEveryReplicaHasTheRightsToOnboardPeople(t *testing.T) {
	installAll(t)
	asManager(t)
	if err := client.IgnoreAlreadyExists(env.Client.Create(t.Context(), leaseOf("another"))); err != nil {
		t.Fatal(err)
	}
	issuer := openid.Start(t)
	at, _, _ := start(t, "--oidc-issuer-url="+issuer.URL, "--oidc-client-id="+openid.ClientID)
	// Remove the webhook, because the API server cannot reach this manager.
	if err := env.Client.Delete(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "parley-webhook"}}); err != nil {
		t.Fatal(err)
	}
	team := env.Namespace(t, nil)
	for _, object := range []client.Object{
		&v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "small"}},
		&v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "team"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: v1alpha1.OnboardingName},
			Data: map[string]string{"onboarding.yaml": fmt.Sprintf("groups:\n- {group: 'oidc:red', namespace: %s, "+
				"sessionClassName: small, inheritFrom: team}\n- {group: 'oidc:red', namespace: missing}\n", team)}},
	} {
		if err := env.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	code, answer := onboard(t, at.webhook, issuer.Token("ada@example.com", "red"))
	if code != http.StatusOK || !strings.Contains(answer, `{"namespace":"`+team+`","name":"ada-example-com-`) {
		t.Errorf("the answer is %d %s", code, answer)
	}
	await(t, func() error {
		var events eventsv1.EventList
		if err := env.Client.List(t.Context(), &events, client.InNamespace(system)); err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Regarding.Kind == "ConfigMap" && event.Regarding.Name == v1alpha1.OnboardingName &&
				strings.Contains(event.Note, "namespace missing") {
				return nil
			}
		}
		return fmt.Errorf("none of %d events is about the bad entry", len(events.Items))
	})
	if code, _ := onboard(t, at.webhook, "forged"); code != http.StatusUnauthorized {
		t.Errorf("a forged token is answered with %d", code)
	}
}

func onboard(t *testing.T, address, token string) (int, string) {
	t.Helper()
	response, err := insecure.Post("https://"+address+"/onboard", "application/json",
		strings.NewReader(`{"token": "`+token+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}
