package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// withinDeadline stops a session whose start exceeds the deadline, if the session never ran. If the
// session ran in an earlier attempt, withinDeadline only marks it as stalled, and the start may
// take any time.
func (v Verdict) withinDeadline(o Observation) Verdict {
	if !pastDeadline(o) {
		return v
	}
	s, step, message := o.Conversation.Status, v.Reason, v.Message
	if !everRan(s) && !v.Blocked && o.Pod == nil && slices.Contains(retriedReasons, s.Reason) {
		step, message = s.Reason, s.Message // the start was not retried since this status was written
	}
	exceeded := fmt.Sprintf("The start exceeded its deadline of %s at step %s: %s", o.Bounds.StartDeadline, step, message)
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

// UntilDeadline returns the time left for the current start. bounded is false if there is no
// deadline, or if the session has run in this attempt. The deadline counts from the recorded start
// time or from the time when the session got its pod, whichever is earlier. A replacement pod
// therefore does not extend the deadline.
func UntilDeadline(o Observation) (left time.Duration, bounded bool) {
	s := o.Conversation.Status
	if o.Bounds.StartDeadline == 0 || Ran(s) {
		return 0, false
	}
	began := o.Now
	if o.Pod != nil {
		began = podTime(o)
	}
	// After a wait for settings or for a slot, the deadline counts from the end of the wait, so the
	// earlier start time in the status is ignored.
	waited := s.Reason == v1alpha1.ReasonQueued || s.Reason == v1alpha1.ReasonSettingsNotReady && o.Unready == nil
	if !waited && s.StopTime == nil && s.StartTime != nil && s.StartTime.Time.Before(began) {
		began = s.StartTime.Time
	}
	return began.Add(o.Bounds.StartDeadline).Sub(o.Now), true
}

// UntilMaxDuration returns how long a session may still run.
func UntilMaxDuration(o Observation) (left time.Duration, bounded bool) {
	if o.Bounds.MaxDuration == 0 {
		return 0, false
	}
	return o.Bounds.MaxDuration - runningTime(o.Conversation.Status, o.Now), true
}

// storingTimeout limits the time in which the facade stores the objects that a new Conversation
// refers to. After the timeout, the manager ignores AnnotationIncomplete, because a facade that
// crashed never removes it.
const storingTimeout = time.Minute

// UntilStored returns how long to wait for the facade to store the inputs of a Conversation; zero
// if the facade is done or timed out.
func UntilStored(c *v1alpha1.Conversation, now time.Time) time.Duration {
	if c.Annotations[v1alpha1.AnnotationIncomplete] == "" {
		return 0
	}
	return max(0, c.CreationTimestamp.Add(storingTimeout).Sub(now))
}
