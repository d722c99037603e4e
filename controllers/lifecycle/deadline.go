package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// withinDeadline ends a start that takes too long, unless the session ran before: that one waits
// for its node, its quota or its image as long as it takes, and says so.
func (v Verdict) withinDeadline(o Observation) Verdict {
	if !pastDeadline(o) {
		return v
	}
	s, step, message := o.Conversation.Status, v.Reason, v.Message
	if !everRan(s) && !v.Blocked && o.Pod == nil && slices.Contains(retriedReasons, s.Reason) {
		step, message = s.Reason, s.Message // it is not retried, so that nothing newer is known
	}
	exceeded := fmt.Sprintf("Not running after %s, stuck at %s: %s", o.Bounds.StartDeadline, step, message)
	if everRan(s) {
		v.Message, v.Stalled = exceeded, true
		return v
	}
	return stopped(v1alpha1.ReasonStartDeadlineExceeded, exceeded, RemovePod)
}

func pastDeadline(o Observation) bool {
	left, bounded := UntilDeadline(o)
	return bounded && left <= 0
}

// UntilDeadline is how long the present start may still take: from the creation of its pod or,
// without one, from when it was recorded that there is none. A session that ran in this attempt is
// not starting.
func UntilDeadline(o Observation) (left time.Duration, bounded bool) {
	s := o.Conversation.Status
	if o.Bounds.StartDeadline == 0 || Ran(s) {
		return 0, false
	}
	began := o.Now
	switch {
	case o.Pod != nil:
		began = o.Pod.CreationTimestamp.Time
	case s.Reason == v1alpha1.ReasonQueued || s.Reason == v1alpha1.ReasonSettingsNotReady && o.Unready == nil:
		// What it waited for came only now, so that it begins only now.
	case s.StartTime != nil && s.StopTime == nil:
		began = s.StartTime.Time
	}
	return began.Add(o.Bounds.StartDeadline).Sub(o.Now), true
}

// UntilMaxDuration is how long a session may still run.
func UntilMaxDuration(o Observation) (left time.Duration, bounded bool) {
	if o.Bounds.MaxDuration == 0 {
		return 0, false
	}
	return o.Bounds.MaxDuration - runningTime(o.Conversation.Status, o.Now), true
}

// storingTimeout is how long the facade may take to store what a Conversation refers to. One that
// was killed meanwhile never removes the mark.
const storingTimeout = time.Minute

// UntilStored is how long the facade may still take to store what a Conversation starts with; zero
// if that is done, or was given up.
func UntilStored(c *v1alpha1.Conversation, now time.Time) time.Duration {
	if c.Annotations[v1alpha1.AnnotationIncomplete] == "" {
		return 0
	}
	return max(0, c.CreationTimestamp.Add(storingTimeout).Sub(now))
}
