package main

import (
	"context"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestAnUnchangedCAIsNotRewritten(t *testing.T) {
	const name = "spared.parley.dev"
	if err := env.Client.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: name, AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionv1.SideEffectClassNone),
			ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://localhost:1")},
		}},
	}); err != nil {
		t.Fatal(err)
	}
	updates := 0
	c := sparingClient{interceptor.NewClient(env.Client, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			updates++
			return c.Update(ctx, object, options...)
		},
	})}
	configuration := &unstructured.Unstructured{}
	configuration.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"))
	if err := env.Client.Get(t.Context(), client.ObjectKey{Name: name}, configuration); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(t.Context(), configuration); err != nil || updates != 0 {
		t.Errorf("an unchanged configuration was written %d times: %v", updates, err)
	}
	configuration.SetAnnotations(map[string]string{"changed": "true"})
	if err := c.Update(t.Context(), configuration); err != nil || updates != 1 {
		t.Errorf("a changed configuration was written %d times: %v", updates, err)
	}
}
