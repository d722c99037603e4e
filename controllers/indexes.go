package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/slimcache"
)

// These are the indexes of the cache. With them, no reconcile needs to list a whole namespace.
const (
	indexSecretName    = "secretName"
	indexConfigMapName = "configMapName"
	// indexManagedFor finds the managed Secrets of a UserSettings.
	indexManagedFor = "managedFor"
	// indexSession finds the warm pod that a Conversation adopted.
	indexSession = "session"
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
		{&v1alpha1.UserSettings{}, v1alpha1.IndexInheritFrom, func(o client.Object) []string {
			if name := o.(*v1alpha1.UserSettings).Spec.InheritFrom; name != nil {
				return []string{*name}
			}
			return nil
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
		{&corev1.Pod{}, indexSession, func(o client.Object) []string {
			if owner := owningConversation(o); owner != nil && lifecycle.IsWarm(o.(*corev1.Pod)) {
				return []string{owner.Name}
			}
			return nil
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

// secretMetadata returns an empty object for the metadata of a Secret. The cache holds only
// metadata of Secrets.
func secretMetadata() *metav1.PartialObjectMetadata {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return secret
}

// managedFor returns the name of the UserSettings to which a managed Secret belongs. It returns an
// empty string for a Secret of a Conversation. Such a Secret has the same label, but is deleted
// with the Conversation.
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

// requestsForSecret returns requests for the objects that refer to a Secret and that all filters
// accept.
func requestsForSecret(ctx context.Context, c client.Reader, list client.ObjectList, secret client.Object,
	filters ...func(client.Object) bool) []reconcile.Request {
	namespace := secret.GetNamespace()
	requests := requestsFor(ctx, c, list, namespace, indexSecretName, secret.GetName(), filters...)
	return append(requests, requestsFor(ctx, c, list, namespace, indexSecretName, slimcache.AnySecret, filters...)...)
}

// requestsFor looks up the objects of a namespace by a value in an index. It returns a request for
// each object that all filters accept.
func requestsFor(ctx context.Context, c client.Reader, list client.ObjectList, namespace, index, value string,
	filters ...func(client.Object) bool) []reconcile.Request {
	if err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index: value},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	_ = meta.EachListItem(list, func(o runtime.Object) error { // our lists never fail
		object := o.(client.Object)
		if !slices.ContainsFunc(filters, func(accepts func(client.Object) bool) bool { return !accepts(object) }) {
			requests = append(requests, requestFor(namespace, object.GetName()))
		}
		return nil
	})
	return requests
}

func requestFor(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

func requestsForOwner(o client.Object) []reconcile.Request {
	owner := owningConversation(o)
	if owner == nil {
		return nil
	}
	return []reconcile.Request{requestFor(o.GetNamespace(), owner.Name)}
}
