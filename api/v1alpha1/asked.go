package v1alpha1

import (
	"reflect"
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

// Differences are the fields, by their names in JSON, in which two specs differ.
func (s *ConversationSpec) Differences(other *ConversationSpec) (names []string) {
	one, another := reflect.ValueOf(s).Elem(), reflect.ValueOf(other).Elem()
	for i := range one.NumField() {
		if !equality.Semantic.DeepEqual(one.Field(i).Interface(), another.Field(i).Interface()) {
			name, _, _ := strings.Cut(one.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}
