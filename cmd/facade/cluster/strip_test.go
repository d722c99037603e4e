package cluster

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// largeMeta returns metadata with 1 MiB of text in those fields whose length is not limited.
func largeMeta() metav1.ObjectMeta {
	long := strings.Repeat("x", 200<<10)
	return metav1.ObjectMeta{Name: "n", Namespace: "ns", UID: "uid",
		Labels: map[string]string{long: "x"}, Finalizers: []string{long},
		OwnerReferences: []metav1.OwnerReference{{Name: long}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: long}},
		Annotations: map[string]string{"example.com/large": long, v1alpha1.AnnotationTitle: long,
			AnnotationCreatedAt: long, v1alpha1.AnnotationEndedSignIns: long + ",newest:9999999999"}}
}

func TestATenantCannotFillTheFacadesMemory(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 60<<10)
	tools := &v1alpha1.MCPConfig{StdioServers: []v1alpha1.MCPStdioServer{{Command: long, Args: []string{long},
		Env: []v1alpha1.MCPEnvVar{{Value: &long}}}}}
	settings := &v1alpha1.UserSettings{ObjectMeta: largeMeta(), Spec: v1alpha1.UserSettingsSpec{MCPConfig: tools,
		LLMModel: ptr.To("example/model"), SecretsStore: &v1alpha1.SecretsStore{
			ProviderTokens: []v1alpha1.ProviderToken{{Provider: v1alpha1.GitHub}},
			CustomSecrets:  []v1alpha1.CustomSecret{{Name: "A", Description: &long}}}},
		Status: v1alpha1.UserSettingsStatus{SessionKeyHash: "hash", Conditions: []metav1.Condition{{Message: long}}}}
	conversation := &v1alpha1.Conversation{ObjectMeta: largeMeta(), Spec: v1alpha1.ConversationSpec{MCPConfig: tools,
		InitialUserMsg: ptr.To("Fix it\n" + long), ConversationInstructions: &long, ImageURLs: []string{long},
		Images: []v1alpha1.ConversationImage{{URL: &long}}},
		Status: v1alpha1.ConversationStatus{Conditions: []metav1.Condition{{Type: "Stalled", Status: "True",
			Message: long}}}}
	for _, object := range []any{settings, conversation} {
		if _, err := strip(object); err != nil {
			t.Fatal(err)
		}
		if held := jsonOf(t, object); len(held) > 20<<10 {
			t.Errorf("%T has %d bytes in the cache", object, len(held))
		}
	}
	if ended := settings.Annotations[v1alpha1.AnnotationEndedSignIns]; !strings.HasSuffix(ended, ",newest:9999999999") {
		t.Errorf("the newest revoked sign-in is not in %.40q", ended)
	}
	if conversation.UID != "uid" || *conversation.Spec.InitialUserMsg != "Fix it" || !conversation.NeedsAttention() ||
		*settings.Spec.LLMModel != "example/model" || len(settings.Spec.SecretsStore.ProviderTokens) != 1 {
		t.Errorf("the facade needs a field that is gone: %s", fmt.Sprint(conversation, settings))
	}
}
