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
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	crashed := pod().sandboxed().container(corev1.ContainerStatus{Name: sessionContainer,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(at(3))}},
	})
	suspend := func(s *v1alpha1.ConversationSpec) { s.Suspend = true }
	restartAt := func(seconds int) func(*v1alpha1.ConversationSpec) {
		return func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(seconds) }
	}
	noSettings := &problem{v1alpha1.ReasonSettingsNotReady, "UserSettings ada do not exist"}

	for name, tc := range map[string]struct {
		conversation aConversation
		pod          *aPod
		unready      *problem
		stuck        *problem
		now          int
		state        v1alpha1.ConversationState
		reason       string
		message      string
		wish         podWish
	}{
		"a new one needs a pod":                            {conversation: conv(), state: "STARTING", reason: "Scheduling", wish: needPod},
		"one without settings waits for them":              {conversation: conv(), unready: noSettings, state: "STARTING", reason: "SettingsNotReady", message: "UserSettings ada"},
		"a pod without a node is being scheduled":          {conversation: conv().started(0), pod: ptrTo(pod().condition(corev1.PodScheduled, false, "0/3 nodes are available")), state: "STARTING", reason: "Scheduling", message: "0/3 nodes", wish: needPod},
		"a pod with a node gets its volumes":               {conversation: conv().started(0), pod: ptrTo(pod().scheduled().waiting(installContainer, "PodInitializing")), state: "STARTING", reason: "PreparingWorkspace", wish: needPod},
		"an image that is being pulled":                    {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().waiting(installContainer, "ContainerCreating")), state: "STARTING", reason: "PullingImage", message: "example.com/runtime:1", wish: needPod},
		"an image that cannot be pulled is named":          {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "ImagePullBackOff")), state: "STARTING", reason: "PullingImage", message: "example.com/base:1: ImagePullBackOff", wish: needPod},
		"the runtime is put in":                            {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().running(installContainer)), state: "STARTING", reason: "PreparingWorkspace", wish: needPod},
		"the runtime runs and is not ready":                {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().running(sessionContainer)), state: "STARTING", reason: "StartingRuntime", wish: needPod},
		"the session's image after the runtime is in":      {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().installed().waiting(sessionContainer, "PodInitializing")), state: "STARTING", reason: "PullingImage", message: "example.com/base:1", wish: needPod},
		"a ready pod runs":                                 {conversation: conv().started(0), pod: ptrTo(pod().ready()), state: "RUNNING", reason: "Running"},
		"a ready pod that is being deleted does not":       {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().terminating()), state: "STARTING", reason: "Restarting", wish: needPod},
		"a crashed process is restarted":                   {conversation: conv().started(0).ran(2), pod: ptrTo(crashed), state: "STARTING", reason: "Restarting", message: "status 137 (OOMKilled)", wish: needPod},
		"a lost pod is replaced":                           {conversation: conv().started(0).ran(2), state: "STARTING", reason: "Restarting", wish: needPod},
		"an evicted pod is replaced":                       {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().failed("Evicted")), state: "STARTING", reason: "Restarting", message: "Evicted", wish: needPod},
		"a session that says it is done is done":           {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed","message":"all green"}`, 9)), state: "STOPPED", reason: "Completed", message: "all green", wish: keepEnded},
		"a session that says it was idle was":              {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Idle"}`, 9)), state: "STOPPED", reason: "Idle", wish: keepEnded},
		"a session that says it failed failed":             {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Failed","message":"branch x not found"}`, 9)), state: "STOPPED", reason: "Failed", message: "branch x not found", wish: keepEnded},
		"what else an image says is not passed on":         {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `token=hunter2`, 9)), state: "STOPPED", reason: "Completed", message: "The session is done", wish: keepEnded},
		"a pod that exits because it is deleted is no end": {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed"}`, 9).terminating()), state: "STARTING", reason: "Restarting", wish: needPod},
		"an end outlives its pod":                          {conversation: conv().started(0).ran(2).stopped("Completed", 9), state: "STOPPED", reason: "Completed", message: "it was Completed", wish: removePod},
		"an end keeps the pod for its logs":                {conversation: conv().started(0).ran(2).stopped("Completed", 9), pod: ptrTo(pod().ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed", wish: keepEnded},
		"suspended while starting":                         {conversation: conv().with(suspend).started(0), pod: ptrTo(pod().scheduled()), state: "STOPPED", reason: "Suspended", wish: removePod},
		"suspended while running":                          {conversation: conv().with(suspend).started(0).ran(2), pod: ptrTo(pod().ready()), state: "STOPPED", reason: "Suspended", wish: removePod},
		"suspended without settings":                       {conversation: conv().with(suspend), unready: noSettings, state: "STOPPED", reason: "Suspended", wish: removePod},
		"resumed after a suspension":                       {conversation: conv().started(0).ran(2).stopped("Suspended", 9), state: "STARTING", reason: "Scheduling", wish: needPod},
		"restarted after an end":                           {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped("Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", wish: needPod},
		"restarted with the old pod still there":           {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped("Idle", 9), pod: ptrTo(pod().ended(0, `{"reason":"Idle"}`, 9)), now: 61, state: "STARTING", reason: "Scheduling", wish: needPod},
		"a restart in the future waits":                    {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped("Idle", 9), now: 30, state: "STOPPED", reason: "Idle", wish: removePod},
		"a restart by a clock that is behind":              {conversation: conv().with(restartAt(5)).started(0).ran(2).stopped("Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", wish: needPod},
		"a restart that was followed":                      {conversation: conv().with(restartAt(60)).restarted(60).started(60).ran(62).stopped("Idle", 69), now: 70, state: "STOPPED", reason: "Idle", wish: removePod},
		"suspended after its end":                          {conversation: conv().with(suspend).started(0).ran(2).stopped("Completed", 9), state: "STOPPED", reason: "Completed", wish: removePod},
		"a session that does not answer any more":          {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().condition(corev1.PodReady, false, "")), now: 30, state: "STARTING", reason: "Restarting", message: "does not answer", wish: needPod},
		"it is not cut off at the deadline of a start":     {conversation: conv().started(10).ran(2), pod: ptrTo(pod().ready().condition(corev1.PodReady, false, "")), now: 3600, state: "STARTING", reason: "Restarting", wish: needPod},
		"one that crashed, ran again and does not answer":  {conversation: conv().started(0).ran(5), pod: ptrTo(pod().sandboxed().running(sessionContainer).since(4).crashedBefore(3)), now: 3600, state: "STARTING", reason: "Restarting", message: "does not answer", wish: needPod},
		"one that crashed and is not ready again":          {conversation: conv().started(10).ran(2), pod: ptrTo(pod().sandboxed().running(sessionContainer).since(12).crashedBefore(10)), now: 30, state: "STARTING", reason: "Restarting", message: "status 137", wish: needPod},
		"a pod that takes another's place starts":          {conversation: conv().started(100).ran(2), pod: ptrTo(pod().sandboxed().running(sessionContainer).since(120)), now: 130, state: "STARTING", reason: "StartingRuntime", message: "clones the repository", wish: needPod},
		"it is cut off at the deadline":                    {conversation: conv().started(100).ran(2), pod: ptrTo(pod().sandboxed().running(sessionContainer).since(120)), now: 700, state: "STOPPED", reason: "StartDeadlineExceeded", message: "StartingRuntime", wish: removePod},
		"settings that come shortly before the deadline":   {conversation: conv().started(0).because("SettingsNotReady"), now: 601, state: "STARTING", reason: "Scheduling", wish: needPod},
		"a deadline names the step":                        {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "ErrImagePull")), now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "PullingImage: Image example.com/base:1", wish: removePod},
		"a deadline counts from the loss of the pod":       {conversation: conv().started(0).ran(2), pod: ptrTo(crashed), now: 601, state: "STARTING", reason: "Restarting", wish: needPod},
		"settings that never come":                         {conversation: conv().started(0), unready: noSettings, now: 600, state: "STOPPED", reason: "SettingsMissing", message: "UserSettings ada"},
		"settings that are still missing":                  {conversation: conv().started(0).stopped("SettingsMissing", 600), unready: noSettings, now: 700, state: "STOPPED", reason: "SettingsMissing"},
		"settings that come late":                          {conversation: conv().started(0).stopped("SettingsMissing", 600), now: 700, state: "STARTING", reason: "Scheduling", wish: needPod},
		"a foreign object is in the way":                   {conversation: conv().started(0), stuck: &problem{v1alpha1.ReasonForeignObject, "Pod c exists"}, state: "STARTING", reason: "ForeignObject", message: "Pod c", wish: needPod},
		"a deadline passes over a foreign object":          {conversation: conv().started(0), stuck: &problem{v1alpha1.ReasonForeignObject, "Pod c exists"}, now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "ForeignObject: Pod c exists", wish: removePod},
	} {
		t.Run(name, func(t *testing.T) {
			o := observation{conversation: tc.conversation.Conversation, settingsExist: tc.unready == nil, unready: tc.unready, stuck: tc.stuck, now: at(tc.now)}
			if tc.pod != nil {
				o.pod = tc.pod.Pod
			}
			v := judge(o)
			if v.state != tc.state || v.reason != tc.reason || v.wish != tc.wish || !strings.Contains(v.message, tc.message) {
				t.Errorf("got %s %s %q wish %d, want %s %s %q wish %d", v.state, v.reason, v.message, v.wish, tc.state, tc.reason, tc.message, tc.wish)
			}
			if strings.Contains(v.message, "hunter2") || strings.Contains(v.message, "a registry said") {
				t.Errorf("the message passes on what is not ours: %q", v.message)
			}
			if status := conversationStatus(o, v); (status.StopTime != nil) != (tc.state == v1alpha1.StateStopped) {
				t.Errorf("stopTime %v in state %s", status.StopTime, tc.state)
			}
		})
	}
}

func TestASessionIsLookedAtAgainWhenItsDeadlineComesAndNotWithoutEnd(t *testing.T) {
	conv := func() aConversation { return makeConversation("ns", "c") }
	unready := podOf(conv()).ready().condition(corev1.PodReady, false, "")
	for name, tc := range map[string]struct {
		conversation aConversation
		pod          aPod
		now          int
		want         time.Duration
	}{
		"a start":                                   {conv().started(0), podOf(conv()).scheduled(), 30, 570 * time.Second},
		"a pod that takes another's place":          {conv().started(100).ran(2), podOf(conv()).sandboxed().running(sessionContainer).since(120), 130, 570 * time.Second},
		"one that does not answer":                  {conv().started(0).ran(2), unready, 30, 0},
		"one that has not answered for a long time": {conv().started(100).ran(2), unready, 3600, 0},
		"one that runs":                             {conv().started(0).ran(2), podOf(conv()).ready(), 3600, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := observation{conversation: tc.conversation.Conversation, settingsExist: true, pod: tc.pod.Pod, now: at(tc.now)}
			got, err := (&conversationReconciler{}).next(t.Context(), o, judge(o), 0)
			if err != nil || got.RequeueAfter != tc.want {
				t.Errorf("after %s, %v; want %s", got.RequeueAfter, err, tc.want)
			}
		})
	}
}

func TestTheTimeThatASessionDidNotAnswerDoesNotCountAsAStart(t *testing.T) {
	c := makeConversation("ns", "c").started(0).ran(2)
	write := func(pod *corev1.Pod, seconds int) v1alpha1.ConversationStatus {
		o := observation{conversation: c.Conversation, settingsExist: true, pod: pod, now: at(seconds)}
		c.Status = conversationStatus(o, judge(o))
		return c.Status
	}
	unready := podOf(c).ready().condition(corev1.PodReady, false, "")
	for _, seconds := range []int{100, 3600} {
		if got := write(unready.Pod, seconds); got.State != v1alpha1.StateStarting || !strings.Contains(got.Message, "does not answer") {
			t.Fatalf("got %s %q", got.State, got.Message)
		}
	}
	silent := c.Conversation
	for name, next := range map[string]*corev1.Pod{
		"its process is started again": podOf(c).sandboxed().running(sessionContainer).since(3600).crashedBefore(3600).Pod,
		"its pod is lost":              nil,
	} {
		t.Run(name, func(t *testing.T) {
			c.Conversation = silent.DeepCopy()
			for _, seconds := range []int{3601, 4200} {
				if got := write(next, seconds); got.State != v1alpha1.StateStarting || got.Reason != v1alpha1.ReasonRestarting {
					t.Errorf("after %d seconds: %s %s", seconds, got.State, got.Reason)
				}
			}
			if got := write(next, 4201); got.Reason != v1alpha1.ReasonStartDeadlineExceeded {
				t.Errorf("at the deadline: %s %s", got.State, got.Reason)
			}
		})
	}
	t.Run("it answers again", func(t *testing.T) {
		c.Conversation = silent.DeepCopy()
		if got := write(podOf(c).ready().Pod, 3700); got.State != v1alpha1.StateRunning || !got.StartTime.Equal(metaTime(0)) || !got.RunningTime.Equal(metaTime(3700)) {
			t.Errorf("got %s, started %v, running since %v", got.State, got.StartTime, got.RunningTime)
		}
	})
}

func ptrTo[T any](v T) *T { return &v }

func TestASessionWhoseSettingsAreGoneRunsOnAndSaysSo(t *testing.T) {
	c := makeConversation("ns", "c").started(0).ran(2)
	o := observation{conversation: c.Conversation, pod: podOf(c).ready().Pod, now: at(10)}
	status := conversationStatus(o, judge(o))
	if status.State != v1alpha1.StateRunning || !strings.Contains(status.Message, "ada are gone") || !settingsGone(status) {
		t.Errorf("got %s %q %v", status.State, status.Message, status.Conditions)
	}
}

func TestWhatIsWrittenOnceIsNotWrittenAgain(t *testing.T) {
	c := makeConversation("ns", "c")
	for name, pod := range map[string]*corev1.Pod{"starting": podOf(c).sandboxed().running(sessionContainer).Pod, "running": podOf(c).ready().Pod,
		"ended": podOf(c).ready().ended(0, `{"reason":"Idle"}`, 9).Pod} {
		t.Run(name, func(t *testing.T) {
			o := observation{conversation: c.DeepCopy(), settingsExist: true, pod: pod, now: at(10)}
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
		a.StartTime.Equal(b.StartTime) && a.RunningTime.Equal(b.RunningTime) && a.StopTime.Equal(b.StopTime) && len(a.Conditions) == len(b.Conditions)
}

func TestAShortStepOfAStartIsNotWorthAWrite(t *testing.T) {
	starting := v1alpha1.ConversationStatus{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonScheduling, StartTime: metaTime(0)}
	next := starting
	next.Reason = v1alpha1.ReasonPullingImage
	if wait := worthWriting(starting, next, at(1), at(2)); wait != time.Second {
		t.Errorf("a step of one second: wait %s, want 1s", wait)
	}
	if wait := worthWriting(starting, next, at(1), at(3)); wait > 0 {
		t.Errorf("a step of two seconds: wait %s", wait)
	}
	waiting := starting
	waiting.Reason = v1alpha1.ReasonSettingsNotReady
	if wait := worthWriting(waiting, next, at(2), at(2)); wait > 0 {
		t.Errorf("the end of the wait for settings: wait %s", wait)
	}
	next.State = v1alpha1.StateRunning
	if wait := worthWriting(starting, next, at(2), at(2)); wait > 0 {
		t.Errorf("a change of state: wait %s", wait)
	}
}
