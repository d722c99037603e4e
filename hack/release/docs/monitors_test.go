package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/hack/test/testenv"
)

func built(t *testing.T, dir string) (objects []*unstructured.Unstructured) {
	t.Helper()
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		kubectl = testenv.Path("bin", "k8s", "kubectl")
	}
	output, err := exec.CommandContext(t.Context(), kubectl, "kustomize", testenv.Path("config", dir)).Output()
	if err != nil {
		t.Fatalf("build config/%s: %v", dir, err)
	}
	for document := range strings.SplitSeq(string(output), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	return objects
}

// Prometheus reports no error if a monitor selects nothing or names a missing port.
func TestTheMonitorsScrapeExistingPorts(t *testing.T) {
	installed := built(t, "default")
	ports := func(namespace, kind string, labels map[string]string) (names []string) {
		for _, o := range installed {
			have, path := o.GetLabels(), []string{"spec", "ports"}
			if kind == "Deployment" {
				have, _, _ = unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "labels")
				path = []string{"spec", "template", "spec", "containers"}
			}
			if o.GetKind() != kind || o.GetNamespace() != namespace || !containsAll(have, labels) {
				continue
			}
			items, _, _ := unstructured.NestedSlice(o.Object, path...)
			for _, item := range items {
				inner, nested, _ := unstructured.NestedSlice(item.(map[string]any), "ports")
				if !nested {
					inner = []any{item}
				}
				for _, port := range inner {
					name, _, _ := unstructured.NestedString(port.(map[string]any), "name")
					names = append(names, name)
				}
			}
		}
		return names
	}
	seen := 0
	for _, monitor := range built(t, "prometheus") {
		kind, field := "Service", "endpoints"
		switch monitor.GetKind() {
		case "PodMonitor":
			kind, field = "Deployment", "podMetricsEndpoints"
		case "ServiceMonitor":
		default:
			continue
		}
		seen++
		labels, _, _ := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
		endpoints, _, _ := unstructured.NestedSlice(monitor.Object, "spec", field)
		for _, endpoint := range endpoints {
			port, _, _ := unstructured.NestedString(endpoint.(map[string]any), "port")
			if have := ports(monitor.GetNamespace(), kind, labels); !slices.Contains(have, port) {
				t.Errorf("%s %s scrapes %s of objects labelled %v with ports %v", monitor.GetKind(), monitor.GetName(), port,
					labels, have)
			}
		}
	}
	if seen != 3 {
		t.Errorf("found %d monitors", seen)
	}
}

func containsAll(have, want map[string]string) bool {
	for key := range want {
		if have[key] != want[key] {
			return false
		}
	}
	return true
}
