// Command chart generates the templates of the Helm chart from the kustomizations in config/.
// kustomize writes marks for the name prefix, the namespace and the image. This program replaces
// the marks and all configurable fields with template expressions. An {{ if }} encloses each object
// of an optional component.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/parley-dev/parley/hack/release/manifests"
)

// Marks in the kustomize output. In the templates, values of the release replace them.
const (
	markPrefix    = "xprefixx-"
	markNamespace = "xnamespacex"
	markTenant    = "xtenantx"
	markImage     = "ximagex"
)

func main() {
	config := flag.String("config", "config", "directory of the kustomizations")
	out := flag.String("out", "config/chart/templates", "output directory; its generated files are replaced")
	kustomize := flag.String("kustomize", "kustomize build", "command that builds a kustomization")
	flag.Parse()
	if err := run(context.Background(), *config, *out, strings.Fields(*kustomize)); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, config, out string, kustomize []string) error {
	built, err := buildAll(ctx, config, kustomize)
	if err != nil {
		return err
	}
	files := map[string]string{}
	for _, part := range built {
		for _, object := range part.objects {
			name := fileName(object)
			if _, twice := files[name]; twice {
				return fmt.Errorf("two objects have the same file name %s", name)
			}
			if files[name], err = template(object, ofArchive(object, part.when)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	old, err := filepath.Glob(filepath.Join(out, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(out, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func fileName(object *unstructured.Unstructured) string {
	name := strings.TrimPrefix(object.GetName(), markPrefix)
	name = strings.TrimPrefix(strings.TrimSuffix(name, ".parley.dev"), "parley-")
	return strings.ToLower(object.GetKind()) + "-" + name + ".yaml"
}

// part is a set of objects with the same condition in the templates.
type part struct {
	when    condition
	objects []*unstructured.Unstructured
}

// condition is the template line before an object. The line {{- end }} follows the object.
type condition string

const (
	always       condition = ""
	withCRDs     condition = "{{- if $.Values.crds.install }}"
	clusterWide  condition = "{{- if not $.Values.namespaces }}"
	namespaced   condition = "{{- if $.Values.namespaces }}"
	perNamespace condition = "{{- range $namespace := $.Values.namespaces }}"
	withPolicies condition = "{{- if $.Values.networkPolicy.enabled }}"
	// The chart creates the default SessionClass only if the cluster does not have it yet.
	firstClass condition = `{{- if and $.Values.sessionClass.create (not (and ($.Capabilities.APIVersions.Has ` +
		`"parley.dev/v1alpha1/SessionClass") (lookup "parley.dev/v1alpha1" "SessionClass" "" "default"))) }}`
)

const (
	withArchive       condition = "{{- if $.Values.archive.enabled }}"
	withoutBucket     condition = "{{- if not $.Values.archive.url }}"
	withArchiveVolume condition = "{{- if and $.Values.archive.enabled (not $.Values.archive.url) }}"
	archiveMonitor    condition = "{{- if and $.Values.monitoring.enabled $.Values.archive.enabled }}"
	archivePolicy     condition = "{{- if and $.Values.networkPolicy.enabled $.Values.archive.enabled }}"
)

// ofArchive returns the condition of an object. The archive's Deployment, Service and similar
// objects exist only if the archive is enabled. All other objects, such as the archive's
// ServiceAccount and role, keep the given condition.
func ofArchive(object *unstructured.Unstructured, when condition) condition {
	if object.GetName() != markPrefix+"parley-archive" {
		return when
	}
	switch object.GetKind() {
	case "Deployment", "Service":
		return withArchive
	case "PersistentVolumeClaim":
		return withArchiveVolume
	case "PodMonitor":
		return archiveMonitor
	case "NetworkPolicy":
		return archivePolicy
	}
	return when
}

// components lists the optional components with the conditions of their objects.
var components = []struct {
	name string
	when condition
}{
	{"prometheus", "{{- if $.Values.monitoring.enabled }}"},
	{"ingress", "{{- if $.Values.ingress.enabled }}"},
	{"gateway", "{{- if $.Values.gateway.enabled }}"},
}

// buildAll builds config/ with and without each component. It groups the objects by the component
// that adds them.
func buildAll(ctx context.Context, config string, kustomize []string) ([]part, error) {
	dir, err := os.MkdirTemp("", "parley-chart-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := builder{ctx: ctx, config: config, dir: dir, kustomize: kustomize}
	base := b.overlay("base", "components/signin", "default")
	everything := b.objects(base)
	without := func(objects, known []*unstructured.Unstructured) []*unstructured.Unstructured {
		names := map[string]bool{}
		for _, object := range known {
			names[fileName(object)] = true
		}
		return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return names[fileName(o)] })
	}
	inNamespaces := b.objects(b.withComponent("namespaced", "base", "components/namespaced"))
	parts := []part{
		{clusterWide, without(everything, inNamespaces)},
		{namespaced, without(inNamespaces, everything)},
		{perNamespace, b.objects(b.tenant())},
		{firstClass, b.objects(filepath.Join(config, "classes"))},
		{"{{- if $.Values.certManager.enabled }}", without(b.objects(b.withComponent("cert-manager", "base",
			"components/cert-manager")), everything)},
	}
	for _, component := range components {
		parts = append(parts, part{component.when, without(b.objects(b.overlay(component.name, "components/"+component.name,
			"default")), everything)})
	}
	for _, object := range without(everything, parts[0].objects) {
		when := always
		switch object.GetKind() {
		case "Namespace":
			continue // Helm creates the namespace, or it exists
		case "CustomResourceDefinition":
			when = withCRDs
		case "NetworkPolicy":
			when = withPolicies
		case "ConfigMap":
			if object.GetName() == markPrefix+"parley-signin" {
				when = withSignIn
			}
		}
		parts = append(parts, part{when, []*unstructured.Unstructured{object}})
	}
	return parts, b.err
}

// builder writes kustomizations and builds them. After the first error it does nothing.
type builder struct {
	ctx         context.Context
	config, dir string
	kustomize   []string
	err         error
}

func (b *builder) objects(dir string) []*unstructured.Unstructured {
	if b.err != nil {
		return nil
	}
	var objects []*unstructured.Unstructured
	objects, b.err = manifests.Build(b.ctx, dir, b.kustomize...)
	return objects
}

// overlay writes a kustomization that sets marks for prefix, namespace and image. If component is
// empty, the kustomization contains no component.
func (b *builder) overlay(name, component string, resources ...string) string {
	lines := []string{
		"namePrefix: " + markPrefix, "namespace: " + markNamespace,
		"images: [{name: parley, newName: " + markImage + ", newTag: mark}]",
	}
	return b.write(name, lines, component, resources)
}

// withComponent writes a kustomization that adds a component to an existing kustomization. The
// component copies names of objects into other fields. It must therefore come after the existing
// kustomization, which adds the marks to these names.
func (b *builder) withComponent(name, below, component string) string {
	return b.write(name, []string{"resources: [../" + below + "]"}, component, nil)
}

// tenant writes a kustomization of the objects that each watched namespace needs. kustomize adds no
// marks to their references to Parley's namespace, so the function template() adds these marks
// later.
func (b *builder) tenant() string {
	return b.write("tenant", []string{"namespace: " + markTenant}, "", []string{"rbac/namespace"})
}

func (b *builder) write(name string, lines []string, component string, resources []string) string {
	dir := filepath.Join(b.dir, name)
	if b.err != nil {
		return dir
	}
	if b.err = os.MkdirAll(dir, 0o755); b.err != nil {
		return dir
	}
	config, err := relative(dir, b.config)
	if err != nil {
		b.err = err
		return dir
	}
	if len(resources) > 0 {
		lines = append(lines, "resources:")
	}
	for _, resource := range resources {
		lines = append(lines, "- "+config+"/"+resource)
	}
	if component != "" {
		lines = append(lines, "components: ["+config+"/"+component+"]")
	}
	b.err = os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.Join(lines, "\n")+"\n"), 0o644)
	return dir
}

// relative returns a path relative to a kustomization, because kustomize accepts no absolute path.
func relative(from, to string) (string, error) {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return "", err
	}
	if to, err = filepath.Abs(to); err != nil {
		return "", err
	}
	if to, err = filepath.EvalSymlinks(to); err != nil {
		return "", err
	}
	path, err := filepath.Rel(from, to)
	return filepath.ToSlash(path), err
}
