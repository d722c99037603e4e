package v1alpha1_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestCompactManagedFieldsKeepTheGitOpsManagers(t *testing.T) {
	t.Parallel()
	owner := func(manager string, operation metav1.ManagedFieldsOperationType, field string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, FieldsV1: metav1.NewFieldsV1(
			`{"f:metadata":{"f:annotations":{"f:` + strings.Repeat("x", 10_000) + `":{}}},"f:spec":{"f:` + field + `":{}}}`)}
	}
	for name, c := range map[string]struct {
		entries            []metav1.ManagedFieldsEntry
		suspend, restartAt string
	}{
		"Flux":     {[]metav1.ManagedFieldsEntry{owner("flux", "Apply", "suspend")}, "flux", ""},
		"Argo CD":  {[]metav1.ManagedFieldsEntry{owner("argocd", "Update", "restartAt")}, "", "argocd"},
		"a person": {[]metav1.ManagedFieldsEntry{owner("kubectl", "Apply", "suspend")}, "", ""},
		"several": {[]metav1.ManagedFieldsEntry{owner("kubectl-edit", "Update", "restartAt"),
			owner("helm", "Apply", "suspend"), owner("flux", "Apply", "restartAt")}, "helm", "flux"},
	} {
		conversation := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{ManagedFields: c.entries}}
		conversation.ManagedFields = conversation.CompactManagedFields("suspend", "restartAt")
		suspend, restartAt := conversation.GitOpsManager("suspend"), conversation.GitOpsManager("restartAt")
		if suspend != c.suspend || restartAt != c.restartAt {
			t.Errorf("%s: %q manages suspend, %q manages restartAt", name, suspend, restartAt)
		}
		if size := conversation.ObjectMeta.Size(); size > 1000 {
			t.Errorf("%s: %d bytes are kept", name, size)
		}
	}
}
