package controllers

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// startsMeasured is how many starts there were whose time was measured.
func startsMeasured(t *testing.T) uint64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "parley_conversation_start_seconds" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatal("there is no such metric")
	return 0
}

func TestASessionThatAnswersAgainIsNotMeasuredAsAStart(t *testing.T) {
	running := v1alpha1.ConversationStatus{State: v1alpha1.StateRunning}
	for name, tc := range map[string]struct {
		before aConversation
		want   uint64
	}{
		"it started":                   {makeConversation("ns", "c").Started(0), 1},
		"it started again":             {makeConversation("ns", "c").Ran(2).Attempt(2, 1).Started(100), 1},
		"it did not answer for a time": {makeConversation("ns", "c").Ran(2).Started(0), 0},
	} {
		t.Run(name, func(t *testing.T) {
			already := startsMeasured(t)
			measure(tc.before.Conversation, tc.before.Status, running, at(3600))
			if got := startsMeasured(t) - already; got != tc.want {
				t.Errorf("%d starts are measured, want %d", got, tc.want)
			}
		})
	}
}
