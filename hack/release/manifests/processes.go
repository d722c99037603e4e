package manifests

import (
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Workload describes a container of a Deployment. The program of the container runs as a local
// process instead.
type Workload struct {
	Namespace      string
	ServiceAccount string
	Args           []string
	Limits         corev1.ResourceList
}

// FitToProcesses removes the Deployments and the PersistentVolumeClaims, and points the webhooks at
// webhookAddress. It returns the remaining objects, and a Workload for each container of the
// Deployments, by container name.
func FitToProcesses(objects []*unstructured.Unstructured, webhookAddress string) ([]*unstructured.Unstructured,
	map[string]Workload, error) {
	var kept []*unstructured.Unstructured
	workloads := map[string]Workload{}
	for _, object := range objects {
		switch object.GetKind() {
		case "Deployment":
			var deployment appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment); err != nil {
				return nil, nil, fmt.Errorf("read Deployment %s: %w", object.GetName(), err)
			}
			pod := deployment.Spec.Template.Spec
			for i := range pod.Containers {
				workloads[pod.Containers[i].Name] = Workload{deployment.Namespace, pod.ServiceAccountName,
					arguments(&pod.Containers[i], deployment.Namespace), pod.Containers[i].Resources.Limits}
			}
			continue
		case "PersistentVolumeClaim":
			continue // no process mounts it
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
			if err := useURL(object, webhookAddress); err != nil {
				return nil, nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
			}
		}
		kept = append(kept, object)
	}
	return kept, workloads, nil
}

// arguments returns a container's arguments. It expands variables as a kubelet does.
func arguments(container *corev1.Container, namespace string) []string {
	var pairs []string
	for _, variable := range container.Env {
		switch from := variable.ValueFrom; {
		case from == nil:
			pairs = append(pairs, "$("+variable.Name+")", variable.Value)
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
			pairs = append(pairs, "$("+variable.Name+")", namespace)
		}
	}
	values := strings.NewReplacer(pairs...)
	var args []string
	for _, arg := range container.Args {
		args = append(args, values.Replace(arg))
	}
	return args
}

// useURL makes each webhook use a URL instead of a Service. It omits the CA bundle, because
// applying an empty bundle would remove the bundle that the manager wrote.
func useURL(configuration *unstructured.Unstructured, address string) error {
	webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return err
	}
	_, port, _ := strings.Cut(address, ":")
	for _, entry := range webhooks {
		webhook, ok := entry.(map[string]any)
		if !ok {
			return errors.New("an entry of webhooks is not a YAML map")
		}
		path, _, err := unstructured.NestedString(webhook, "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		webhook["clientConfig"] = map[string]any{"url": "https://localhost:" + port + path}
	}
	return unstructured.SetNestedSlice(configuration.Object, webhooks, "webhooks")
}
