package v1alpha1_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestEveryFieldIsImmutableOrBelongsToTheLifecycle(t *testing.T) {
	data, err := os.ReadFile(testenv.Path("config", "crd", "bases", "parley.dev_conversations.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(data, crd); err != nil {
		t.Fatal(err)
	}
	fixed, schema := map[string]bool{}, crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	for name, field := range schema.Properties {
		for _, rule := range field.XValidations {
			fixed[name] = fixed[name] || strings.Contains(rule.Message, "cannot be changed")
		}
	}
	full := reflect.New(reflect.TypeFor[v1alpha1.ConversationSpec]()).Elem()
	for _, field := range full.Fields() {
		switch field.Kind() {
		case reflect.Pointer:
			field.Set(reflect.New(field.Type().Elem()))
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		case reflect.Bool:
			field.SetBool(true)
		case reflect.String:
			field.SetString("x")
		default:
			t.Fatalf("a field has the kind %s", field.Kind())
		}
	}
	spec := full.Interface().(v1alpha1.ConversationSpec)
	for field, value := range reflect.ValueOf(spec.Immutable()).Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if immutable := !value.IsZero(); immutable != fixed[name] {
			t.Errorf("%s is immutable: %t, and the schema fixes its value: %t", name, immutable, fixed[name])
		}
	}
}

func TestTheOrderOfToolServersIsIgnored(t *testing.T) {
	spec := func(servers ...v1alpha1.MCPStdioServer) *v1alpha1.ConversationSpec {
		return &v1alpha1.ConversationSpec{MCPConfig: &v1alpha1.MCPConfig{StdioServers: servers}}
	}
	a, b := v1alpha1.MCPStdioServer{Name: "a", Args: []string{"1", "2"}}, v1alpha1.MCPStdioServer{Name: "b"}
	one, other := spec(b, a), spec(a, b)
	if names := one.Differences(other); len(names) > 0 {
		t.Errorf("after reordering, %v differ", names)
	}
	if one.MCPConfig.StdioServers[0].Name != "b" {
		t.Error("Differences changed the order")
	}
	a.Args = []string{"2", "1"}
	for name, changed := range map[string]*v1alpha1.ConversationSpec{"other arguments": spec(a, b),
		"one server less": spec(b), "no tools": {}} {
		if names := one.Differences(changed); len(names) != 1 || names[0] != "mcpConfig" {
			t.Errorf("%s: %v differ", name, names)
		}
	}
}
