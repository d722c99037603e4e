package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// warmSelector returns the selector of the namespaces with warm pods. An invalid selector, which
// the webhook refuses, selects nothing.
func warmSelector(class *v1alpha1.SessionClass) labels.Selector {
	if class.Spec.Warm == nil || class.DeletionTimestamp != nil {
		return labels.Nothing()
	}
	selector, err := metav1.LabelSelectorAsSelector(class.Spec.Warm.NamespaceSelector)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// namespaceLabels returns the labels of a namespace; nil if it does not exist. A manager that is
// limited to some namespaces cannot read labels. It knows only kubernetes.io/metadata.name, whose
// value is the name of the namespace.
func (r *warmPoolReconciler) namespaceLabels(ctx context.Context, name string) (labels.Set, error) {
	if len(r.options.Namespaces) > 0 {
		if !slices.Contains(r.options.Namespaces, name) {
			return nil, nil
		}
		return labels.Set{corev1.LabelMetadataName: name}, nil
	}
	namespace := namespaceMetadata()
	if err := r.metadata.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if namespace.DeletionTimestamp != nil {
		return nil, nil
	}
	return labels.Set(namespace.Labels), nil
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}

func (r *warmPoolReconciler) selectedNamespaces(ctx context.Context, class *v1alpha1.SessionClass) ([]string, error) {
	selector, names := warmSelector(class), r.options.Namespaces
	if len(names) == 0 && class.Spec.Warm != nil {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
		if err := r.metadata.List(ctx, list, client.MatchingLabelsSelector{Selector: selector},
			client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list namespaces: %w", err)
		}
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp == nil {
				names = append(names, list.Items[i].Name)
			}
		}
		return names, nil
	}
	var selected []string
	for _, name := range names {
		if selector.Matches(labels.Set{corev1.LabelMetadataName: name}) {
			selected = append(selected, name)
		}
	}
	return selected, nil
}
