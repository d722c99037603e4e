package lifecycle

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// A lost pod is replaced immediately. If the next pod is lost too, it is replaced after minBackoff.
// The delay doubles with each further loss, up to maxBackoff.
const (
	minBackoff = 5 * time.Second
	maxBackoff = 5 * time.Minute
	// stableAfter is the running time after which a session's earlier losses no longer count.
	stableAfter = 10 * time.Minute
)

func backoff(losses int32) time.Duration {
	if losses < 2 {
		return 0
	}
	return min(minBackoff<<min(losses-2, 6), maxBackoff)
}

// replaceAfterBackoff counts the lost pod in v.Next.Losses. If the session has to wait, this method
// also sets the retry time, the reason and the message.
func (v Verdict) replaceAfterBackoff(o Observation) Verdict {
	s := o.Conversation.Status
	v.Next.Losses = s.Losses + 1
	if Ran(s) && s.RunningTime != nil && o.Now.Sub(s.RunningTime.Time) >= stableAfter {
		v.Next.Losses = 1
	}
	if delay := backoff(v.Next.Losses); delay > 0 {
		v.Next.RetryTime = &metav1.Time{Time: o.Now.Truncate(time.Second).Add(delay)}
		v.Reason = v1alpha1.ReasonBackingOff
		v.Message = backoffMessage(v.Next.Cause, v.Next.Losses, v.Next.RetryTime)
	}
	return v
}

func backoffMessage(cause string, losses int32, retry *metav1.Time) string {
	return fmt.Sprintf("%d pods in a row were lost, the last one because of %s; the next pod is created at %s", losses,
		cause, retry.UTC().Format(time.RFC3339))
}

// UntilRetry returns how long a session waits before its lost pod is replaced; zero if the session
// does not wait.
func UntilRetry(o Observation) time.Duration {
	s := o.Conversation.Status
	if o.Pod != nil || s.RetryTime == nil {
		return 0
	}
	left := s.RetryTime.Sub(o.Now)
	if left > backoff(s.Losses) {
		return 0 // the clock was set back after RetryTime was recorded
	}
	return max(0, left)
}

// backingOff reports whether a session waits before its lost pod is replaced. The lost pod is
// deleted meanwhile.
func backingOff(o Observation) (Verdict, bool) {
	if UntilRetry(o) == 0 {
		return Verdict{}, false
	}
	s := o.Conversation.Status
	v := Verdict{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonBackingOff, Pod: NeedPod,
		Message: backoffMessage(s.LastRestart, s.Losses, s.RetryTime)}
	return v.withinDeadline(o), true
}
