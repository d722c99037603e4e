package controllers

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const gitManifest = `
apiVersion: parley.dev/v1alpha1
kind: UserSettings
metadata: {name: ada}
spec:
  llmModel: example/model
  llmAPIKeyRef: {name: llm, key: key}
---
apiVersion: parley.dev/v1alpha1
kind: Conversation
metadata: {name: c}
spec:
  userSettingsName: ada
  initialUserMsg: hello
  idleTimeout: 90m
`

// If Parley wrote into a spec, or the API server changed a manifest, a GitOps tool would find a
// difference at every sync and revert it endlessly.
func TestGitOpsManifestsDoNotDrift(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, secretWith(ns, "llm", "k"))
	objects := manifests(t, ns, gitManifest)
	for _, o := range objects {
		applyAs(t, "kustomize-controller", o)
	}
	k := kubelet{t, ns, "c"}
	phases := []func(){
		func() { awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonScheduling) },
		func() { k.start(); awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning) },
		func() {
			k.end(`{"reason":"Completed"}`)
			awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
		},
	}
	for _, phase := range phases {
		phase()
		for _, o := range objects {
			noDrift(t, o)
		}
	}
	for _, o := range []client.Object{getConversation(t, ns, "c"), &v1alpha1.UserSettings{}} {
		if _, isSettings := o.(*v1alpha1.UserSettings); isSettings {
			if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "ada"}, o); err != nil {
				t.Fatal(err)
			}
		}
		if o.GetGeneration() != 1 {
			t.Errorf("the spec of %T was written %d times", o, o.GetGeneration())
		}
		for _, entry := range o.GetManagedFields() {
			if entry.Manager == FieldOwner && entry.Subresource != "status" {
				t.Errorf("the manager wrote into %T: %s", o, entry.FieldsV1.String())
			}
		}
	}
}

// noDrift applies a manifest again like Flux: first as a dry run, then for real. Nothing may
// change.
func noDrift(t *testing.T, manifest *unstructured.Unstructured) {
	t.Helper()
	live := manifest.DeepCopy()
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(manifest), live); err != nil {
			return err
		}
		for _, options := range [][]client.ApplyOption{{client.DryRunAll}, {}} {
			again := applyAs(t, "kustomize-controller", manifest, options...)
			if again.GetResourceVersion() != live.GetResourceVersion() {
				return errChanged{live, again}
			}
		}
		return nil
	})
}

type errChanged struct{ before, after *unstructured.Unstructured }

func (e errChanged) Error() string {
	before, _ := json.Marshal(e.before)
	after, _ := json.Marshal(e.after)
	return "applying it again changed\n" + string(before) + "\nto\n" + string(after)
}

func applyAs(t *testing.T, owner string, manifest *unstructured.Unstructured,
	options ...client.ApplyOption) *unstructured.Unstructured {
	t.Helper()
	o := manifest.DeepCopy()
	options = append(options, client.FieldOwner(owner), client.ForceOwnership)
	if err := env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), options...); err != nil {
		t.Fatal(err)
	}
	return o
}

func manifests(t *testing.T, namespace, text string) (objects []*unstructured.Unstructured) {
	t.Helper()
	for _, document := range strings.Split(text, "---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetNamespace(namespace)
		objects = append(objects, o)
	}
	return objects
}
