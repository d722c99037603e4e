// Package v1alpha1 defines Parley's kinds: UserSettings, a user's settings for agent sessions;
// Conversation, one session; and SessionClass, the defaults and limits of sessions.
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package="applyconfiguration"
// +groupName=parley.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// SchemeGroupVersion is the group and version of the kinds in this package.
	SchemeGroupVersion = schema.GroupVersion{Group: "parley.dev", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers the kinds of this package.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&UserSettings{}, &UserSettingsList{},
		&Conversation{}, &ConversationList{},
		&SessionClass{}, &SessionClassList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
