package lifecycle

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestTheUseOfScratchSpaceIsReportedIfAVolumeWasMissingAtTheStart(t *testing.T) {
	t.Parallel()
	reported := func(reason string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConditionWorkspaceReady, Status: metav1.ConditionFalse, Reason: reason}}
	}
	for name, test := range map[string]struct {
		before      v1alpha1.ConversationStatus
		classVolume bool
		want        string
	}{
		"a first start without a default StorageClass": {v1alpha1.ConversationStatus{}, true,
			v1alpha1.ReasonNoStorageClass},
		"a first start in a class without volumes": {v1alpha1.ConversationStatus{}, false, ""},
		"a class that got a volume later": {v1alpha1.ConversationStatus{Workspace: v1alpha1.WorkspaceScratch},
			true, ""},
		"a class that lost its volume later": {v1alpha1.ConversationStatus{Workspace: v1alpha1.WorkspaceScratch,
			Conditions: reported(v1alpha1.ReasonNoStorageClass)}, false, v1alpha1.ReasonNoStorageClass},
		"a deleted volume": {v1alpha1.ConversationStatus{Workspace: v1alpha1.WorkspaceClass}, false,
			v1alpha1.ReasonVolumeDeleted},
		"a volume deleted at an earlier start": {v1alpha1.ConversationStatus{Workspace: v1alpha1.WorkspaceScratch,
			Conditions: reported(v1alpha1.ReasonVolumeDeleted)}, true, v1alpha1.ReasonVolumeDeleted},
	} {
		o := Observation{Conversation: &v1alpha1.Conversation{Status: test.before}, ClassVolume: test.classVolume}
		got, message := workspaceProblem(v1alpha1.ConversationStatus{Workspace: v1alpha1.WorkspaceScratch}, o)
		if got != test.want || (message == "") != (test.want == "") {
			t.Errorf("%s: reason %q, message %q, want the reason %q", name, got, message, test.want)
		}
	}
}
