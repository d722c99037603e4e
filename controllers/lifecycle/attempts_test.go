package lifecycle

import (
	"testing"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAFirstMessageWithOnlyAnImageCountsAsWork(t *testing.T) {
	for name, spec := range map[string]v1alpha1.ConversationSpec{
		"URLs": {ImageURLs: []string{"u"}},
		"ConfigMaps": {Images: []v1alpha1.ConversationImage{
			{ConfigMapKeyRef: &v1alpha1.ConfigMapKeyRef{Name: "one", Key: "image"}},
		}},
	} {
		if !HasWork(&spec) {
			t.Errorf("%s do not count as work", name)
		}
	}
	if HasWork(&v1alpha1.ConversationSpec{}) {
		t.Error("an empty spec counts as work")
	}
}
