package lifecycle

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestEachObservationLeadsToTheExpectedVerdict(t *testing.T) {
	for name, tc := range states() {
		t.Run(name, func(t *testing.T) {
			o, v := tc.judged()
			next := ""
			if v.Next != nil {
				next = map[[2]bool]string{{true, false}: "requested", {false, true}: "counted",
					{false, false}: "not counted"}[[2]bool{v.Next.Requested, v.Next.Counted}]
			}
			if v.State != tc.state || v.Reason != tc.reason || v.Pod != tc.action || v.Stalled != tc.stalled ||
				next != tc.next ||
				!strings.Contains(v.Message, tc.message) {
				t.Errorf("got %s %s %q action %d, stalled %t, next %q, want %s %s %q action %d, stalled %t, next %q",
					v.State, v.Reason, v.Message, v.Pod, v.Stalled, next, tc.state, tc.reason, tc.message, tc.action, tc.stalled,
					tc.next)
			}
			if strings.Contains(v.Message, "hunter2") {
				t.Errorf("the message contains the image's own output: %q", v.Message)
			}
			if status := NewStatus(o, v); (status.StopTime != nil) != (tc.state == v1alpha1.StateStopped) {
				t.Errorf("stopTime %v in state %s", status.StopTime, tc.state)
			}
		})
	}
}

func TestTheStatusRecordsAttemptsAndRestarts(t *testing.T) {
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	record := func(c aConversation, pod *aPod, seconds int) v1alpha1.ConversationStatus {
		o := Observation{Conversation: c.Conversation, Bounds: boundsOf(&c.Spec), Scratch: c.Spec.Workspace == nil,
			SettingsExist: true, Now: at(seconds)}
		if pod != nil {
			o.Pod = pod.Pod
		}
		return NewStatus(o, Judge(o))
	}
	t.Run("the first attempt needs no record", func(t *testing.T) {
		if s := record(conv(), nil, 0); s.Attempt != 0 || s.FirstAttempt != 0 || s.Restarts != 0 {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a running attempt", func(t *testing.T) {
		if s := record(conv().Started(0), ptrTo(pod().Ready()), 5); s.RanAttempt != 1 || !s.RunningTime.Equal(metaTime(5)) ||
			s.Attempt != 0 {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a crash", func(t *testing.T) {
		s := record(conv().Started(0).Ran(5), ptrTo(pod().Sandboxed().Running(SessionContainer).Crashed(2, "OOMKilled")), 65)
		if s.Restarts != 2 || s.PodRestarts != 2 || s.LastRestart != "OOMKilled" || s.RanFor.Duration != time.Minute ||
			s.Attempt != 0 {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a replaced pod", func(t *testing.T) {
		c := conv().Started(0).Ran(5).PodRestarts(2).Restarts(2, "OOMKilled")
		s := record(c, nil, 65)
		if s.Attempt != 2 || s.FirstAttempt != 0 || s.RanAttempt != 1 || s.Restarts != 3 || s.PodRestarts != 0 ||
			s.LastRestart != "the pod was deleted" || s.RanFor.Duration != time.Minute {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a drain is not counted", func(t *testing.T) {
		s := record(conv().Started(0).Ran(5), ptrTo(pod().Ready().Failed("Evicted").Condition(corev1.DisruptionTarget, true,
			"")), 65)
		if s.Attempt != 2 || s.Restarts != 0 || s.LastRestart != "Evicted" {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a loss before RUNNING was recorded", func(t *testing.T) {
		c := conv().Started(0).With(func(s *v1alpha1.ConversationSpec) { s.InitialUserMsg = ptrTo("work") })
		before := c.Status
		if s := record(c, ptrTo(pod().Ready().Failed("Evicted")), 5); s.Reason != v1alpha1.ReasonLost || s.RanAttempt != 1 ||
			StartsNow(before, s) {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a requested start resets the counters", func(t *testing.T) {
		c := conv().Attempt(3, 1).Started(0).Ran(5).Restarts(2, "x").RanFor(time.Hour).Stopped("Idle",
			9).With(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) })
		s := record(c, nil, 61)
		if s.Attempt != 4 || s.FirstAttempt != 4 || s.Restarts != 0 || s.LastRestart != "" || s.RanFor != nil ||
			!s.RestartedAt.Equal(metaTime(60)) || !s.StartTime.Equal(metaTime(61)) {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a restart request for a running session does not restart it later", func(t *testing.T) {
		c := conv().Started(0).Ran(5).With(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) })
		c.Status = record(c, ptrTo(pod().Ready()), 61)
		if s := record(c, ptrTo(pod().Ready().Ended(0, `{"reason":"Idle"}`, 9)), 99); s.State != v1alpha1.StateStopped ||
			!s.RestartedAt.Equal(metaTime(60)) {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a restart request before an unrecorded end does not restart the session", func(t *testing.T) {
		c := conv().Started(0).Ran(5).With(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) })
		c.Status = record(c, ptrTo(pod().Ready().Ended(0, `{"reason":"Idle"}`, 9)), 99)
		if s := record(c, nil, 100); s.State != v1alpha1.StateStopped {
			t.Errorf("recorded %+v", s)
		}
	})
}

func ptrTo[T any](v T) *T { return &v }

func TestAnUnchangedSessionKeepsItsStatus(t *testing.T) {
	c := makeConversation("ns", "c")
	for name, pod := range map[string]*corev1.Pod{"starting": podOf(c).Sandboxed().Running(SessionContainer).Pod,
		"running": podOf(c).Ready().Pod,
		"ended":   podOf(c).Ready().Ended(0, `{"reason":"Idle"}`, 9).Pod} {
		t.Run(name, func(t *testing.T) {
			o := Observation{Conversation: c.DeepCopy(), Bounds: boundsOf(&c.Spec), Scratch: c.Spec.Workspace == nil,
				SettingsExist: true, Pod: pod, Now: at(10)}
			o.Conversation.Status = NewStatus(o, Judge(o))
			for later := range 5 {
				o.Now = at(20 + 30*later)
				if status := NewStatus(o, Judge(o)); !equalStatus(status, o.Conversation.Status) {
					t.Fatalf("changed without a cause:\n%+v\n%+v", o.Conversation.Status, status)
				}
			}
		})
	}
}

func equalStatus(a, b v1alpha1.ConversationStatus) bool {
	return a.State == b.State && a.Reason == b.Reason && a.Message == b.Message && a.URL == b.URL &&
		a.StartTime.Equal(b.StartTime) && a.RunningTime.Equal(b.RunningTime) && a.StopTime.Equal(b.StopTime) &&
		len(a.Conditions) == len(b.Conditions)
}

func TestShortStepsOfAStartAreNotWrittenToTheStatus(t *testing.T) {
	fresh := v1alpha1.ConversationStatus{State: v1alpha1.StateStarting, ObservedGeneration: -1}
	starting := v1alpha1.ConversationStatus{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonScheduling,
		StartTime: metaTime(0)}
	waiting, pulling, running, stopped, resumed, backingOff := starting, starting, starting, starting, starting, starting
	resumed.Message, backingOff.Reason = "The pod is being created", v1alpha1.ReasonBackingOff
	waiting.Reason, pulling.Reason = v1alpha1.ReasonSettingsNotReady, v1alpha1.ReasonPullingImage
	running.State, stopped.State = v1alpha1.StateRunning, v1alpha1.StateStopped
	for name, c := range map[string]struct {
		before, after   v1alpha1.ConversationStatus
		verdict         Verdict
		now             int
		threshold, wait time.Duration
	}{
		"a step of one second": {starting, pulling, Verdict{Since: at(1), Pod: NeedPod}, 2, stepThreshold,
			time.Second},
		"a step of two seconds": {starting, pulling, Verdict{Since: at(1), Pod: NeedPod}, 3, stepThreshold, 0},
		"a step of two seconds under load": {starting, pulling, Verdict{Since: at(1), Pod: NeedPod}, 3, 20 * time.Second,
			18 * time.Second},
		"a step with a clock that is ahead": {starting, pulling, Verdict{Since: at(9), Pod: NeedPod}, 3, stepThreshold, 0},
		"the end of the wait for settings":  {waiting, pulling, Verdict{Since: at(2), Pod: NeedPod}, 2, stepThreshold, 0},
		"a change of state":                 {starting, running, Verdict{}, 2, 20 * time.Second, 0},
		"an end":                            {starting, stopped, Verdict{Pod: RemovePod}, 2, 20 * time.Second, 0},
		"a pod that was just created":       {fresh, starting, Verdict{Pod: NeedPod}, 2, stepThreshold, stepThreshold},
		"a pod that was just created for a resumed session": {starting, resumed, Verdict{Pod: NeedPod}, 2, stepThreshold,
			stepThreshold},
		"a pod that could not be created for a resumed session": {starting, resumed, Verdict{Pod: NeedPod, Blocked: true}, 2,
			stepThreshold, 0},
		"a pod that was just created after a delay": {backingOff, starting, Verdict{Pod: NeedPod}, 2, stepThreshold, 0},
		"a pod that waits for a node": {fresh, starting, Verdict{Since: at(1), Pod: NeedPod}, 2, stepThreshold,
			time.Second},
		"a pod that waits for a node too long": {fresh, starting, Verdict{Since: at(1), Pod: NeedPod}, 3, stepThreshold, 0},
		"a pod that could not be created":      {fresh, starting, Verdict{Pod: NeedPod, Blocked: true}, 2, stepThreshold, 0},
		"a stalled start": {fresh, starting, Verdict{Pod: NeedPod, Blocked: true, Stalled: true}, 2,
			stepThreshold, 0},
		"the wait for settings":              {fresh, waiting, Verdict{}, 2, stepThreshold, 0},
		"a new Conversation that is running": {fresh, running, Verdict{}, 2, 20 * time.Second, 0},
		"a new Conversation that has ended":  {fresh, stopped, Verdict{Pod: KeepEndedPod}, 2, 20 * time.Second, 0},
		"a new Conversation without its pod": {fresh, starting, Verdict{}, 2, stepThreshold, 0},
	} {
		if wait := WriteDelay(c.before, c.after, c.verdict, at(c.now), c.threshold); max(wait, 0) != c.wait {
			t.Errorf("%s: wait %s, want %s", name, wait, c.wait)
		}
	}
}

func TestTheCauseOfARestartIsReported(t *testing.T) {
	for want, ended := range map[string]corev1.ContainerStateTerminated{
		"exit status 137":    {Reason: "Error", ExitCode: 137},
		"exit status 2":      {Reason: "Error", ExitCode: 2, Message: "an unknown message"},
		"OOMKilled":          {Reason: "OOMKilled", ExitCode: 137},
		"ContainerCannotRun": {Reason: "ContainerCannotRun", ExitCode: 128},
	} {
		if got := exitCause(&ended); got != want {
			t.Errorf("%+v: %s", ended, got)
		}
	}
	// The kubelet reports only Error. The supervisor reports the cause.
	for _, why := range []string{"OOMKilled", "Unresponsive"} {
		if got := exitCause(&corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137, Message: `{"reason":"` + why +
			`"}`}); got != why {
			t.Errorf("the supervisor reports %s: got %s", why, got)
		}
	}
}

func TestOnlyLongerStepsAreWrittenToTheStatusIfManyConversationsWait(t *testing.T) {
	for backlog, want := range map[int]time.Duration{0: stepThreshold, 100: 4 * time.Second, 5000: stepThresholdMax} {
		if got := StepThreshold(backlog); got != want {
			t.Errorf("backlog of %d: %s, want %s", backlog, got, want)
		}
	}
}
