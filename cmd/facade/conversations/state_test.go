package conversations

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Clients that start a conversation look at once, and look no more where it is stopped.
func TestAConversationThatIsToStartAgainIsNotStoppedAnyMore(t *testing.T) {
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
		"resumed, and not seen yet":        {stopped(v1alpha1.ReasonSuspended, false, nil, 1), v1alpha1.StateStarting},
		"restarted, and not seen yet":      {stopped(v1alpha1.ReasonCompleted, false, now, 1), v1alpha1.StateStarting},
		"to be restarted later":            {stopped(v1alpha1.ReasonCompleted, false, later, 1), v1alpha1.StateStopped},
		"changed otherwise":                {stopped(v1alpha1.ReasonCompleted, false, nil, 1), v1alpha1.StateStopped},
		"restarted, and to be stopped":     {stopped(v1alpha1.ReasonSuspended, true, now, 1), v1alpha1.StateStopped},
		"stopped again after it was asked": {stopped(v1alpha1.ReasonFailed, false, now, 2), v1alpha1.StateStopped},
	} {
		if got := stateOf(tc.c); got != tc.want {
			t.Errorf("%s: it is %s, want %s", name, got, tc.want)
		}
	}
}
