package main

import (
	"context"
	"errors"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const manifests = `
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
      - {name: manager, args: [--leader-elect, --v=1]}
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

func fitted(t *testing.T) ([]*unstructured.Unstructured, map[string]workload) {
	t.Helper()
	objects, err := decode([]byte(manifests))
	if err != nil {
		t.Fatal(err)
	}
	kept, workloads, err := fitToProcesses(objects, "127.0.0.1:20443")
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
	if manager.namespace != "parley-system" || manager.serviceAccount != "parley-manager" {
		t.Errorf("identity %s/%s", manager.namespace, manager.serviceAccount)
	}
	if want := []string{"--leader-elect", "--v=1"}; !slices.Equal(manager.args, want) {
		t.Errorf("arguments %v, want %v", manager.args, want)
	}
}

func TestWebhooksPointAtTheProcessAndLeaveTheCAToTheManager(t *testing.T) {
	kept, _ := fitted(t)
	webhooks, _, _ := unstructured.NestedSlice(kept[len(kept)-1].Object, "webhooks")
	if len(webhooks) != 1 {
		t.Fatalf("%d webhooks", len(webhooks))
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

func TestRejectionIsNotRetried(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "UserSettings"}, "default", nil)
	calls := 0
	err := persist(t.Context(), func(context.Context) error { calls++; return invalid })
	if !errors.Is(err, invalid) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

func TestWhatMayYetSucceedIsRetried(t *testing.T) {
	errs := []error{
		errors.New("connection refused"),
		apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default"),
		apierrors.NewInternalError(errors.New("failed calling webhook")),
		nil,
	}
	calls := 0
	err := persist(t.Context(), func(context.Context) error { calls++; return errs[calls-1] })
	if err != nil || calls != len(errs) {
		t.Errorf("%d calls, %v", calls, err)
	}
}
