package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Indexes over the cache, so that no reconcile lists a namespace.
const (
	indexSecretName    = "secretName"
	indexConfigMapName = "configMapName"
	// indexKeptFor finds the Secrets that are kept for a UserSettings.
	indexKeptFor = "keptFor"
)

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object  client.Object
		field   string
		extract client.IndexerFunc
	}{
		{&v1alpha1.UserSettings{}, indexSecretName, func(o client.Object) []string {
			settings := o.(*v1alpha1.UserSettings)
			return append(secretNames(settings.SecretReferences()), v1alpha1.SessionKeySecretName(settings.Name))
		}},
		{&v1alpha1.Conversation{}, indexSecretName, func(o client.Object) []string {
			return secretNames(o.(*v1alpha1.Conversation).SecretReferences())
		}},
		{&v1alpha1.Conversation{}, indexConfigMapName, func(o client.Object) []string {
			return configMapNames(o.(*v1alpha1.Conversation).ConfigMapReferences())
		}},
		{&v1alpha1.Conversation{}, v1alpha1.IndexUserSettingsName, func(o client.Object) []string {
			return []string{o.(*v1alpha1.Conversation).Spec.UserSettingsName}
		}},
		{secretMetadata(), indexKeptFor, func(o client.Object) []string {
			if name := keptFor(o); name != "" {
				return []string{name}
			}
			return nil
		}},
	} {
		if err := indexer.IndexField(ctx, index.object, index.field, index.extract); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.object, index.field, err)
		}
	}
	return nil
}

// secretMetadata is what the cache holds of a Secret.
func secretMetadata() *metav1.PartialObjectMetadata {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return secret
}

// keptFor names the UserSettings that a Secret is kept for. What belongs to a conversation carries
// their label too; it goes with the conversation.
func keptFor(secret client.Object) string {
	if secret.GetLabels()[v1alpha1.LabelConversation] != "" {
		return ""
	}
	return secret.GetLabels()[v1alpha1.LabelUserSettings]
}

func secretNames(refs []v1alpha1.SecretReference) []string {
	names := make([]string, 0, len(refs))
	for _, r := range refs {
		if !slices.Contains(names, r.Ref.Name) {
			names = append(names, r.Ref.Name)
		}
	}
	return names
}

func configMapNames(refs []v1alpha1.ConfigMapReference) []string {
	names := make([]string, 0, len(refs))
	for _, r := range refs {
		if !slices.Contains(names, r.Ref.Name) {
			names = append(names, r.Ref.Name)
		}
	}
	return names
}

// requestsFor are requests for the objects of a list in one namespace whose index holds the value.
func requestsFor(ctx context.Context, c client.Reader, list client.ObjectList, namespace, index,
	value string) []reconcile.Request {
	if err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index: value},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	add := func(o client.Object) {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace,
			Name: o.GetName()}})
	}
	switch list := list.(type) {
	case *v1alpha1.UserSettingsList:
		for i := range list.Items {
			add(&list.Items[i])
		}
	case *v1alpha1.ConversationList:
		for i := range list.Items {
			add(&list.Items[i])
		}
	}
	return requests
}

// requestsForOwner are the request for the Conversation that an object belongs to, if it belongs to
// one.
func requestsForOwner(o client.Object) []reconcile.Request {
	owner := owningConversation(o)
	if owner == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}}
}

// owningConversation is the reference to the Conversation that an object belongs to.
func owningConversation(o client.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || owner.Kind != "Conversation" || !strings.HasPrefix(owner.APIVersion,
		v1alpha1.SchemeGroupVersion.Group+"/") {
		return nil
	}
	return owner
}
