package settings

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// The type more adds three settings to rest.Settings, one field for each. A new setting needs a
// field in rest.Settings and a field in the CRD, and no other code.
type more struct {
	rest.Settings
	Colour  rest.Field[string] `json:"colour" spec:"favouriteColour"`
	Quiet   rest.Field[bool]   `json:"quiet" spec:"quietHours" default:"true"`
	DoorKey rest.Key           `json:"door_key" spec:"doorKeyRef"`
}

func jsonOf(t *testing.T, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func decoded(t *testing.T, body string) ([]rest.Setting, []rest.Detail) {
	t.Helper()
	table := &more{}
	return rest.SettingsOf(table), rest.DecodeTable([]byte(body), table)
}

func managedBy(manager, spec string) metav1.ManagedFieldsEntry {
	fields := &metav1.FieldsV1{}
	fields.SetRawBytes([]byte(`{"f:spec": ` + spec + `}`))
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: fields}
}

func TestEveryKeyHasASecretThatTheFacadeMayWrite(t *testing.T) {
	for _, setting := range rest.SettingsOf(&rest.Settings{}) {
		if _, isKey := setting.Value.(*rest.Key); !isKey {
			continue
		}
		name := v1alpha1.ManagedName("ada", managedKind(setting))
		if !v1alpha1.IsManagedSecretName(name, v1alpha1.LabelUserSettings, "ada") {
			t.Errorf("%s would be stored in %s, which is not the name of a managed Secret", setting.Name, name)
		}
	}
}

func TestANewSettingNeedsOnlyAStructField(t *testing.T) {
	live := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Name: "ada"}}
	live.ManagedFields = []metav1.ManagedFieldsEntry{managedBy("git", `{"f:favouriteColour": {}}`),
		managedBy(cluster.FieldOwner, `{"f:quietHours": {}}`)}
	before := map[string]any{"favouriteColour": "red", "quietHours": false}

	t.Run("it is decoded and validated", func(t *testing.T) {
		_, details := decoded(t, `{"colour": 5, "quiet": "maybe", "door_key": []}`)
		if got := jsonOf(t, details); got != `[{"type":"string_type","loc":["body","colour"],"msg":"Input should be a `+
			`valid string"},`+
			`{"type":"bool_parsing","loc":["body","quiet"],"msg":"Input should be a valid boolean, unable to interpret input"},`+
			`{"type":"string_type","loc":["body","door_key"],"msg":"Input should be a valid string"}]` {
			t.Errorf("errors %s", got)
		}
	})
	for name, c := range map[string]struct{ body, wanted, applied, keys string }{
		"nothing": {`{}`, `{"favouriteColour":"red","quietHours":false}`, `{"quietHours":false}`, `null`},
		"a value": {`{"colour": "blue"}`, `{"favouriteColour":"blue","quietHours":false}`,
			`{"favouriteColour":"blue","quietHours":false}`, `null`},
		"the same as before": {`{"colour": "red"}`, `{"favouriteColour":"red","quietHours":false}`, `{"quietHours":false}`,
			`null`},
		"back to the default": {`{"quiet": null}`, `{"favouriteColour":"red"}`, `{}`, `null`},
		"a key": {`{"door_key": "k"}`, `{"doorKeyRef":{"key":"key","name":"ada-door-key"},` +
			`"favouriteColour":"red","quietHours":false}`, `{"doorKeyRef":{"key":"key","name":"ada-door-key"},` +
			`"quietHours":false}`, `[{"Secret":"ada-door-key","Value":"k"}]`},
		"an existing key": {`{"door_key": null}`, `{"favouriteColour":"red","quietHours":false}`,
			`{"quietHours":false}`, `null`},
		"a key that is cleared": {`{"door_key": ""}`, `{"favouriteColour":"red","quietHours":false}`, `{"quietHours":false}`,
			`null`},
	} {
		t.Run("it is stored and owned: "+name, func(t *testing.T) {
			request, details := decoded(t, c.body)
			edit, err := newEdit(live, before, request)
			if err != nil || len(details) > 0 {
				t.Fatal(err, details)
			}
			facade, _, err := allOwners(live)
			if err != nil {
				t.Fatal(err)
			}
			if wanted, applied, keys := jsonOf(t, edit.spec), jsonOf(t, claim(edit.spec, before, facade.spec)),
				jsonOf(t, edit.keys); wanted != c.wanted || applied != c.applied || keys != c.keys {
				t.Errorf("wanted %s, applied %s, keys %s", wanted, applied, keys)
			}
		})
	}
	t.Run("a conflict names the manager", func(t *testing.T) {
		request, _ := decoded(t, `{"colour": "blue", "quiet": null}`)
		edit, err := newEdit(live, before, request)
		if err != nil {
			t.Fatal(err)
		}
		_, others, err := allOwners(live)
		if err != nil {
			t.Fatal(err)
		}
		p := &plan{edit: edit, live: live, others: others, before: before}
		conflict := []metav1.StatusCause{{Type: metav1.CauseTypeFieldManagerConflict, Field: ".spec.favouriteColour"}}
		want := `[{"type":"field_conflict","loc":["body","colour"],"msg":"This field is managed by \"git\": change the ` +
			`field at its source"}]`
		if got := jsonOf(t, p.conflictDetails(conflict)); got != want {
			t.Errorf("the conflict is reported as %s", got)
		}
		if got := jsonOf(t, p.keptByOthers(map[string]any{"favouriteColour": "red", "quietHours": true})); got != want {
			t.Errorf("the kept field is reported as %s", got)
		}
	})
	t.Run("it is shown", func(t *testing.T) {
		stored := map[string]any{"favouriteColour": "red", "doorKeyRef": map[string]any{"name": "ada-door-key", "key": "key"}}
		shown := viewTable(stored, &live.Spec, rest.SettingsOf(&more{}))
		if shown["colour"] != "red" || shown["quiet"] != true || shown["door_key"] != nil || shown["door_key_set"] != true ||
			shown["language"] != nil {
			t.Errorf("shown as %v", shown)
		}
	})
}
