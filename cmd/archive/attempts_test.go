package main

import (
	"errors"
	"testing"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAnAttemptMayUseTheArchiveUntilItsPodIsGone(t *testing.T) {
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
		"the first attempt while it starts":            {starting, "", 0, false, 1, nil},
		"the first attempt while it runs":              {running, v1alpha1.ReasonRunning, 0, false, 1, nil},
		"the current attempt":                          {running, v1alpha1.ReasonRunning, 3, false, 3, nil},
		"an attempt that is not recorded yet":          {running, v1alpha1.ReasonRunning, 3, false, 4, errAttemptUnknown},
		"the previous attempt":                         {running, v1alpha1.ReasonRunning, 3, false, 2, errAttemptEnded},
		"the previous attempt during a restart":        {starting, v1alpha1.ReasonRestarting, 3, false, 2, nil},
		"an attempt before the previous attempt":       {starting, v1alpha1.ReasonRestarting, 3, false, 1, errAttemptEnded},
		"a suspended attempt that still uploads":       {stopped, v1alpha1.ReasonSuspended, 3, false, 3, nil},
		"a suspended attempt without a pod":            {stopped, v1alpha1.ReasonSuspended, 3, true, 3, errAttemptEnded},
		"an attempt at maxDuration that still uploads": {stopped, v1alpha1.ReasonMaxDuration, 0, false, 1, nil},
		"an attempt at maxDuration without a pod":      {stopped, v1alpha1.ReasonMaxDuration, 0, true, 1, errAttemptEnded},
		"an idle attempt whose process has exited":     {stopped, v1alpha1.ReasonIdle, 0, false, 1, errAttemptEnded},
		"the attempt before a completed attempt":       {stopped, v1alpha1.ReasonCompleted, 2, false, 1, errAttemptEnded},
		"an attempt that waits for its settings":       {stopped, v1alpha1.ReasonSettingsMissing, 0, true, 1, nil},
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
