// Command webhook writes the configuration of the validating webhooks to config/webhook.
// controller-gen is unsuitable, because it would need each webhook, with its long condition, in one
// comment line.
package main

import (
	"log"
	"os"
	"path/filepath"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/webhook"
)

func main() {
	conversation := validator("vconversation", "conversation", "conversations",
		admissionv1.MatchCondition{Name: "needs-code", Expression: webhook.MatchCondition()})
	// This webhook checks the limits of every new Conversation. The API server ignores a failure of
	// this webhook. While no manager runs, users can thus create Conversations that need no other
	// check.
	limits := validator("vconversation-limits", "conversation", "conversations")
	limits.ClientConfig.Service.Path = ptr.To(webhook.LimitsPath)
	limits.Rules[0].Operations = []admissionv1.OperationType{admissionv1.Create}
	limits.FailurePolicy, limits.TimeoutSeconds = ptr.To(admissionv1.Ignore), ptr.To[int32](2)
	// Only classes with a CA bundle or warm pods need the webhook. The default class has neither, so it
	// can be created before a manager runs.
	class := validator("vsessionclass", "sessionclass", "sessionclasses", admissionv1.MatchCondition{
		Name: "needs-code", Expression: "has(object.spec.network) && has(object.spec.network.caBundle) || " +
			"has(object.spec.warm)"})
	settings := validator("vusersettings", "usersettings", "usersettings", admissionv1.MatchCondition{
		Name: "spec-changed", Expression: "request.operation != 'UPDATE' || object.spec != oldObject.spec"})
	// This webhook only returns warnings. The API server ignores a failure of this webhook, so that
	// namespaces can always be deleted.
	deletion := validator("vusersettings-delete", "usersettings", "usersettings")
	deletion.Rules[0].Operations = []admissionv1.OperationType{admissionv1.Delete}
	deletion.FailurePolicy = ptr.To(admissionv1.Ignore)

	text, err := yaml.Marshal(admissionv1.ValidatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: "parley-webhook"},
		Webhooks:   []admissionv1.ValidatingWebhook{conversation, class, deletion, settings, limits},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join("config", "webhook", "manifests.yaml"), text, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func validator(name, kind, resource string, conditions ...admissionv1.MatchCondition) admissionv1.ValidatingWebhook {
	return admissionv1.ValidatingWebhook{
		Name: name + ".parley.dev",
		ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{
			Name: "parley-webhook", Namespace: "parley-system", Path: ptr.To("/validate-parley-dev-v1alpha1-" + kind),
		}},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule: admissionv1.Rule{
				APIGroups: []string{"parley.dev"}, APIVersions: []string{"v1alpha1"}, Resources: []string{resource}},
		}},
		MatchConditions:         conditions,
		FailurePolicy:           ptr.To(admissionv1.Fail),
		MatchPolicy:             ptr.To(admissionv1.Equivalent),
		SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
		TimeoutSeconds:          ptr.To[int32](5),
		AdmissionReviewVersions: []string{"v1"},
	}
}
