package v1alpha1

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
)

// Immutable returns the spec without its lifecycle fields, which may change at any time.
func (s *ConversationSpec) Immutable() ConversationSpec {
	spec := *s
	spec.Suspend, spec.RestartAt = false, nil
	spec.IdleTimeout, spec.StartDeadline, spec.MaxDuration, spec.TTLAfterStopped = nil, nil, nil, nil
	return spec
}

// Differences lists the JSON names of the fields in which two specs differ. As in the schema, the
// order of a list with map keys does not matter.
func (s *ConversationSpec) Differences(other *ConversationSpec) []string {
	return differences(reflect.ValueOf(s.sorted()), reflect.ValueOf(other.sorted()))
}

// Differences lists the JSON names of the fields in which two specs differ.
func (s *UserSettingsSpec) Differences(other *UserSettingsSpec) []string {
	return differences(reflect.ValueOf(*s), reflect.ValueOf(*other))
}

func differences(a, b reflect.Value) (names []string) {
	for i := range a.NumField() {
		if !equality.Semantic.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}

// sorted returns the spec with its keyed lists sorted by key.
func (s *ConversationSpec) sorted() ConversationSpec {
	spec := *s
	spec.MCPConfig = s.MCPConfig.DeepCopy()
	if tools := spec.MCPConfig; tools != nil {
		byURL := func(a, b MCPRemoteServer) int { return strings.Compare(a.URL, b.URL) }
		slices.SortFunc(tools.SSEServers, byURL)
		slices.SortFunc(tools.SHTTPServers, byURL)
		slices.SortFunc(tools.StdioServers, func(a, b MCPStdioServer) int { return strings.Compare(a.Name, b.Name) })
		for _, server := range tools.StdioServers {
			slices.SortFunc(server.Env, func(a, b MCPEnvVar) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return spec
}
