package cluster

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/objecttest"
)

const (
	// maxPart is more than the API server stores in the metadata, the spec or the status.
	maxPart = 2 << 20
	// maxCached is the maximum size of a cached object as JSON. Most of it is the list of revoked
	// sign-ins, the repositories, and the status, which only the manager writes.
	maxCached = 64 << 10
)

// Every object that the API server can store has a bounded size in the cache, and keeps the fields
// that responses and checks use.
func FuzzStrip(f *testing.F) {
	conversations, settings := schemaOf(f, "conversations"), schemaOf(f, "usersettings")
	for _, choices := range []string{"", "\x01\x02\x03", "zq9 8b", "\x07\x06\x04\x03", "\x05", "\x06\x07\x02\x04\x05"} {
		f.Add([]byte(choices), true)
		f.Add([]byte(choices), false)
	}
	f.Fuzz(func(t *testing.T, choices []byte, isConversation bool) {
		if isConversation {
			before := &v1alpha1.Conversation{}
			fill(before, &before.ObjectMeta, choices, conversations)
			checkConversation(t, before, stripped(t, before))
			return
		}
		before := &v1alpha1.UserSettings{}
		fill(before, &before.ObjectMeta, choices, settings)
		checkSettings(t, before, stripped(t, before))
	})
}

// fill fills an object. The texts and lists are not longer than its schema allows.
func fill(object any, metadata *metav1.ObjectMeta, choices []byte, schema *apiextensionsv1.JSONSchemaProps) {
	objecttest.Fill(metadata, choices, maxPart, v1alpha1.AnnotationTitle, AnnotationCreatedAt,
		v1alpha1.AnnotationIncomplete, v1alpha1.AnnotationRequestedBy, v1alpha1.AnnotationSettingsStored,
		v1alpha1.AnnotationEndedSignIns)
	metadata.Name, metadata.Namespace, metadata.UID, metadata.ResourceVersion = "n", "ns", "uid", "1"
	metadata.SetSelfLink("")
	for _, part := range []string{"Spec", "Status"} {
		objecttest.Fill(reflect.ValueOf(object).Elem().FieldByName(part).Addr().Interface(), choices, maxPart)
	}
	shorten(reflect.ValueOf(object), schema)
}

func schemaOf(f *testing.F, kind string) *apiextensionsv1.JSONSchemaProps {
	f.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "crd", "bases", "parley.dev_"+kind+".yaml"))
	if err != nil {
		f.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		f.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// shorten truncates the texts and lists of a value to the lengths that the schema allows. A field
// without a limit in the schema keeps its length.
func shorten(value reflect.Value, schema *apiextensionsv1.JSONSchemaProps) {
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			shorten(value.Elem(), schema)
		}
	case reflect.String:
		if len(schema.Enum) > 0 {
			value.SetString(strings.Trim(string(schema.Enum[0].Raw), `"`))
		} else if schema.MaxLength != nil {
			value.SetString(firstRunes(value.String(), *schema.MaxLength))
		}
	case reflect.Slice:
		if schema.MaxItems != nil {
			value.SetLen(min(value.Len(), int(*schema.MaxItems)))
		}
		for i := range value.Len() {
			shorten(value.Index(i), schema.Items.Schema)
		}
	case reflect.Struct:
		for i := range value.NumField() {
			name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			if property, found := schema.Properties[name]; found {
				shorten(value.Field(i), &property)
			}
		}
	}
}

func firstRunes(text string, n int64) string {
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}

func stripped[O interface {
	comparable
	client.Object
}](t *testing.T, before O) O {
	t.Helper()
	after := before.DeepCopyObject().(O)
	if _, err := strip(after); err != nil {
		t.Fatal(err)
	}
	held := jsonOf(t, after)
	if len(held) > maxCached {
		t.Errorf("%T has %d bytes in the cache", after, len(held))
	}
	if after.GetUID() != before.GetUID() || after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("%T lost its identity", after)
	}
	if _, err := strip(after); err != nil || jsonOf(t, after) != held {
		t.Errorf("stripping %T again changes it: %v", after, err)
	}
	return after
}

func checkConversation(t *testing.T, before, after *v1alpha1.Conversation) {
	t.Helper()
	spec, status := before.Spec.DeepCopy(), before.Status.DeepCopy()
	spec.ImageURLs, spec.Images, spec.ConversationInstructions, spec.MCPConfig = nil, nil, nil, nil
	if spec.InitialUserMsg != nil {
		*spec.InitialUserMsg = firstLine(*spec.InitialUserMsg)
	}
	for i := range status.Conditions {
		status.Conditions[i].Message = ""
	}
	if !reflect.DeepEqual(*spec, after.Spec) || !reflect.DeepEqual(*status, after.Status) ||
		after.GitOpsManager(SuspendField) != before.GitOpsManager(SuspendField) ||
		after.GitOpsManager(RestartField) != before.GitOpsManager(RestartField) {
		t.Errorf("the facade needs a field that is gone: %s", jsonOf(t, after))
	}
	checkAnnotations(t, before, after, v1alpha1.AnnotationTitle, AnnotationCreatedAt, v1alpha1.AnnotationIncomplete,
		v1alpha1.AnnotationRequestedBy)
}

func checkSettings(t *testing.T, before, after *v1alpha1.UserSettings) {
	t.Helper()
	spec := before.Spec.DeepCopy()
	spec.MCPConfig = nil
	if spec.SecretsStore != nil {
		spec.SecretsStore.CustomSecrets = nil
	}
	if !reflect.DeepEqual(*spec, after.Spec) || after.Status.SessionKeyHash != before.Status.SessionKeyHash {
		t.Errorf("the facade needs a field that is gone: %s", jsonOf(t, after))
	}
	checkAnnotations(t, before, after, v1alpha1.AnnotationSettingsStored, v1alpha1.AnnotationEndedSignIns)
}

// checkAnnotations checks that short annotations are kept completely, and that the ends of long
// annotations are kept.
func checkAnnotations(t *testing.T, before, after client.Object, names ...string) {
	t.Helper()
	for _, name := range names {
		value, kept := before.GetAnnotations()[name], after.GetAnnotations()[name]
		if !strings.HasSuffix(value, kept) || len(kept) < min(len(value), 60) {
			t.Errorf("of %d bytes of the annotation %s, %d are kept", len(value), name, len(kept))
		}
	}
}
