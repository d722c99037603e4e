package e2e

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func sidecarInjected(t *t) {
	ns := t.newNamespace()
	defer t.injectSidecar(ns)()
	c := t.startWork(ns, "done", nil)
	if containers := t.podOf(c).Spec.Containers; len(containers) != 2 {
		t.Fatalf("no sidecar was injected beside %v", containers)
	}
	t.shell(c, "touch finish")
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	t.gone(&corev1.Pod{}, ns, v1alpha1.SessionName(c.Name))
}

// sidecar is a patch that adds a container to a pod. The container runs until it is stopped.
const sidecar = `[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{
	name: "sidecar", image: "` + pauseImage + `", imagePullPolicy: "Never",
	securityContext: Object.spec.containers.securityContext{
		allowPrivilegeEscalation: false,
		capabilities: Object.spec.containers.securityContext.capabilities{drop: ["ALL"]},
	},
}}]`

// injectSidecar makes the API server add a sidecar to each new pod of a namespace, as a service
// mesh does.
func (t *t) injectSidecar(namespace string) (stop func()) {
	policy := &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + "-sidecar"},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			Mutations: []admissionv1.Mutation{{
				PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{Expression: sidecar},
			}},
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: metav1.SetAsLabelSelector(map[string]string{corev1.LabelMetadataName: namespace}),
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}}},
			},
		},
	}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: policy.ObjectMeta, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name},
	}
	t.must(t.client.Create(t.ctx, policy))
	t.must(t.client.Create(t.ctx, binding))
	// A new policy takes effect with a delay.
	t.retry(func(ctx context.Context) error {
		pod := barePod(namespace, "tried")
		if err := t.client.Create(ctx, pod, client.DryRunAll); err != nil {
			return err
		}
		if len(pod.Spec.Containers) != 2 {
			return fmt.Errorf("a pod gets the containers %v", pod.Spec.Containers)
		}
		return nil
	})
	return func() {
		ctx := context.WithoutCancel(t.ctx)
		for _, o := range []client.Object{binding, policy} {
			if err := t.client.Delete(ctx, o); err != nil {
				t.Errorf("stop injecting: %v", err)
			}
		}
	}
}
