package conversations

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Clients read the state right after a start. A client that reads STOPPED gives up.
func TestARequestedRestartShowsAsStarting(t *testing.T) {
	stopped := func(reason string, suspend bool, restartAt *metav1.Time, seen int64) *v1alpha1.Conversation {
		return &v1alpha1.Conversation{
			ObjectMeta: metav1.ObjectMeta{Generation: 2},
			Spec:       v1alpha1.ConversationSpec{Suspend: suspend, RestartAt: restartAt},
			Status:     v1alpha1.ConversationStatus{State: v1alpha1.StateStopped, Reason: reason, ObservedGeneration: seen},
		}
	}
	now, later := ptr.To(metav1.Now()), ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))
	for name, tc := range map[string]struct {
		c    *v1alpha1.Conversation
		want v1alpha1.ConversationState
	}{
		"resumed, not yet observed":   {stopped(v1alpha1.ReasonSuspended, false, nil, 1), v1alpha1.StateStarting},
		"restarted, not yet observed": {stopped(v1alpha1.ReasonCompleted, false, now, 1), v1alpha1.StateStarting},
		"restart planned for later":   {stopped(v1alpha1.ReasonCompleted, false, later, 1), v1alpha1.StateStopped},
		"another change":              {stopped(v1alpha1.ReasonCompleted, false, nil, 1), v1alpha1.StateStopped},
		"restarted, then suspended":   {stopped(v1alpha1.ReasonSuspended, true, now, 1), v1alpha1.StateStopped},
		"failed after the restart":    {stopped(v1alpha1.ReasonFailed, false, now, 2), v1alpha1.StateStopped},
	} {
		if got := stateOf(tc.c); got != tc.want {
			t.Errorf("%s: the state is %s, want %s", name, got, tc.want)
		}
	}
}
