package v1alpha1

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
)

// Asked is what a session was asked to do: the spec without its lifecycle, which may change at any
// time.
func (s *ConversationSpec) Asked() ConversationSpec {
	asked := *s
	asked.Suspend = false
	asked.RestartAt = nil
	asked.IdleTimeout = nil
	asked.StartDeadline = nil
	asked.MaxDuration = nil
	asked.TTLAfterStopped = nil
	return asked
}

// Differences are the fields, by their names in JSON, in which two specs differ. As for the schema,
// the order of a list whose entries have a key is no difference.
func (s *ConversationSpec) Differences(other *ConversationSpec) (names []string) {
	one, another := reflect.ValueOf(s.inOrder()), reflect.ValueOf(other.inOrder())
	for i := range one.NumField() {
		if !equality.Semantic.DeepEqual(one.Field(i).Interface(), another.Field(i).Interface()) {
			name, _, _ := strings.Cut(one.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}

// inOrder is the spec with its lists in the order of their keys, where they have some.
func (s *ConversationSpec) inOrder() ConversationSpec {
	ordered := *s
	ordered.MCPConfig = s.MCPConfig.DeepCopy()
	if tools := ordered.MCPConfig; tools != nil {
		byURL := func(a, b MCPRemoteServer) int { return strings.Compare(a.URL, b.URL) }
		slices.SortFunc(tools.SSEServers, byURL)
		slices.SortFunc(tools.SHTTPServers, byURL)
		slices.SortFunc(tools.StdioServers, func(a, b MCPStdioServer) int { return strings.Compare(a.Name, b.Name) })
		for _, server := range tools.StdioServers {
			slices.SortFunc(server.Env, func(a, b MCPEnvVar) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return ordered
}
