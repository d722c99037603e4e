package v1alpha1

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// manualManagers are the field managers of one-time writes by a user.
var manualManagers = []string{"kubectl-parley", "kubectl", "parley-facade"}

// GitOpsManager returns the tool that reapplies a spec field periodically, such as Flux or Argo CD,
// or an empty text. The Conversation must include its metadata.managedFields.
func (c *Conversation) GitOpsManager(field string) string {
	return c.findGitOpsManagers(field)[field]
}

// CompactManagedFields returns a small metadata.managedFields for which GitOpsManager returns the
// same tools of these spec fields.
func (c *Conversation) CompactManagedFields(fields ...string) (managers []metav1.ManagedFieldsEntry) {
	found := c.findGitOpsManagers(fields...)
	for _, field := range fields {
		if found[field] != "" {
			managers = append(managers, metav1.ManagedFieldsEntry{Manager: strings.Clone(found[field]),
				Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:` + field + `":{}}}`)})
		}
	}
	return managers
}

// findGitOpsManagers returns the tool that GitOpsManager returns for each of these spec fields.
// Fields without such a tool are missing.
func (c *Conversation) findGitOpsManagers(fields ...string) map[string]string {
	found := map[string]string{}
	for _, entry := range c.ManagedFields {
		// GitOps tools are recognized by server-side apply (the operation Apply). By default, Argo
		// CD does not use it, so Argo CD is recognized by its name.
		reapplies := strings.HasPrefix(entry.Manager, "argocd") ||
			entry.Operation == metav1.ManagedFieldsOperationApply && !slices.Contains(manualManagers, entry.Manager)
		if !reapplies || entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		var owned struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned) != nil {
			continue
		}
		for _, field := range fields {
			if found[field] == "" && owned.Spec["f:"+field] != nil {
				found[field] = entry.Manager
			}
		}
	}
	return found
}
