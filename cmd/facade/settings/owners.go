package settings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// entryNames maps each list with named entries to the field that contains the name of an entry. All
// other lists are atomic.
var entryNames = map[string]string{
	"providerTokens": "provider", "customSecrets": "name", "sseServers": "url", "shttpServers": "url",
	"stdioServers": "name", "env": "name",
}

// owner is a field manager, and the set of spec fields that it owns.
type owner struct {
	metav1.ManagedFieldsEntry
	spec *fieldpath.Set
}

// owns reports whether the field manager owns a field of the spec or a part of that field.
func (o owner) owns(field string) bool { return holds(o.spec, step(field)) }

// allOwners returns the facade and the other field managers. It returns the facade even if the
// facade owns no field of the spec.
func allOwners(settings *v1alpha1.UserSettings) (facade owner, others []owner, err error) {
	facade.spec = fieldpath.NewSet()
	for _, entry := range settings.ManagedFields {
		if entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		fields := fieldpath.NewSet()
		if err := fields.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
			return facade, nil, fmt.Errorf("parse managedFields of %s: %w", entry.Manager, err)
		}
		o := owner{entry, fields.WithPrefix(step("spec"))}
		if entry.Manager == cluster.FieldOwner && entry.Operation == metav1.ManagedFieldsOperationApply {
			facade = o
		} else {
			others = append(others, o)
		}
	}
	return facade, others, nil
}

func step(field string) fieldpath.PathElement { return fieldpath.PathElement{FieldName: &field} }

func holds(set *fieldpath.Set, at fieldpath.PathElement) bool {
	return set.Members.Has(at) || !set.WithPrefix(at).Empty()
}

// claim returns the part of the wanted spec to apply: the fields that the facade already owns, and
// the fields that change. Clients often post back a whole response. If the facade applied all of
// it, the facade would become a second owner of fields that belong to another field manager. If
// that manager later removed such a field, the field would keep its value.
func claim(wanted, live map[string]any, owned *fieldpath.Set) map[string]any {
	claimed := map[string]any{}
	for field, part := range wanted {
		at := step(field)
		switch part := part.(type) {
		case []any:
			if name := entryNames[field]; name != "" {
				before, _ := live[field].([]any)
				if entries := claimEntries(name, part, before, owned.WithPrefix(at)); len(entries) > 0 {
					claimed[field] = entries
				}
				continue
			}
		case map[string]any:
			// Claim the fields of an object one by one. A changed reference is claimed as a whole,
			// so that its name and its key belong to the same field manager.
			if _, isReference := part["key"]; !isReference || same(field, part, live[field]) {
				before, _ := live[field].(map[string]any)
				if inner := claim(part, before, owned.WithPrefix(at)); len(inner) > 0 {
					claimed[field] = inner
				}
				continue
			}
		}
		if _, was := live[field]; !was || holds(owned, at) || !same(field, part, live[field]) {
			claimed[field] = part
		}
	}
	return claimed
}

func claimEntries(name string, wanted, live []any, owned *fieldpath.Set) (entries []any) {
	for _, item := range wanted {
		entry := item.(map[string]any)
		at := fieldpath.PathElement{Key: &value.FieldList{{Name: name, Value: value.NewValueInterface(entry[name])}}}
		before := entryOf(live, name, entry[name])
		claimed := claim(entry, before, owned.WithPrefix(at))
		if before == nil || holds(owned, at) || len(claimed) > 0 {
			claimed[name] = entry[name]
			entries = append(entries, claimed)
		}
	}
	return entries
}

func entryOf(list []any, name string, key any) map[string]any {
	for _, item := range list {
		if entry := item.(map[string]any); entry[name] == key {
			return entry
		}
	}
	return nil
}

func same(field string, a, b any) bool {
	return equality.Semantic.DeepEqual(normalize(field, a), normalize(field, b))
}

// normalize removes empty values and sorts named entries.
func normalize(field string, part any) any {
	switch part := part.(type) {
	case string:
		if part == "" {
			return nil
		}
	case map[string]any:
		full := map[string]any{}
		for key, inner := range part {
			if inner = normalize(key, inner); inner != nil {
				full[key] = inner
			}
		}
		if len(full) == 0 {
			return nil
		}
		return full
	case []any:
		var list []any
		for _, item := range part {
			list = append(list, normalize("", item))
		}
		if name := entryNames[field]; name != "" {
			nameOf := func(item any) string {
				entry, _ := item.(map[string]any)
				return fmt.Sprint(entry[name])
			}
			slices.SortFunc(list, func(a, b any) int { return strings.Compare(nameOf(a), nameOf(b)) })
		}
		if list == nil {
			return nil
		}
		return list
	}
	return part
}

// isUnset reports whether a setting has its default value and no field manager chose that value. A
// field manager that creates an object without server-side apply also owns the defaults. It did not
// choose them, so this ownership does not count.
func isUnset(settings *v1alpha1.UserSettings, stored any, setting rest.Setting, others []owner) bool {
	if setting.Default == nil || stored != setting.Default || appliedByClient(settings, setting.Spec) {
		return false
	}
	return !slices.ContainsFunc(others, func(o owner) bool {
		return o.Operation == metav1.ManagedFieldsOperationApply && o.owns(setting.Spec)
	})
}

// appliedByClient reports whether a field was set by client-side apply, the default of kubectl
// apply.
func appliedByClient(settings *v1alpha1.UserSettings, field string) bool {
	var applied struct {
		Spec map[string]json.RawMessage `json:"spec"`
	}
	if json.Unmarshal([]byte(settings.Annotations[corev1.LastAppliedConfigAnnotation]), &applied) != nil {
		return false
	}
	_, set := applied.Spec[field]
	return set
}
