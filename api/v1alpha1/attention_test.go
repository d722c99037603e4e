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
		state      ConversationState
		reason     string
		turn       *ConversationTurn
		conditions []metav1.Condition
		want       bool
	}{
		"a running session":                   {StateRunning, ReasonRunning, nil, nil, false},
		"a failed turn":                       {StateRunning, ReasonRunning, failed, nil, true},
		"a failed turn before an idle stop":   {StateStopped, ReasonIdle, failed, nil, true},
		"a failed turn before a suspension":   {StateStopped, ReasonSuspended, failed, nil, false},
		"a restart after a failed turn":       {StateStarting, ReasonScheduling, failed, nil, false},
		"a start that exceeds its deadline":   {StateStarting, ReasonScheduling, nil, stalled, true},
		"a start that waits for its settings": {StateStarting, ReasonSettingsNotReady, nil, nil, true},
		"a queued start":                      {StateStarting, ReasonQueued, nil, nil, false},
		"a session at its maximum duration":   {StateStopped, ReasonMaxDuration, nil, nil, true},
	} {
		status := ConversationStatus{State: test.state, Reason: test.reason, Turn: test.turn, Conditions: test.conditions}
		if got := (&Conversation{Status: status}).NeedsAttention(); got != test.want {
			t.Errorf("%s needs attention: %t", name, got)
		}
	}
}
