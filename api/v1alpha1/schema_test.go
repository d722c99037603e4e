package v1alpha1_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/discovery"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func eachField(path string, schema *apiextensionsv1.JSONSchemaProps, visit func(string,
	*apiextensionsv1.JSONSchemaProps)) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		visit(path+"."+name, &property)
		eachField(path+"."+name, &property, visit)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		visit(path+"[]", schema.Items.Schema)
		eachField(path+"[]", schema.Items.Schema, visit)
	}
}

func eachKind(t *testing.T, test func(*testing.T, *apiextensionsv1.JSONSchemaProps)) {
	t.Helper()
	if len(env.CRDs) != 3 {
		t.Fatalf("there should be three kinds, got %d", len(env.CRDs))
	}
	for _, crd := range env.CRDs {
		t.Run(crd.Spec.Names.Kind, func(t *testing.T) { test(t, crd.Spec.Versions[0].Schema.OpenAPIV3Schema) })
	}
}

func TestEveryFieldIsDocumentedForKubectlExplain(t *testing.T) {
	eachKind(t, func(t *testing.T, schema *apiextensionsv1.JSONSchemaProps) {
		eachField("", schema, func(path string, field *apiextensionsv1.JSONSchemaProps) {
			isItem := path[len(path)-1] == ']'
			if field.Description == "" && !isItem && path != ".metadata" {
				t.Errorf("%s has no description", path)
			}
		})
	})
}

func TestEveryStringAndListIsBounded(t *testing.T) {
	eachKind(t, func(t *testing.T, schema *apiextensionsv1.JSONSchemaProps) {
		for _, part := range []string{"spec", "status"} {
			root := schema.Properties[part]
			eachField("."+part, &root, func(path string, field *apiextensionsv1.JSONSchemaProps) {
				switch {
				case strings.Contains(path, ".tolerations[]") || strings.Contains(path, ".namespaceSelector."):
					// Tolerations and label selectors need no bounds. Kubernetes defines these
					// types, and only administrators write the fields.
				case field.Type == "string" && field.MaxLength == nil && len(field.Enum) == 0 && field.Format != "date-time":
					t.Errorf("%s has no maxLength", path)
				case field.Type == "array" && field.MaxItems == nil:
					t.Errorf("%s has no maxItems", path)
				case field.Type == "number":
					t.Errorf("%s is a float", path)
				}
			})
		}
	})
}

func TestTheKindsAreFoundByShortNameAndCategory(t *testing.T) {
	client, err := discovery.NewDiscoveryClientForConfig(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := client.ServerResourcesForGroupVersion(v1alpha1.SchemeGroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	shortNames := map[string]string{"conversations": "conv", "usersettings": "uset"}
	for _, resource := range resources.APIResources {
		shortName, isKind := shortNames[resource.Name]
		if !isKind {
			continue
		}
		delete(shortNames, resource.Name)
		if !slices.Equal(resource.ShortNames, []string{shortName}) || !slices.Equal(resource.Categories, []string{"parley"}) {
			t.Errorf("%s has the short names %v and categories %v", resource.Name, resource.ShortNames, resource.Categories)
		}
	}
	if len(shortNames) != 0 {
		t.Errorf("the API server does not serve all kinds, missing: %v", shortNames)
	}
}
