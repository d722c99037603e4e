package main

import (
	"errors"
	"testing"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAnAttemptUsesTheArchiveUntilItsPodIsGone(t *testing.T) {
	t.Parallel()
	const starting, running, stopped = v1alpha1.StateStarting, v1alpha1.StateRunning, v1alpha1.StateStopped
	for name, c := range map[string]struct {
		state   v1alpha1.ConversationState
		reason  string
		current int32
		gone    bool
		attempt int
		want    error
	}{
		"the first, while it starts":           {starting, "", 0, false, 1, nil},
		"the first, while it runs":             {running, v1alpha1.ReasonRunning, 0, false, 1, nil},
		"the current one":                      {running, v1alpha1.ReasonRunning, 3, false, 3, nil},
		"one that is not recorded yet":         {running, v1alpha1.ReasonRunning, 3, false, 4, errAttemptUnknown},
		"the earlier one":                      {running, v1alpha1.ReasonRunning, 3, false, 2, errAttemptEnded},
		"the earlier one, which still stops":   {starting, v1alpha1.ReasonRestarting, 3, false, 2, nil},
		"an even earlier one":                  {starting, v1alpha1.ReasonRestarting, 3, false, 1, errAttemptEnded},
		"a suspended one that hands over":      {stopped, v1alpha1.ReasonSuspended, 3, false, 3, nil},
		"a suspended one without a pod":        {stopped, v1alpha1.ReasonSuspended, 3, true, 3, errAttemptEnded},
		"one at its limit that hands over":     {stopped, v1alpha1.ReasonMaxDuration, 0, false, 1, nil},
		"one at its limit without a pod":       {stopped, v1alpha1.ReasonMaxDuration, 0, true, 1, errAttemptEnded},
		"one whose process has exited":         {stopped, v1alpha1.ReasonIdle, 0, false, 1, errAttemptEnded},
		"the one before an exited one":         {stopped, v1alpha1.ReasonCompleted, 2, false, 1, errAttemptEnded},
		"one that starts once it has settings": {stopped, v1alpha1.ReasonSettingsMissing, 0, true, 1, nil},
	} {
		status := v1alpha1.ConversationStatus{State: c.state, Reason: c.reason, Attempt: c.current}
		if c.gone {
			status.Conditions = noPod
		}
		if err := checkAttempt(&status, c.attempt); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
