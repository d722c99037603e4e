package lifecycle

import (
	"testing"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestImagesAloneAreWork(t *testing.T) {
	for name, spec := range map[string]v1alpha1.ConversationSpec{
		"addresses": {ImageURLs: []string{"u"}},
		"in ConfigMaps": {Images: []v1alpha1.ConversationImage{
			{ConfigMapKeyRef: &v1alpha1.ConfigMapKeyRef{Name: "one", Key: "image"}},
		}},
	} {
		if !HasWork(&spec) {
			t.Errorf("images, %s, are no work", name)
		}
	}
	if HasWork(&v1alpha1.ConversationSpec{}) {
		t.Error("nothing is work")
	}
}
