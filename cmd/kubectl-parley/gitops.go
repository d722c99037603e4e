package main

import (
	"bytes"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// manualManagers are the field managers of one-time writes by a user.
var manualManagers = []string{fieldOwner, "kubectl", "parley-facade"}

// gitOpsManager returns the tool that reapplies a spec field periodically, such as Flux or Argo CD;
// empty if there is none.
func gitOpsManager(conv *v1alpha1.Conversation, field string) string {
	for _, entry := range conv.ManagedFields {
		// By default, Argo CD does not use server-side apply.
		reapplies := strings.HasPrefix(entry.Manager, "argocd") ||
			entry.Operation == metav1.ManagedFieldsOperationApply && !slices.Contains(manualManagers, entry.Manager)
		if !reapplies || entry.Subresource != "" || entry.FieldsV1 == nil {
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
