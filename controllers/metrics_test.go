package controllers

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/v1alpha1"
)

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
	t.Fatal("the metric does not exist")
	return 0
}

func TestARecoveredSessionDoesNotCountAsAStart(t *testing.T) {
	running := v1alpha1.ConversationStatus{State: v1alpha1.StateRunning}
	for name, tc := range map[string]struct {
		before aConversation
		want   uint64
	}{
		"a start":    {makeConversation("ns", "c").Started(0), 1},
		"a restart":  {makeConversation("ns", "c").Ran(2).Attempt(2, 1).Started(100), 1},
		"a recovery": {makeConversation("ns", "c").Ran(2).Started(0), 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := startsMeasured(t)
			recordTransition(tc.before.Conversation, tc.before.Status, running, at(3600))
			if got := startsMeasured(t) - before; got != tc.want {
				t.Errorf("%d starts were measured, want %d", got, tc.want)
			}
		})
	}
}
