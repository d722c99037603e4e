package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Indexes over the cache, so that no reconcile lists a namespace.
const (
	indexSecretName    = "secretName"
	indexConfigMapName = "configMapName"
	// indexManagedFor finds the Secrets that are managed for a UserSettings.
	indexManagedFor = "managedFor"
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
			var names []string
			for _, r := range o.(*v1alpha1.Conversation).ConfigMapReferences() {
				names = append(names, r.Ref.Name)
			}
			return names
		}},
		{&v1alpha1.Conversation{}, v1alpha1.IndexUserSettingsName, func(o client.Object) []string {
			return []string{o.(*v1alpha1.Conversation).Spec.UserSettingsName}
		}},
		{secretMetadata(), indexManagedFor, func(o client.Object) []string {
			if name := managedFor(o); name != "" {
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

// managedFor names the UserSettings that a Secret is managed for. Secrets of a Conversation carry their
// label too; those go with the Conversation.
func managedFor(secret client.Object) string {
	if secret.GetLabels()[v1alpha1.LabelConversation] != "" {
		return ""
	}
	return secret.GetLabels()[v1alpha1.LabelUserSettings]
}

func secretNames(refs []v1alpha1.SecretReference) (names []string) {
	for _, r := range refs {
		names = append(names, r.Ref.Name)
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
	_ = meta.EachListItem(list, func(o runtime.Object) error { // it fails for no list of ours
		requests = append(requests, requestFor(namespace, o.(client.Object).GetName()))
		return nil
	})
	return requests
}

func requestFor(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// requestsForOwner are the request for the Conversation that an object belongs to, if it belongs to
// one.
func requestsForOwner(o client.Object) []reconcile.Request {
	owner := owningConversation(o)
	if owner == nil {
		return nil
	}
	return []reconcile.Request{requestFor(o.GetNamespace(), owner.Name)}
}
