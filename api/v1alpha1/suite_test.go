package v1alpha1_test

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) { testenv.Main(m, func(e *testenv.Env) { env = e }) }

// object returns an object with a spec in YAML. The spec can have fields and values that the Go
// types lack.
func object(t *testing.T, kind, namespace, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	o.SetNamespace(namespace)
	o.SetGenerateName("t-")
	setSpec(t, o, spec)
	return o
}

func setSpec(t *testing.T, o *unstructured.Unstructured, spec string) {
	t.Helper()
	if spec == "" {
		return
	}
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatalf("the test's spec is not valid YAML: %v", err)
	}
	o.Object["spec"] = fields
}

// create fails on unknown fields, so that no test passes because of a misspelt field.
func create(t *testing.T, o client.Object) error {
	t.Helper()
	return env.Client.Create(t.Context(), o, client.FieldValidation("Strict"))
}

func mustCreate(t *testing.T, kind, namespace, spec string) *unstructured.Unstructured {
	t.Helper()
	o := object(t, kind, namespace, spec)
	if err := create(t, o); err != nil {
		t.Fatalf("create: %v", err)
	}
	return o
}

// specCase is a spec that the API server accepts or rejects.
type specCase struct {
	name string
	spec string
	// field is the path of the rejected field; empty if the spec is accepted.
	field   string
	message string
}

func runSpecCases(t *testing.T, kind string, cases []specCase) {
	t.Helper()
	namespace := env.Namespace(t, nil)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			expect(t, create(t, object(t, kind, namespace, c.spec)), c.field, c.message)
		})
	}
}

func expect(t *testing.T, err error, field, message string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Fatalf("should be accepted: %v", err)
		}
		return
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) || status.Status().Details == nil {
		t.Fatalf("should be rejected as invalid for %s, got: %v", field, err)
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == field && strings.Contains(cause.Message, message) {
			return
		}
	}
	t.Fatalf("the rejection should name %s and say %q, got: %v", field, message, err)
}

func long(n int) string { return strings.Repeat("x", n) }

// listOf returns a YAML list of n items. In each item, a different name replaces %d: na, naa, naaa
// and so on.
func listOf(n int, item string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = strings.ReplaceAll(item, "%d", "n"+strings.Repeat("a", i+1))
	}
	return "[" + strings.Join(items, ", ") + "]"
}
