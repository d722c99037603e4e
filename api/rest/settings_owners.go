package rest

import (
	"reflect"
	"slices"

	ac "github.com/parley-dev/parley/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// entryNames are the fields that name the entries of the lists in a field of the spec.
var entryNames = map[string]map[string]string{
	"secretsStore": {"providerTokens": "provider", "customSecrets": "name"},
	"mcpConfig":    {"sseServers": "url", "shttpServers": "url", "stdioServers": "name"},
}

// withoutOthers takes out of an edited spec what is stored already as the request wants it, unless the facade owned it before.
// Clients post back all that they were shown; who applies a value owns it, even one that is the same, and so the facade
// would hold on to what its manager takes away later.
func (p *settingsPlan) withoutOthers(edited, owned *ac.UserSettingsSpecApplyConfiguration) (*ac.UserSettingsSpecApplyConfiguration, error) {
	var fields, before map[string]any
	if err := convert(edited, &fields); err != nil {
		return nil, err
	}
	if err := convert(owned, &before); err != nil {
		return nil, err
	}
	live, wanted := fieldsOf(p.live.Spec), fieldsOf(p.wanted)
	for _, name := range p.touched {
		switch lists, hasEntries := entryNames[name]; {
		case hasEntries:
			leaveEntries(asObject(fields[name]), asObject(before[name]), asObject(live[name]), asObject(wanted[name]), lists)
			if len(asObject(fields[name])) == 0 {
				delete(fields, name)
			}
		case !reflect.DeepEqual(live[name], wanted[name]):
		case before[name] == nil:
			delete(fields, name)
		default:
			fields[name] = before[name]
		}
	}
	spec := ac.UserSettingsSpec()
	return spec, convert(fields, spec)
}

// leaveEntries does the same for each entry of the lists in a field.
func leaveEntries(fields, before, live, wanted map[string]any, lists map[string]string) {
	for list, name := range lists {
		entries, _ := fields[list].([]any)
		kept := []any{}
		for _, entry := range entries {
			key := asObject(entry)[name]
			if reflect.DeepEqual(entryOf(live[list], name, key), entryOf(wanted[list], name, key)) {
				entry = entryOf(before[list], name, key)
			}
			if entry != nil {
				kept = append(kept, entry)
			}
		}
		if len(kept) > 0 {
			fields[list] = kept
		} else {
			delete(fields, list)
		}
	}
}

// entryOf is the entry of a list with this name; nil if there is none.
func entryOf(list any, name string, key any) any {
	entries, _ := list.([]any)
	if at := slices.IndexFunc(entries, func(e any) bool { return asObject(e)[name] == key }); at >= 0 {
		return entries[at]
	}
	return nil
}

func asObject(value any) map[string]any {
	object, _ := value.(map[string]any)
	return object
}
