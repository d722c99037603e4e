package rest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	ac "github.com/parley-dev/parley/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

var conflictingManager = regexp.MustCompile(`^conflict with "([^"]*)"`)

// specField is the field of the spec that a conflict is about.
func specField(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, ".spec."), ".")
	name, _, _ = strings.Cut(name, "[")
	return name
}

// onlyDefaults says that the conflicts are about nothing that anybody has set: who creates an object without
// server-side apply owns the schema's defaults, though they never chose them.
func (p *settingsPlan) onlyDefaults(conflicts []metav1.StatusCause) bool {
	return !slices.ContainsFunc(conflicts, func(c metav1.StatusCause) bool { return !p.isDefault(specField(c.Field)) })
}

func (p *settingsPlan) isDefault(name string) bool {
	if !slices.Contains(defaulted, name) {
		return false
	}
	initial := ac.UserSettingsSpec()
	defaults(initial)
	if !reflect.DeepEqual(fieldsOf(p.live.Spec)[name], fieldsOf(initial)[name]) {
		return false
	}
	for _, owner := range ownersOf(p.live, name) {
		if owner.Operation == metav1.ManagedFieldsOperationApply {
			return false
		}
	}
	return !appliedByClient(p.live, name)
}

// appliedByClient says that somebody set a field with kubectl apply, or as it does, without server-side apply.
func appliedByClient(settings *v1alpha1.UserSettings, name string) bool {
	var applied struct {
		Spec map[string]json.RawMessage `json:"spec"`
	}
	if json.Unmarshal([]byte(settings.Annotations[corev1.LastAppliedConfigAnnotation]), &applied) != nil {
		return false
	}
	_, set := applied.Spec[name]
	return set
}

// conflictDetails name the fields that others have set, and who they are.
func (p *settingsPlan) conflictDetails(conflicts []metav1.StatusCause) []Detail {
	var details []Detail
	for _, c := range conflicts {
		if p.isDefault(specField(c.Field)) {
			continue
		}
		manager := "another manager"
		if match := conflictingManager.FindStringSubmatch(c.Message); match != nil {
			manager = fmt.Sprintf("%q", match[1])
		}
		details = append(details, managedElsewhere(requestLocation(c.Field, nil), manager))
	}
	return details
}

func managedElsewhere(loc location, manager string) Detail {
	return Detail{Type: "field_conflict", Loc: loc, Msg: "This field is managed by " + manager + ": change it there"}
}

// keptByOthers are the fields that did not become what the request asks for, since others hold what it would remove.
func (p *settingsPlan) keptByOthers(result *v1alpha1.UserSettings) []Detail {
	var details []Detail
	became, wanted := fieldsOf(result.Spec), fieldsOf(p.wanted)
	for _, name := range p.touched {
		if reflect.DeepEqual(became[name], wanted[name]) {
			continue
		}
		var managers []string
		for _, owner := range ownersOf(p.live, name) {
			managers = append(managers, fmt.Sprintf("%q", owner.Manager))
		}
		details = append(details, managedElsewhere(location{"body", requestName(name)}, withDefault(strings.Join(managers, ", "), "another manager")))
	}
	return details
}

// contested says that others own something of what the request is about, so that an apply might store a part of it.
func (p *settingsPlan) contested() bool {
	return slices.ContainsFunc(p.touched, func(name string) bool { return len(ownersOf(p.live, name)) > 0 })
}

// ownersOf are the others who own a field of the spec, or something in it.
func ownersOf(settings *v1alpha1.UserSettings, name string) []metav1.ManagedFieldsEntry {
	var owners []metav1.ManagedFieldsEntry
	for _, entry := range settings.ManagedFields {
		if entry.Subresource != "" || entry.FieldsV1 == nil || entry.Manager == FieldOwner && entry.Operation == metav1.ManagedFieldsOperationApply {
			continue
		}
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, owns := fields.Spec["f:"+name]; owns {
			owners = append(owners, entry)
		}
	}
	return owners
}

// fieldsOf are the fields of a spec in a form that can be compared.
func fieldsOf(spec any) map[string]any {
	var fields map[string]any
	if convert(spec, &fields) != nil {
		return nil
	}
	fields, _ = inOrder(fields).(map[string]any)
	return fields
}

// inOrder sorts lists, for those of entries with a key have no order of their own, and drops what is empty: it says
// the same as nothing.
func inOrder(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key := range value {
			if key == "args" {
				continue // the one list whose order means something
			}
			if value[key] = inOrder(value[key]); value[key] == nil {
				delete(value, key)
			}
		}
		if len(value) == 0 {
			return nil
		}
	case []any:
		if len(value) == 0 {
			return nil
		}
		for i := range value {
			value[i] = inOrder(value[i])
		}
		slices.SortFunc(value, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	return value
}

// secretsInTheWay are references that the webhook refuses: a Secret has the name of the user's key and is none.
func secretsInTheWay(err error, names listNames) []Detail {
	var details []Detail
	for _, cause := range causesOf(err, metav1.CauseTypeForbidden) {
		if !strings.HasSuffix(cause.Field, "Ref") {
			continue
		}
		msg := "A Secret that is not a user's key stands in the way"
		if name := secretName.FindStringSubmatch(cause.Message); name != nil {
			msg = "The Secret " + name[1] + " exists and is not a user's key: remove or rename it"
		}
		details = append(details, Detail{Type: "secret_conflict", Loc: requestLocation(cause.Field, names), Msg: msg})
	}
	return details
}

var secretName = regexp.MustCompile(`the Secret "([a-z0-9.-]+)"`)
