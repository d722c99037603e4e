package controllers

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestTheStateOfASessionFollowsFromWhatIsObserved(t *testing.T) {
	for name, tc := range states() {
		t.Run(name, func(t *testing.T) {
			o, v := tc.judged()
			next := ""
			if v.next != nil {
				next = map[[2]bool]string{{true, false}: "asked", {false, true}: "counted",
					{false, false}: "not counted"}[[2]bool{v.next.asked, v.next.counted}]
			}
			if v.state != tc.state || v.reason != tc.reason || v.wish != tc.wish || v.stalled != tc.stalled || next != tc.next ||
				!strings.Contains(v.message, tc.message) {
				t.Errorf("got %s %s %q wish %d, stalled %t, next %q, want %s %s %q wish %d, stalled %t, next %q",
					v.state, v.reason, v.message, v.wish, v.stalled, next, tc.state, tc.reason, tc.message, tc.wish, tc.stalled,
					tc.next)
			}
			if strings.Contains(v.message, "hunter2") {
				t.Errorf("the message passes on what is not ours: %q", v.message)
			}
			if status := conversationStatus(o, v); (status.StopTime != nil) != (tc.state == v1alpha1.StateStopped) {
				t.Errorf("stopTime %v in state %s", status.StopTime, tc.state)
			}
		})
	}
}

func TestAnAttemptIsRecorded(t *testing.T) {
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	record := func(c aConversation, pod *aPod, seconds int) v1alpha1.ConversationStatus {
		o := observation{conversation: c.Conversation, bounds: class{}.bounds(&c.Spec), scratch: c.Spec.Workspace == nil,
			settingsExist: true, now: at(seconds)}
		if pod != nil {
			o.pod = pod.Pod
		}
		return conversationStatus(o, judge(o))
	}
	t.Run("the first needs no record", func(t *testing.T) {
		if s := record(conv(), nil, 0); s.Attempt != 0 || s.FirstAttempt != 0 || s.Restarts != 0 {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("one that runs", func(t *testing.T) {
		if s := record(conv().started(0), ptrTo(pod().ready()), 5); s.RanAttempt != 1 || !s.RunningTime.Equal(metaTime(5)) ||
			s.Attempt != 0 {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a crash", func(t *testing.T) {
		s := record(conv().started(0).ran(5), ptrTo(pod().sandboxed().running(sessionContainer).crashed(2, "OOMKilled")), 65)
		if s.Restarts != 2 || s.PodRestarts != 2 || s.LastRestart != "OOMKilled" || s.RanFor.Duration != time.Minute ||
			s.Attempt != 0 {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a pod in another's place", func(t *testing.T) {
		c := conv().started(0).ran(5).podRestarts(2).restarts(2, "OOMKilled")
		s := record(c, nil, 65)
		if s.Attempt != 2 || s.FirstAttempt != 0 || s.RanAttempt != 1 || s.Restarts != 3 || s.PodRestarts != 0 ||
			s.LastRestart != "the pod was deleted" || s.RanFor.Duration != time.Minute {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a drain counts for nothing", func(t *testing.T) {
		s := record(conv().started(0).ran(5), ptrTo(pod().ready().failed("Evicted").condition(corev1.DisruptionTarget, true,
			"")), 65)
		if s.Attempt != 2 || s.Restarts != 0 || s.LastRestart != "Evicted" {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("somebody's start forgets what was counted", func(t *testing.T) {
		c := conv().attempt(3, 1).started(0).ran(5).restarts(2, "x").ranFor(time.Hour).stopped("Idle",
			9).with(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) })
		s := record(c, nil, 61)
		if s.Attempt != 4 || s.FirstAttempt != 4 || s.Restarts != 0 || s.LastRestart != "" || s.RanFor != nil ||
			!s.RestartedAt.Equal(metaTime(60)) || !s.StartTime.Equal(metaTime(61)) {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a start that comes while it runs is heard and starts nothing later", func(t *testing.T) {
		c := conv().started(0).ran(5).with(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) })
		c.Status = record(c, ptrTo(pod().ready()), 61)
		if s := record(c, ptrTo(pod().ready().ended(0, `{"reason":"Idle"}`, 9)), 99); s.State != v1alpha1.StateStopped ||
			!s.RestartedAt.Equal(metaTime(60)) {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("also if nobody looked before it ended", func(t *testing.T) {
		c := conv().started(0).ran(5).with(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) })
		c.Status = record(c, ptrTo(pod().ready().ended(0, `{"reason":"Idle"}`, 9)), 99)
		if s := record(c, nil, 100); s.State != v1alpha1.StateStopped {
			t.Errorf("recorded %+v", s)
		}
	})
}

func TestASessionIsLookedAtAgainWhenItsTimeComesAndNotWithoutEnd(t *testing.T) {
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	for name, tc := range map[string]struct {
		conversation aConversation
		pod          aPod
		now          int
		want         time.Duration
	}{
		"a start": {conv().started(0), pod().scheduled(), 30, 570 * time.Second},
		"one that does not answer": {conv().started(0).ran(2), pod().ready().condition(corev1.PodReady, false, ""), 3600,
			0},
		"one that runs": {conv().started(0).ran(0), pod().ready(), 3600, 23 * time.Hour},
		"one that runs without bounds": {conv().started(0).ran(0).with(func(s *v1alpha1.ConversationSpec) {
			s.MaxDuration =
				&metav1.Duration{}
		}), pod().ready(), 3600, 0},
		"one that is to start again": {conv().started(0).ran(0).stopped("Idle", 9).with(func(s *v1alpha1.ConversationSpec) {
			s.RestartAt = metaTime(60)
		}), pod().ended(0, "", 9), 30, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			o := observation{conversation: tc.conversation.Conversation, bounds: class{}.bounds(&tc.conversation.Spec),
				scratch: tc.conversation.Spec.Workspace == nil, settingsExist: true, pod: tc.pod.Pod, now: at(tc.now)}
			got, err := (&conversationReconciler{}).next(t.Context(), o, judge(o), nil, 0)
			if err != nil || got.RequeueAfter != tc.want {
				t.Errorf("after %s, %v; want %s", got.RequeueAfter, err, tc.want)
			}
		})
	}
}

func TestABlockedSessionAsksLessAndLessOften(t *testing.T) {
	for waited, want := range map[time.Duration][2]time.Duration{
		0: {5 * time.Second, 8 * time.Second}, time.Minute: {30 * time.Second, 45 * time.Second},
		2 * time.Hour: {5 * time.Minute, 8 * time.Minute},
	} {
		if got := retryStuck(waited); got < want[0] || got > want[1] {
			t.Errorf("after %s it waits %s", waited, got)
		}
	}
}

func ptrTo[T any](v T) *T { return &v }

func TestASessionWhoseSettingsAreGoneRunsOnAndSaysSo(t *testing.T) {
	c := makeConversation("ns", "c").started(0).ran(2)
	o := observation{conversation: c.Conversation, bounds: class{}.bounds(&c.Spec), scratch: c.Spec.Workspace == nil,
		pod: podOf(c).ready().Pod, now: at(10)}
	status := conversationStatus(o, judge(o))
	if status.State != v1alpha1.StateRunning || !strings.Contains(status.Message, "ada are gone") ||
		!settingsGone(status) {
		t.Errorf("got %s %q %v", status.State, status.Message, status.Conditions)
	}
}

func TestWhatIsWrittenOnceIsNotWrittenAgain(t *testing.T) {
	c := makeConversation("ns", "c")
	for name, pod := range map[string]*corev1.Pod{"starting": podOf(c).sandboxed().running(sessionContainer).Pod,
		"running": podOf(c).ready().Pod,
		"ended":   podOf(c).ready().ended(0, `{"reason":"Idle"}`, 9).Pod} {
		t.Run(name, func(t *testing.T) {
			o := observation{conversation: c.DeepCopy(), bounds: class{}.bounds(&c.Spec), scratch: c.Spec.Workspace == nil,
				settingsExist: true, pod: pod, now: at(10)}
			o.conversation.Status = conversationStatus(o, judge(o))
			for later := range 5 {
				o.now = at(20 + 30*later)
				if status := conversationStatus(o, judge(o)); !equalStatus(status, o.conversation.Status) {
					t.Fatalf("changed without a cause:\n%+v\n%+v", o.conversation.Status, status)
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

func TestAShortStepOfAStartIsNotWorthAWrite(t *testing.T) {
	fresh := v1alpha1.ConversationStatus{State: v1alpha1.StateStarting, ObservedGeneration: -1}
	starting := v1alpha1.ConversationStatus{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonScheduling,
		StartTime: metaTime(0)}
	waiting, pulling, running, stopped := starting, starting, starting, starting
	waiting.Reason, pulling.Reason = v1alpha1.ReasonSettingsNotReady, v1alpha1.ReasonPullingImage
	running.State, stopped.State = v1alpha1.StateRunning, v1alpha1.StateStopped
	for name, c := range map[string]struct {
		before, after v1alpha1.ConversationStatus
		verdict       verdict
		now           int
		visible, wait time.Duration
	}{
		"a step of one second": {starting, pulling, verdict{since: at(1), wish: needPod}, 2, stepVisible,
			time.Second},
		"a step of two seconds": {starting, pulling, verdict{since: at(1), wish: needPod}, 3, stepVisible, 0},
		"a step of two seconds under load": {starting, pulling, verdict{since: at(1), wish: needPod}, 3, 20 * time.Second,
			18 * time.Second},
		"a step by a clock that is ahead":  {starting, pulling, verdict{since: at(9), wish: needPod}, 3, stepVisible, 0},
		"the end of the wait for settings": {waiting, pulling, verdict{since: at(2), wish: needPod}, 2, stepVisible, 0},
		"a change of state":                {starting, running, verdict{}, 2, 20 * time.Second, 0},
		"an end":                           {starting, stopped, verdict{wish: removePod}, 2, 20 * time.Second, 0},
		"a pod that was made just now":     {fresh, starting, verdict{wish: needPod}, 2, stepVisible, stepVisible},
		"a pod that waits for its node": {fresh, starting, verdict{since: at(1), wish: needPod}, 2, stepVisible,
			time.Second},
		"one that waits for long":      {fresh, starting, verdict{since: at(1), wish: needPod}, 3, stepVisible, 0},
		"a pod that could not be made": {fresh, starting, verdict{wish: needPod, stuck: true}, 2, stepVisible, 0},
		"a start that needs help": {fresh, starting, verdict{wish: needPod, stuck: true, stalled: true}, 2,
			stepVisible, 0},
		"the wait for settings":             {fresh, waiting, verdict{}, 2, stepVisible, 0},
		"a new one that runs already":       {fresh, running, verdict{}, 2, 20 * time.Second, 0},
		"a new one that is over already":    {fresh, stopped, verdict{wish: keepEnded}, 2, 20 * time.Second, 0},
		"a new one whose pod is taken away": {fresh, starting, verdict{}, 2, stepVisible, 0},
	} {
		if wait := worthWriting(c.before, c.after, c.verdict, at(c.now), c.visible); max(wait, 0) != c.wait {
			t.Errorf("%s: wait %s, want %s", name, wait, c.wait)
		}
	}
}

func TestTheCauseOfARestart(t *testing.T) {
	for want, ended := range map[string]corev1.ContainerStateTerminated{
		"exit status 137":    {Reason: "Error", ExitCode: 137},
		"exit status 2":      {Reason: "Error", ExitCode: 2, Message: "a message of somebody's"},
		"OOMKilled":          {Reason: "OOMKilled", ExitCode: 137},
		"ContainerCannotRun": {Reason: "ContainerCannotRun", ExitCode: 128},
	} {
		if got := causeOf(&ended); got != want {
			t.Errorf("%+v: %s", ended, got)
		}
	}
	// The supervisor knows it where the kubelet does not.
	for _, why := range []string{"OOMKilled", "Unresponsive"} {
		if got := causeOf(&corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137, Message: `{"reason":"` + why +
			`"}`}); got != why {
			t.Errorf("a supervisor that says %s: %s", why, got)
		}
	}
}
