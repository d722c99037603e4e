package main

import (
	"bytes"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// people are the owners of fields behind which somebody stands who wrote them once.
var people = []string{fieldOwner, "kubectl", "parley-facade"}

// keeperOf a field of the spec is the tool that applies it again and again, as Flux and Argo CD do;
// empty if there is none.
func keeperOf(conv *v1alpha1.Conversation, field string) string {
	for _, entry := range conv.ManagedFields {
		// Argo CD updates where it is not told to apply.
		keeps := entry.Operation == metav1.ManagedFieldsOperationApply && !slices.Contains(people, entry.Manager) ||
			strings.HasPrefix(entry.Manager, "argocd")
		if !keeps || entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		owned := fieldpath.NewSet()
		if err := owned.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
			continue
		}
		if owned.Has(fieldpath.MakePathOrDie("spec", field)) {
			return entry.Manager
		}
	}
	return ""
}
