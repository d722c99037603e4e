package manifests

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const someManifests = `
apiVersion: v1
kind: Namespace
metadata: {name: parley-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: parley-manager, namespace: parley-system}
spec:
  template:
    spec:
      serviceAccountName: parley-manager
      containers:
      - name: manager
        args: [--leader-elect, --webhook-service=$(SERVICE)]
        env: [{name: SERVICE, value: parley-webhook}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: parley}
webhooks:
- name: conversation.parley.dev
  failurePolicy: Fail
  clientConfig:
    caBundle: Y2E=
    service: {name: parley-webhook, namespace: parley-system, path: /validate}
`

func fitted(t *testing.T) ([]*unstructured.Unstructured, map[string]Workload) {
	t.Helper()
	objects, err := Decode([]byte(someManifests))
	if err != nil {
		t.Fatal(err)
	}
	kept, workloads, err := FitToProcesses(objects, "127.0.0.1:20443")
	if err != nil {
		t.Fatal(err)
	}
	return kept, workloads
}

func TestDeploymentsBecomeProcesses(t *testing.T) {
	kept, workloads := fitted(t)
	for _, object := range kept {
		if object.GetKind() == "Deployment" {
			t.Error("a Deployment would be applied")
		}
	}
	manager := workloads["manager"]
	if manager.Namespace != "parley-system" || manager.ServiceAccount != "parley-manager" {
		t.Errorf("identity %s/%s", manager.Namespace, manager.ServiceAccount)
	}
	if want := []string{"--leader-elect", "--webhook-service=parley-webhook"}; !slices.Equal(manager.Args, want) {
		t.Errorf("arguments %v, want %v", manager.Args, want)
	}
}

func TestLocalWebhooksUseAURLAndNoCABundle(t *testing.T) {
	kept, _ := fitted(t)
	webhooks, _, _ := unstructured.NestedSlice(kept[len(kept)-1].Object, "webhooks")
	if len(webhooks) != 1 {
		t.Fatalf("found %d webhooks", len(webhooks))
	}
	webhook := webhooks[0].(map[string]any)
	config := webhook["clientConfig"].(map[string]any)
	if len(config) != 1 || config["url"] != "https://localhost:20443/validate" {
		t.Errorf("clientConfig %v", config)
	}
	if webhook["failurePolicy"] != "Fail" {
		t.Errorf("failurePolicy became %v", webhook["failurePolicy"])
	}
}
