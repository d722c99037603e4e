package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// helm runs the Helm that `make test-chart` built.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	program := os.Getenv("PARLEY_HELM")
	if program == "" {
		t.Skip("make test-chart runs this with a real Helm")
	}
	output, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", args[0], err, output)
	}
	return string(output)
}

func chartDir() string { return testenv.Path("config", "chart") }

// settings lists chart values, each with a kustomization that must build the same objects.
var settings = []struct {
	name      string
	values    string
	namespace string
	overlay   map[string]string
}{
	{"by default", `{}`, "parley-system", map[string]string{
		".": "resources: [CONFIG/default]",
	}},
	{"with a namespace and a prefix and an image", `{namePrefix: x-, image: {repository: example.com/p, tag: "2"}}`,
		"elsewhere", map[string]string{
			".": "resources: [CONFIG/default]\nnamespace: elsewhere\nnamePrefix: x-\nimages: [{name: parley, newName: " +
				"example.com/p, newTag: '2'}]",
		}},
	{"with all components",
		`{monitoring: {enabled: true}, ingress: {enabled: true}, gateway: {enabled: true}, certManager: {enabled: true}}`,
		"elsewhere", map[string]string{
			"below": "resources: [CONFIG/default]\nnamespace: elsewhere\n" +
				"components: [CONFIG/components/prometheus, CONFIG/components/ingress, " +
				"CONFIG/components/gateway]",
			".": "resources: [below]\ncomponents: [CONFIG/components/cert-manager]",
		}},
	{"without network policies", `{networkPolicy: {enabled: false}}`, "parley-system", map[string]string{
		".": "resources: [CONFIG/default]\npatches:\n- target: {kind: NetworkPolicy}\n  patch: '{$patch: delete, " +
			"apiVersion: v1, kind: any, metadata: {name: any}}'",
	}},
	{"without an archive", `{archive: {enabled: false}}`, "parley-system", map[string]string{
		".": "resources: [CONFIG/crd, CONFIG/operator]",
	}},
	{"with a sign-in", `{namePrefix: x-, signIn: {enabled: true, issuerURL: "https://id.example.com", ` +
		`clientID: me, cliClientID: cli, clientSecretName: mine, caConfigMapName: ours, usernameClaim: sub, ` +
		`externalURL: "https://p.example.com"}, facade: {podAnnotations: {a: "1"}}}`, "elsewhere", map[string]string{
		".": "resources: [CONFIG/default]\ncomponents: [CONFIG/components/signin]\nnamespace: elsewhere\n" +
			"namePrefix: x-\npatches:\n" +
			"- patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: parley-signin, namespace: parley-system}, " +
			"data: {OIDC_ISSUER_URL: \"https://id.example.com\", OIDC_CLIENT_ID: me, OIDC_CLI_CLIENT_ID: cli, " +
			"OIDC_CA_FILE: /run/parley/oidc-ca/ca.crt, OIDC_USERNAME_CLAIM: sub, EXTERNAL_URL: " +
			"\"https://p.example.com\"}}'\n" +
			"- target: {kind: Deployment, name: parley-facade}\n  patch: |-\n" +
			"    - {op: add, path: /spec/template/metadata/annotations, value: {a: \"1\"}}\n" +
			"    - {op: replace, path: /spec/template/spec/volumes/1/secret/secretName, value: mine}\n" +
			"    - {op: replace, path: /spec/template/spec/volumes/2/configMap/name, value: ours}\n" +
			"- target: {kind: Deployment, name: parley-manager}\n  patch: |-\n" +
			"    - {op: replace, path: /spec/template/spec/volumes/1/configMap/name, value: ours}",
	}},
	{"limited to two namespaces", `{namespaces: [team-a, team-b]}`, "parley-system", map[string]string{
		".": "resources: [CONFIG/samples/namespaced]",
	}},
}

func TestTheChartRendersTheKustomizeOutput(t *testing.T) {
	t.Parallel()
	for _, c := range settings {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			values := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(values, []byte(c.values), 0o600); err != nil {
				t.Fatal(err)
			}
			helm(t, "lint", "--strict", chartDir(), "--values", values)
			rendered, err := manifests.Decode([]byte(helm(t, "template", "release", chartDir(), "--namespace", c.namespace,
				"--values", values)))
			if err != nil {
				t.Fatal(err)
			}
			built := textsOf(t, kustomized(t, c.overlay))
			got := textsOf(t, rendered)
			for key, want := range built {
				if got[key] != want {
					t.Errorf("%s differs from the kustomize output:\n%s\nwant\n%s", key, got[key], want)
				}
			}
			for key := range got {
				if built[key] == "" {
					t.Errorf("%s is not in the kustomize output", key)
				}
			}
		})
	}
}

func kustomized(t *testing.T, overlay map[string]string) []*unstructured.Unstructured {
	t.Helper()
	root := t.TempDir()
	for name, text := range overlay {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		config, err := relative(dir, testenv.Path("config"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.ReplaceAll(text, "CONFIG", config)),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := manifests.Build(context.Background(), root, testenv.Path("bin", "k8s", "kubectl"), "kustomize")
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// textsOf returns each object as JSON. It omits the objects and fields in which Helm and kustomize
// differ.
func textsOf(t *testing.T, objects []*unstructured.Unstructured) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, object := range objects {
		switch object.GetKind() {
		case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			object.SetNamespace("") // kustomize does not know that these are cluster-scoped
		case "Namespace": // Helm creates it
			continue
		case "SessionClass": // Helm creates it in a hook
			continue
		case "Deployment": // Helm replaces the pods when the sign-in changes
			metadata := []string{"spec", "template", "metadata", "annotations"}
			unstructured.RemoveNestedField(object.Object, append(metadata, "checksum/signin")...)
			if annotations, _, _ := unstructured.NestedMap(object.Object, metadata...); len(annotations) == 0 {
				unstructured.RemoveNestedField(object.Object, metadata...)
			}
		case "CustomResourceDefinition", "PersistentVolumeClaim": // Helm keeps them
			annotations := object.GetAnnotations()
			delete(annotations, "helm.sh/resource-policy")
			if len(annotations) == 0 {
				annotations = nil
			}
			object.SetAnnotations(annotations)
		}
		text, err := json.MarshalIndent(object.Object, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		texts[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = string(text)
	}
	return texts
}

func TestUninstallingAReleaseKeepsTheCRDs(t *testing.T) {
	t.Parallel()
	rendered, err := manifests.Decode([]byte(helm(t, "template", "release", chartDir())))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, object := range rendered {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		count++
		if object.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s would be deleted", object.GetName())
		}
	}
	if count != 3 {
		t.Errorf("found %d CRDs in the templates", count)
	}
	for _, object := range rendered {
		if object.GetKind() == "SessionClass" && object.GetAnnotations()["helm.sh/hook"] == "" {
			t.Error("the class would be created before its CRD, and deleted with the release")
		}
	}
}
