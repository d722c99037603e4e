package rest_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// schema returns the properties of a type in openapi.yaml.
func schema(t *testing.T, name string) map[string]any {
	t.Helper()
	var document struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(rest.OpenAPI, &document); err != nil {
		t.Fatal(err)
	}
	return document.Components.Schemas[name].Properties
}

func names(of reflect.Type) (all []string) {
	for field := range of.Fields() {
		if field.Anonymous {
			all = append(all, names(field.Type)...)
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		all = append(all, name)
	}
	return all
}

func TestOpenAPISchemasMatchGoTypes(t *testing.T) {
	for name, of := range map[string]reflect.Type{
		"Settings": reflect.TypeFor[rest.Settings](), "StoredSettings": reflect.TypeFor[rest.StoredSettings](),
		"ConversationRequest":  reflect.TypeFor[rest.ConversationRequest](),
		"SuggestedTask":        reflect.TypeFor[rest.SuggestedTask](),
		"CreateMicroagent":     reflect.TypeFor[rest.CreateMicroagent](),
		"ConversationResponse": reflect.TypeFor[rest.ConversationResponse](),
		"ConversationTemplate": reflect.TypeFor[rest.ConversationTemplate](),
		"Conversation":         reflect.TypeFor[rest.Conversation](), "MCPConfig": reflect.TypeFor[rest.MCPConfig](),
		"MCPStdioServer": reflect.TypeFor[rest.MCPStdioServer](), "Detail": reflect.TypeFor[rest.Detail](),
		"Session": reflect.TypeFor[rest.Session](), "CostReport": reflect.TypeFor[rest.Usage](),
		"UsageLimit": reflect.TypeFor[rest.UsageLimit](), "UsageLine": reflect.TypeFor[rest.UsageLine](),
		"SignIn": reflect.TypeFor[rest.SignIn](), "SignInLink": reflect.TypeFor[rest.SignInLink](),
		"SignInConflict": reflect.TypeFor[rest.SignInConflict](), "SettingsName": reflect.TypeFor[rest.SettingsName](),
		"SettingsChoice": reflect.TypeFor[rest.SettingsChoice](), "OIDCOptions": reflect.TypeFor[rest.OIDCOptions](),
	} {
		documented := slices.Sorted(maps.Keys(schema(t, name)))
		if typed := slices.Sorted(slices.Values(names(of))); !slices.Equal(documented, typed) {
			t.Errorf("%s is %v in openapi.yaml and %v in Go", name, documented, typed)
		}
	}
}

func TestSettingsOfTheHTTPAPIMatchTheCRD(t *testing.T) {
	data, err := os.ReadFile(testenv.Path("config", "crd", "bases", "parley.dev_usersettings.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(data, crd); err != nil {
		t.Fatal(err)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	stored := names(reflect.TypeFor[rest.StoredSettings]())
	for _, setting := range rest.SettingsOf(&rest.Settings{}) {
		field, found := spec[setting.Spec]
		if !found {
			t.Errorf("%s is stored in %s, which the CRD does not have", setting.Name, setting.Spec)
			continue
		}
		var initial any
		if field.Default != nil {
			if err := json.Unmarshal(field.Default.Raw, &initial); err != nil {
				t.Fatal(err)
			}
		}
		if initial != setting.Default {
			t.Errorf("%s has the default %v, and %v in the CRD", setting.Name, setting.Default, initial)
		}
		if _, isKey := setting.Value.(*rest.Key); isKey && !slices.Contains(stored, setting.Name+"_set") {
			t.Errorf("StoredSettings does not say whether %s is set", setting.Name)
		}
		delete(spec, setting.Spec)
	}
	delete(spec, "sessionKeyRef")    // a user who changes it could sign in as another user
	delete(spec, "sessionClassName") // only administrators choose a user's class
	delete(spec, "owner")            // the manager, or a person who may impersonate the owner, sets it
	delete(spec, "inheritFrom")      // inheritance gives access to the keys of others
	if len(spec) > 0 {
		t.Errorf("these spec fields have no setting over HTTP: %v", slices.Sorted(maps.Keys(spec)))
	}
}

func TestSettingsSurviveARoundTripThroughJSON(t *testing.T) {
	for want, settings := range map[string]rest.Settings{
		`{}`: {},
		`{"language":"en","max_iterations":null,"llm_api_key":"k"}`: {Language: rest.Set("en"),
			MaxIterations: rest.Null[int32](), LLMAPIKey: rest.NewKey("k")},
		`{"confirmation_mode":false,"max_budget_per_task":4.5}`: {ConfirmationMode: rest.Set(false),
			MaxBudgetPerTask: rest.Set(json.Number("4.5"))},
		`{"secrets_store":{"custom_secrets":{"A":{"secret":"s"},"B":null}}}`: {SecretsStore: rest.Set(rest.UserSecrets{
			CustomSecrets: map[string]*rest.CustomSecret{"A": {Secret: rest.NewKey("s")}, "B": nil}})},
	} {
		sent, err := json.Marshal(settings)
		if err != nil || string(sent) != want {
			t.Errorf("sent %s, %v, want %s", sent, err, want)
		}
		decoded, details := rest.DecodeSettings(sent)
		if len(details) > 0 || !reflect.DeepEqual(*decoded, settings) {
			t.Errorf("%s is decoded as %+v, %v", sent, decoded, details)
		}
		var read rest.Settings
		if err := json.Unmarshal(sent, &read); err != nil || !reflect.DeepEqual(read, settings) {
			t.Errorf("%s is read as %+v, %v", sent, read, err)
		}
	}
}

func TestContractPackageHasNoServerOrClientDependencies(t *testing.T) {
	list := exec.Command("go", "list", "-deps", ".")
	output, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for dependency := range bytes.Lines(output) {
		for _, forbidden := range []string{"sigs.k8s.io/controller-runtime", "k8s.io/client-go", "github.com/prometheus",
			"github.com/parley-dev/parley/cmd"} {
			if strings.HasPrefix(string(dependency), forbidden) {
				t.Errorf("it depends on %s", dependency)
			}
		}
	}
}
