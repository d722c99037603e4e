// Command chart generates the templates of the Helm chart from the kustomize output, so that
// config/ is the only source. kustomize writes marks in place of names, namespace and image;
// template expressions then replace the marks. Each component becomes a condition, and a table
// lists the fields that are chart values.
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

// Marks that kustomize writes in place of values that Helm sets.
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

// fileName returns the file name of an object's template.
func fileName(object *unstructured.Unstructured) string {
	name := strings.TrimPrefix(object.GetName(), markPrefix)
	name = strings.TrimPrefix(strings.TrimSuffix(name, ".parley.dev"), "parley-")
	return strings.ToLower(object.GetKind()) + "-" + name + ".yaml"
}

// part is a set of objects that a release contains if a condition holds. An empty condition always
// holds.
type part struct {
	when    condition
	objects []*unstructured.Unstructured
}

// condition is a template line before the objects. A template line with end follows the objects.
type condition string

const (
	always       condition = ""
	withCRDs     condition = "{{- if $.Values.crds.install }}"
	clusterWide  condition = "{{- if not $.Values.namespaces }}"
	namespaced   condition = "{{- if $.Values.namespaces }}"
	perNamespace condition = "{{- range $namespace := $.Values.namespaces }}"
	withPolicies condition = "{{- if $.Values.networkPolicy.enabled }}"
	// An existing class stays unchanged.
	firstClass condition = `{{- if and $.Values.sessionClass.create (not (and ($.Capabilities.APIVersions.Has ` +
		`"parley.dev/v1alpha1/SessionClass") (lookup "parley.dev/v1alpha1" "SessionClass" "" "default"))) }}`
)

// Conditions of objects that exist only with an archive.
const (
	withArchive       condition = "{{- if $.Values.archive.enabled }}"
	withArchiveVolume condition = "{{- if and $.Values.archive.enabled (not $.Values.archive.url) }}"
	archiveMonitor    condition = "{{- if and $.Values.monitoring.enabled $.Values.archive.enabled }}"
	archivePolicy     condition = "{{- if and $.Values.networkPolicy.enabled $.Values.archive.enabled }}"
)

// ofArchive returns the condition of an object that may belong to the archive. The archive's
// account and role always exist.
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

// components lists config/components, each with the value that enables it.
var components = []struct {
	name string
	when condition
}{
	{"prometheus", "{{- if $.Values.monitoring.enabled }}"},
	{"ingress", "{{- if $.Values.ingress.enabled }}"},
	{"gateway", "{{- if $.Values.gateway.enabled }}"},
}

// buildAll builds everything, with and without each component, and groups the objects by the
// component that adds them.
func buildAll(ctx context.Context, config string, kustomize []string) ([]part, error) {
	dir, err := os.MkdirTemp("", "parley-chart-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := builder{ctx: ctx, config: config, dir: dir, kustomize: kustomize}
	base := b.overlay("base", "", "default")
	everything := b.objects(base)
	without := func(objects, known []*unstructured.Unstructured) []*unstructured.Unstructured {
		names := map[string]bool{}
		for _, object := range known {
			names[fileName(object)] = true
		}
		return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return names[fileName(o)] })
	}
	inNamespaces := b.objects(b.above("namespaced", "base", "components/namespaced"))
	parts := []part{
		{clusterWide, without(everything, inNamespaces)},
		{namespaced, without(inNamespaces, everything)},
		{perNamespace, b.objects(b.tenant())},
		{firstClass, b.objects(filepath.Join(config, "classes"))},
		{"{{- if $.Values.certManager.enabled }}", without(b.objects(b.above("cert-manager", "base",
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
			continue // Helm creates it, or it exists
		case "CustomResourceDefinition":
			when = withCRDs
		case "NetworkPolicy":
			when = withPolicies
		}
		parts = append(parts, part{when, []*unstructured.Unstructured{object}})
	}
	return parts, b.err
}

// builder writes kustomizations and builds them. It keeps the first error.
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

// overlay writes a kustomization with marks for names, namespace and image, and maybe a component.
func (b *builder) overlay(name, component string, resources ...string) string {
	lines := []string{
		"namePrefix: " + markPrefix, "namespace: " + markNamespace,
		"images: [{name: parley, newName: " + markImage + ", newTag: mark}]",
	}
	return b.write(name, lines, component, resources)
}

// above writes a kustomization that adds a component to the kustomization below. Such a component
// needs names that already contain the marks.
func (b *builder) above(name, below, component string) string {
	return b.write(name, []string{"resources: [../" + below + "]"}, component, nil)
}

// tenant writes the kustomization of the objects in each watched namespace. The subjects of their
// RoleBindings are in another namespace, so kustomize does not write marks into the subjects. The
// function template does that.
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

// relative returns a relative path, because kustomize accepts no other.
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
