package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// lose records the loss of n pods in a row, each right after its creation. It returns the delays
// before the replacements.
func lose(c aConversation, n int, change func(aPod) aPod) (delays []time.Duration) {
	now := 0
	for range n {
		o := Observation{Conversation: c.Conversation, Bounds: boundsOf(&c.Spec), SettingsExist: true, Now: at(now)}
		o.Pod = change(podOf(c)).Pod
		c.Status = NewStatus(o, Judge(o))
		o.Pod = nil
		delay := UntilRetry(o)
		delays = append(delays, delay)
		now += int(delay.Seconds())
	}
	return delays
}

func TestRejectedPodsAreReplacedAfterABackoffAndAreNotCountedAsRestarts(t *testing.T) {
	for _, reason := range []string{"NodeShutdown", "NodeAffinity", "OutOfcpu", "UnexpectedAdmissionError"} {
		c := makeConversation("ns", "c").Started(0)
		delays := lose(c, 9, func(p aPod) aPod { return p.Failed(reason) })
		want := []time.Duration{0, 5, 10, 20, 40, 80, 160, 300, 300}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(delays, want) {
			t.Errorf("%s: the delays are %v, want %v", reason, delays, want)
		}
		s := c.Status
		if s.Attempt != 10 || s.Restarts != 0 || s.Losses != 9 || s.LastRestart != reason || !s.StartTime.Equal(metaTime(0)) {
			t.Errorf("%s: recorded %+v", reason, s)
		}
	}
}

func TestEvictedPodsAreReplacedAfterABackoff(t *testing.T) {
	c := makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Workspace = &v1alpha1.Workspace{Size: "1Gi"}
	}).Started(0)
	evicted := func(p aPod) aPod {
		p = p.Ready().Failed("Evicted").Condition(corev1.DisruptionTarget, true, "")
		podCondition(p.Pod, corev1.DisruptionTarget).Reason = corev1.PodReasonTerminationByKubelet
		return p
	}
	if delays := lose(c, 4, evicted); fmt.Sprint(delays) != "[0s 5s 10s 20s]" || c.Status.Restarts != 0 ||
		c.Status.LastRestart != "Evicted" {
		t.Errorf("the delays are %v, with %d restarts, the last one caused by %s", delays, c.Status.Restarts,
			c.Status.LastRestart)
	}
}

func TestARunningOrResumedSessionHasNoRetryTime(t *testing.T) {
	c := makeConversation("ns", "c").Started(0)
	lose(c, 3, func(p aPod) aPod { return p.Failed("NodeShutdown") })
	if c.Status.RetryTime == nil {
		t.Fatal("no time of the next attempt is recorded")
	}
	running := Observation{Conversation: c.DeepCopy(), Bounds: boundsOf(&c.Spec), Pod: podOf(c).Ready().Pod, Now: at(60)}
	if s := NewStatus(running, Judge(running)); s.RetryTime != nil || s.Losses != 3 {
		t.Errorf("a running session has %d losses and the next attempt at %v", s.Losses, s.RetryTime)
	}
	stopped := Observation{Conversation: c.Stopped("Suspended", 9).Conversation, Bounds: boundsOf(&c.Spec), Now: at(10)}
	if s := NewStatus(stopped, Judge(stopped)); s.RetryTime != nil || s.Losses != 0 || s.State != v1alpha1.StateStarting {
		t.Errorf("a resumed session has %d losses and the next attempt at %v", s.Losses, s.RetryTime)
	}
}
