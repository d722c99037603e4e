package settings

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// plan is a prepared write of the settings in a request.
type plan struct {
	*edit
	live   *v1alpha1.UserSettings
	others []owner
	// before is the stored spec as JSON.
	before map[string]any
	// apply contains the fields that the facade applies. claim() selects them.
	apply map[string]any
	// force makes the write ignore conflicts with other managers. It is set only if every field in
	// conflict has its default value and no manager chose that value.
	force bool
}

func newPlan(live *v1alpha1.UserSettings, request []rest.Setting) (*plan, error) {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&live.Spec)
	if err != nil {
		return nil, fmt.Errorf("convert the stored settings: %w", err)
	}
	edit, err := newEdit(live, before, request)
	if err != nil {
		return nil, err
	}
	facade, others, err := allOwners(live)
	if err != nil {
		return nil, err
	}
	return &plan{edit: edit, live: live, others: others, before: before, apply: claim(edit.spec, before, facade.spec)}, nil
}

// contested reports whether other field managers own a setting of the request. If so, an apply may
// succeed but change only a part of the setting.
func (p *plan) contested() bool {
	return slices.ContainsFunc(p.touched, func(s rest.Setting) bool { return len(p.ownersOf(s)) > 0 })
}

func (p *plan) ownersOf(setting rest.Setting) (names []string) {
	for _, o := range p.others {
		if o.owns(setting.Spec) {
			names = append(names, fmt.Sprintf("%q", o.Manager))
		}
	}
	return names
}

// conflictDetails returns an error for each field in conflict. It skips fields that no field
// manager set: they have their default value.
func (p *plan) conflictDetails(conflicts []metav1.StatusCause) []rest.Detail {
	var details []rest.Detail
	seen := map[string]bool{}
	for _, conflict := range conflicts {
		if seen[conflict.Field] {
			continue // one detail names all managers of a field
		}
		seen[conflict.Field] = true
		at := slices.IndexFunc(p.touched, func(s rest.Setting) bool { return s.Spec == specField(conflict.Field) })
		if at >= 0 && isUnset(p.live, p.before[p.touched[at].Spec], p.touched[at], p.others) {
			continue
		}
		loc := rest.LocationOf(conflict.Field, nil)
		if at >= 0 {
			loc[1] = p.touched[at].Name
		}
		details = append(details, managedElsewhere(loc, p.managersOf(conflict.Field)))
	}
	return details
}

func specField(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, ".spec."), ".")
	name, _, _ = strings.Cut(name, "[")
	return name
}

func (p *plan) managersOf(path string) (names []string) {
	for _, o := range p.others {
		for owned := range o.spec.All() {
			if ".spec"+owned.String() == path {
				names = append(names, fmt.Sprintf("%q", o.Manager))
			}
		}
	}
	return names
}

// keptByOthers returns an error for each setting that does not have the requested value after the
// apply. Such a setting has parts that the request removes and that other field managers own.
func (p *plan) keptByOthers(became map[string]any) []rest.Detail {
	var details []rest.Detail
	for _, setting := range p.touched {
		wanted := p.spec[setting.Spec]
		if wanted == nil {
			wanted = setting.Default
		}
		if !same(setting.Spec, wanted, became[setting.Spec]) {
			details = append(details, managedElsewhere(rest.Location{"body", setting.Name}, p.ownersOf(setting)))
		}
	}
	return details
}

func managedElsewhere(loc rest.Location, managers []string) rest.Detail {
	manager := "another field manager"
	if len(managers) > 0 {
		manager = strings.Join(managers, ", ")
	}
	return rest.Detail{Type: "field_conflict", Loc: loc, Msg: "This field is managed by " + manager +
		": change the field at its source"}
}

// names returns the name of the list entry at an index.
func (p *plan) names(list string, index int) string {
	store, _ := p.spec["secretsStore"].(map[string]any)
	entries, _ := store[list].([]any)
	if index >= len(entries) {
		return ""
	}
	name, _ := entries[index].(map[string]any)[entryNames[list]].(string)
	return name
}
