package v1alpha1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAConversationNeedsAttentionIfAUserHasToAct(t *testing.T) {
	t.Parallel()
	failed := &ConversationTurn{State: TurnFailed, Reason: ReasonModelRefusedKey}
	stalled := []metav1.Condition{{Type: ConditionStalled, Status: metav1.ConditionTrue}}
	for name, test := range map[string]struct {
		status ConversationStatus
		want   bool
	}{
		"a running session":                   {ConversationStatus{State: StateRunning, Reason: ReasonRunning}, false},
		"a failed turn":                       {ConversationStatus{State: StateRunning, Turn: failed}, true},
		"a failed turn before an idle stop":   {ConversationStatus{State: StateStopped, Reason: ReasonIdle, Turn: failed}, true},
		"a failed turn before a suspension":   {ConversationStatus{State: StateStopped, Reason: ReasonSuspended, Turn: failed}, false},
		"a restart after a failed turn":       {ConversationStatus{State: StateStarting, Reason: ReasonScheduling, Turn: failed}, false},
		"a start that exceeds its deadline":   {ConversationStatus{State: StateStarting, Reason: ReasonScheduling, Conditions: stalled}, true},
		"a start that waits for its settings": {ConversationStatus{State: StateStarting, Reason: ReasonSettingsNotReady}, true},
		"a queued start":                      {ConversationStatus{State: StateStarting, Reason: ReasonQueued}, false},
		"a session at its maximum duration":   {ConversationStatus{State: StateStopped, Reason: ReasonMaxDuration}, true},
	} {
		if got := (&Conversation{Status: test.status}).NeedsAttention(); got != test.want {
			t.Errorf("%s needs attention: %t", name, got)
		}
	}
}
