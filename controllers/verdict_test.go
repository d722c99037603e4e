package controllers

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// The state table: where a session stands, by what was recorded of its attempts and what is observed of its pod.
func TestTheStateOfASessionFollowsFromWhatIsObserved(t *testing.T) {
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	silent := func() aPod { return pod().ready().condition(corev1.PodReady, false, "") }
	looping := func(n int32, reason string) aPod {
		return pod().sandboxed().waiting(sessionContainer, "CrashLoopBackOff").crashed(n, reason)
	}
	evicted := func() aPod { return pod().ready().failed("Evicted").condition(corev1.DisruptionTarget, true, "") }
	suspend := func(s *v1alpha1.ConversationSpec) { s.Suspend = true }
	work := func(s *v1alpha1.ConversationSpec) { s.InitialUserMsg = ptrTo("do it") }
	workspace := func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} }
	restartAt := func(seconds int) func(*v1alpha1.ConversationSpec) {
		return func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(seconds) }
	}
	noSettings := &problem{v1alpha1.ReasonSettingsNotReady, "UserSettings ada do not exist"}
	deleted := func(c aConversation) aConversation { c.DeletionTimestamp = metaTime(9); return c }

	for name, tc := range map[string]struct {
		conversation aConversation
		pod          *aPod
		unready      *problem
		now          int
		state        v1alpha1.ConversationState
		reason       string
		message      string
		wish         podWish
		stalled      bool
		// next is what the next attempt comes from: asked, counted or not counted.
		next string
	}{
		// Starting.
		"a new one needs a pod":                       {conversation: conv(), state: "STARTING", reason: "Scheduling", wish: needPod},
		"one without settings waits for them":         {conversation: conv(), unready: noSettings, state: "STARTING", reason: "SettingsNotReady", message: "UserSettings ada"},
		"a pod without a node is being scheduled":     {conversation: conv().started(0), pod: ptrTo(pod().condition(corev1.PodScheduled, false, "0/3 nodes are available")), state: "STARTING", reason: "Scheduling", message: "0/3 nodes", wish: needPod},
		"a pod with a node gets its volumes":          {conversation: conv().started(0), pod: ptrTo(pod().scheduled().waiting(installContainer, "PodInitializing")), state: "STARTING", reason: "PreparingWorkspace", wish: needPod},
		"an image that is being pulled":               {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().waiting(installContainer, "ContainerCreating")), state: "STARTING", reason: "PullingImage", message: "example.com/runtime:1", wish: needPod},
		"an image that cannot be pulled is named":     {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "ImagePullBackOff")), state: "STARTING", reason: "PullingImage", message: "example.com/base:1: ImagePullBackOff", wish: needPod},
		"a container that cannot be made":             {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "CreateContainerError")), state: "STARTING", reason: "StartingRuntime", message: "CreateContainerError", wish: needPod},
		"the runtime is put in":                       {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().running(installContainer)), state: "STARTING", reason: "PreparingWorkspace", wish: needPod},
		"the runtime cannot be put in":                {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().installCrashed()), state: "STARTING", reason: "PreparingWorkspace", message: "could not be put in: exit status 1", wish: needPod},
		"the runtime runs and is not ready":           {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().running(sessionContainer)), state: "STARTING", reason: "StartingRuntime", wish: needPod},
		"the session's image after the runtime is in": {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().installed().waiting(sessionContainer, "PodInitializing")), state: "STARTING", reason: "PullingImage", message: "example.com/base:1", wish: needPod},
		"a ready pod runs":                            {conversation: conv().started(0), pod: ptrTo(pod().ready()), state: "RUNNING", reason: "Running"},
		"a first pod that is deleted is awaited":      {conversation: conv().started(0), pod: ptrTo(pod().scheduled().terminating()), state: "STARTING", reason: "Restarting"},
		"and made again once it is gone":              {conversation: conv().started(0).with(work), state: "STARTING", reason: "Scheduling", wish: needPod},

		// The deadline of a start.
		"a deadline names the step":                      {conversation: conv().started(0), pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "ErrImagePull")), now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "PullingImage: Image example.com/base:1", wish: removePod, stalled: true},
		"it counts from the creation of the pod":         {conversation: conv().started(500), pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "ErrImagePull")), now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", wish: removePod, stalled: true},
		"it is not final for one that ran":               {conversation: conv().started(0).ran(2).attempt(2, 1), pod: ptrTo(pod().attempt("2").sandboxed().waiting(sessionContainer, "ErrImagePull")), now: 600, state: "STARTING", reason: "PullingImage", message: "Not running after 10m0s", wish: needPod, stalled: true},
		"settings that never come":                       {conversation: conv().started(0).because("SettingsNotReady"), unready: noSettings, now: 600, state: "STOPPED", reason: "SettingsMissing", message: "UserSettings ada", stalled: true},
		"settings that are still missing":                {conversation: conv().started(0).stopped("SettingsMissing", 600), unready: noSettings, now: 700, state: "STOPPED", reason: "SettingsMissing", stalled: true},
		"settings that come late":                        {conversation: conv().started(0).stopped("SettingsMissing", 600), now: 700, state: "STARTING", reason: "Scheduling", wish: needPod},
		"settings that come shortly before the deadline": {conversation: conv().started(0).because("SettingsNotReady"), now: 599, state: "STARTING", reason: "Scheduling", wish: needPod},

		"it does not count the time of waiting for a turn": {conversation: conv().started(0).because("Queued"), now: 3600, state: "STARTING", reason: "Scheduling", wish: needPod},
		"nor that of waiting for settings":                 {conversation: conv().started(0).because("SettingsNotReady"), now: 3600, state: "STARTING", reason: "Scheduling", wish: needPod},

		// Ends of the present attempt's pod.
		"a session that says it is done is done":           {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed","message":"all green"}`, 9)), state: "STOPPED", reason: "Completed", message: "all green", wish: keepEnded},
		"a session that says it was idle was":              {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Idle"}`, 9)), state: "STOPPED", reason: "Idle", wish: keepEnded},
		"a session that says it failed failed":             {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Failed","message":"branch x not found"}`, 9)), state: "STOPPED", reason: "Failed", message: "branch x not found", wish: keepEnded, stalled: true},
		"what else an image says is not passed on":         {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `token=hunter2`, 9)), state: "STOPPED", reason: "Completed", message: "The session is done", wish: keepEnded},
		"a sidecar does not hide the end":                  {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed"}`, 9).sidecar()), state: "STOPPED", reason: "Completed", wish: keepEnded},
		"one that ended before anybody saw it run":         {conversation: conv().started(0), pod: ptrTo(pod().ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed", wish: keepEnded},
		"one that ended and is deleted at once":            {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed"}`, 9).terminating()), state: "STOPPED", reason: "Completed", wish: keepEnded},
		"a pod that exits because it is deleted is no end": {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, ``, 9).terminating()), state: "STARTING", reason: "Restarting", next: "counted"},
		"an end outlives its pod":                          {conversation: conv().started(0).ran(2).stopped("Completed", 9), state: "STOPPED", reason: "Completed", message: "it was Completed", wish: removePod},
		"an end keeps the pod for its logs":                {conversation: conv().started(0).ran(2).stopped("Completed", 9), pod: ptrTo(pod().ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed", wish: keepEnded},
		"an end removes a pod in which others still run":   {conversation: conv().started(0).ran(2).stopped("Completed", 9), pod: ptrTo(pod().ended(0, `{"reason":"Completed"}`, 9).sidecar()), state: "STOPPED", reason: "Completed", wish: removePod},
		"an end of an earlier attempt is none of this":     {conversation: conv().attempt(2, 2).started(9), pod: ptrTo(pod().attempt("1").ended(0, `{"reason":"Completed"}`, 9)), state: "STARTING", reason: "Scheduling", message: "attempt before", wish: needPod},

		// Restarts.
		"a crashed process is restarted":              {conversation: conv().started(0).ran(2), pod: ptrTo(looping(1, "OOMKilled")), state: "STARTING", reason: "Restarting", message: "status 137 (OOMKilled)", wish: needPod},
		"as often as the limit":                       {conversation: conv().started(0).ran(2), pod: ptrTo(looping(5, "OOMKilled")), state: "STARTING", reason: "Restarting", wish: needPod},
		"and not more often":                          {conversation: conv().started(0).ran(2), pod: ptrTo(looping(6, "OOMKilled")), state: "STOPPED", reason: "Failed", message: "6 times, more than the 5 that its class allows; the last time because of: OOMKilled", wish: removePod, stalled: true},
		"also if it never ran":                        {conversation: conv().started(0), pod: ptrTo(looping(6, "Error")), state: "STOPPED", reason: "Failed", message: "exit status 137", wish: removePod, stalled: true},
		"pods that were replaced count with it":       {conversation: conv().started(0).ran(2).attempt(4, 1).restarts(3, "x"), pod: ptrTo(looping(3, "OOMKilled").attempt("4")), state: "STOPPED", reason: "Failed", message: "6 times", wish: removePod, stalled: true},
		"a session that does not answer any more":     {conversation: conv().started(0).ran(2), pod: ptrTo(silent()), now: 30, state: "STARTING", reason: "Restarting", message: "does not answer", wish: needPod},
		"it is not cut off at the deadline":           {conversation: conv().started(0).ran(2), pod: ptrTo(silent()), now: 3600, state: "STARTING", reason: "Restarting", message: "does not answer", wish: needPod},
		"one that crashed before and does not":        {conversation: conv().started(0).ran(2).podRestarts(1), pod: ptrTo(silent().crashed(1, "OOMKilled")), state: "STARTING", reason: "Restarting", message: "does not answer", wish: needPod},
		"one that crashed and is not ready again":     {conversation: conv().started(0).ran(2), pod: ptrTo(pod().sandboxed().running(sessionContainer).crashed(1, "OOMKilled")), state: "STARTING", reason: "Restarting", message: "status 137", wish: needPod},
		"a pod that takes another's place starts":     {conversation: conv().started(0).ran(2).attempt(2, 1), pod: ptrTo(pod().attempt("2").sandboxed().running(sessionContainer)), state: "STARTING", reason: "StartingRuntime", message: "clones the repository", wish: needPod},
		"a replacement that is not there yet":         {conversation: conv().started(0).ran(2).attempt(2, 1).restarts(1, "Evicted"), state: "STARTING", reason: "Restarting", message: "Evicted", wish: needPod},
		"the old pod goes before a new one is made":   {conversation: conv().started(0).ran(2).attempt(2, 1), pod: ptrTo(pod().attempt("1").ready()), state: "STARTING", reason: "Scheduling", wish: needPod},
		"a ready pod that is deleted is awaited":      {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().terminating()), state: "STARTING", reason: "Restarting"},
		"a pod that cannot run at all is replaced":    {conversation: conv().started(0), pod: ptrTo(pod().failed("OutOfcpu")), state: "STARTING", reason: "Restarting", message: "OutOfcpu", next: "counted"},
		"a lost pod is replaced":                      {conversation: conv().started(0).ran(2), state: "STARTING", reason: "Restarting", next: "counted"},
		"an evicted pod is replaced without counting": {conversation: conv().started(0).ran(2), pod: ptrTo(evicted()), state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},

		"one that exits with 0 because it is evicted": {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, "", 9).failed("Evicted").condition(corev1.DisruptionTarget, true, "")), state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},
		"one that says why before it is evicted":      {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed"}`, 9).failed("Evicted").condition(corev1.DisruptionTarget, true, "")), state: "STOPPED", reason: "Completed", wish: keepEnded},

		// Lost work.
		"lost with work and without a workspace":        {conversation: conv().with(work).started(0).ran(2), state: "STOPPED", reason: "Lost", message: "not begun again", wish: removePod, stalled: true},
		"evicted with work and without a workspace":     {conversation: conv().with(work).started(0).ran(2), pod: ptrTo(evicted()), state: "STOPPED", reason: "Lost", message: "Evicted", wish: removePod, stalled: true},
		"lost with work and with a workspace":           {conversation: conv().with(work).with(workspace).started(0).ran(2), state: "STARTING", reason: "Restarting", next: "counted"},
		"a pod that failed before it ran has no losses": {conversation: conv().with(work).started(0), pod: ptrTo(pod().failed("OutOfcpu")), state: "STARTING", reason: "Restarting", next: "counted"},
		"evicted before anybody saw it run":             {conversation: conv().with(work).started(0), pod: ptrTo(evicted()), state: "STOPPED", reason: "Lost", message: "Evicted", wish: removePod, stalled: true},
		"deleted before anybody saw it run":             {conversation: conv().with(work).started(0), pod: ptrTo(pod().ready().ended(137, "", 9).terminating()), state: "STOPPED", reason: "Lost", wish: removePod, stalled: true},
		"unseen, and with a workspace":                  {conversation: conv().with(work).with(workspace).started(0), pod: ptrTo(evicted()), state: "STARTING", reason: "Restarting", next: "not counted"},
		"a loss stays lost":                             {conversation: conv().with(work).started(0).ran(2).stopped("Lost", 9), state: "STOPPED", reason: "Lost", wish: removePod, stalled: true},

		// Asked to stop and to start.
		"suspended while starting":                     {conversation: conv().with(suspend).started(0), pod: ptrTo(pod().scheduled()), state: "STOPPED", reason: "Suspended", wish: removePod},
		"suspended while running":                      {conversation: conv().with(suspend).started(0).ran(2), pod: ptrTo(pod().ready()), state: "STOPPED", reason: "Suspended", wish: removePod},
		"suspended without settings":                   {conversation: conv().with(suspend), unready: noSettings, state: "STOPPED", reason: "Suspended", wish: removePod},
		"suspended after its end":                      {conversation: conv().with(suspend).started(0).ran(2).stopped("Completed", 9), state: "STOPPED", reason: "Completed", wish: removePod},
		"suspended and gone with its work":             {conversation: conv().with(suspend).with(work).started(0).ran(2).stopped("Suspended", 9), state: "STOPPED", reason: "Suspended", wish: removePod},
		"resumed after a suspension":                   {conversation: conv().with(work).started(0).ran(2).stopped("Suspended", 9), state: "STARTING", reason: "Scheduling", next: "asked"},
		"resumed with the old pod still there":         {conversation: conv().started(0).ran(2).stopped("Suspended", 9), pod: ptrTo(pod().ready().terminating()), state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted after an end":                       {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped("Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted after a loss":                       {conversation: conv().with(work).with(restartAt(60)).started(0).ran(2).stopped("Lost", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted with the old pod still there":       {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped("Idle", 9), pod: ptrTo(pod().ended(0, `{"reason":"Idle"}`, 9)), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"a restart in the future waits":                {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped("Idle", 9), now: 30, state: "STOPPED", reason: "Idle", wish: removePod},
		"a restart waits while it is suspended":        {conversation: conv().with(restartAt(20)).with(suspend).started(0).ran(2).stopped("Idle", 9), now: 30, state: "STOPPED", reason: "Idle", wish: removePod},
		"a restart by a clock that is behind":          {conversation: conv().with(restartAt(5)).started(0).ran(2).stopped("Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"a restart that was followed":                  {conversation: conv().with(restartAt(60)).restarted(60).started(60).ran(62).stopped("Idle", 69), now: 70, state: "STOPPED", reason: "Idle", wish: removePod},
		"a restart that comes while it runs":           {conversation: conv().with(restartAt(60)).started(0).ran(2), pod: ptrTo(pod().ready()), now: 70, state: "RUNNING", reason: "Running"},
		"a Conversation that is deleted loses its pod": {conversation: deleted(conv().started(0).ran(2)), pod: ptrTo(pod().ready()), state: "STOPPED", reason: "Deleted", wish: removePod},

		// How long it may run.
		"one that ran for as long as it may":    {conversation: conv().started(0).ran(0), pod: ptrTo(pod().ready()), now: 86400, state: "STOPPED", reason: "MaxDuration", message: "24h0m0s", wish: removePod},
		"over all its attempts":                 {conversation: conv().attempt(2, 1).ranFor(24 * time.Hour).started(0), pod: ptrTo(pod().attempt("2").sandboxed()), state: "STOPPED", reason: "MaxDuration", wish: removePod},
		"what it ran before it was asked again": {conversation: conv().attempt(2, 2).started(0).ran(0), pod: ptrTo(pod().attempt("2").ready()), now: 86399, state: "RUNNING", reason: "Running"},
	} {
		t.Run(name, func(t *testing.T) {
			o := observation{conversation: tc.conversation.Conversation, bounds: class{}.bounds(&tc.conversation.Spec), scratch: tc.conversation.Spec.Workspace == nil, settingsExist: tc.unready == nil, unready: tc.unready, now: at(tc.now)}
			if tc.pod != nil && madeFor(tc.pod.Labels) == attemptOf(tc.conversation.Status) {
				o.pod = tc.pod.Pod
			} else if tc.pod != nil {
				o.old = tc.pod.Pod
			}
			v := judge(o)
			next := ""
			if v.next != nil {
				next = map[[2]bool]string{{true, false}: "asked", {false, true}: "counted", {false, false}: "not counted"}[[2]bool{v.next.asked, v.next.counted}]
			}
			if v.state != tc.state || v.reason != tc.reason || v.wish != tc.wish || v.stalled != tc.stalled || next != tc.next || !strings.Contains(v.message, tc.message) {
				t.Errorf("got %s %s %q wish %d, stalled %t, next %q, want %s %s %q wish %d, stalled %t, next %q",
					v.state, v.reason, v.message, v.wish, v.stalled, next, tc.state, tc.reason, tc.message, tc.wish, tc.stalled, tc.next)
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

func TestAnAttemptIsRecorded(t *testing.T) {
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	record := func(c aConversation, pod *aPod, seconds int) v1alpha1.ConversationStatus {
		o := observation{conversation: c.Conversation, bounds: class{}.bounds(&c.Spec), scratch: c.Spec.Workspace == nil, settingsExist: true, now: at(seconds)}
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
		if s := record(conv().started(0), ptrTo(pod().ready()), 5); s.RanAttempt != 1 || !s.RunningTime.Equal(metaTime(5)) || s.Attempt != 0 {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a crash", func(t *testing.T) {
		s := record(conv().started(0).ran(5), ptrTo(pod().sandboxed().running(sessionContainer).crashed(2, "OOMKilled")), 65)
		if s.Restarts != 2 || s.PodRestarts != 2 || s.LastRestart != "OOMKilled" || s.RanFor.Duration != time.Minute || s.Attempt != 0 {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a pod in another's place", func(t *testing.T) {
		c := conv().started(0).ran(5).podRestarts(2).restarts(2, "OOMKilled")
		s := record(c, nil, 65)
		if s.Attempt != 2 || s.FirstAttempt != 0 || s.RanAttempt != 1 || s.Restarts != 3 || s.PodRestarts != 0 || s.LastRestart != "the pod was deleted" || s.RanFor.Duration != time.Minute {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a drain counts for nothing", func(t *testing.T) {
		s := record(conv().started(0).ran(5), ptrTo(pod().ready().failed("Evicted").condition(corev1.DisruptionTarget, true, "")), 65)
		if s.Attempt != 2 || s.Restarts != 0 || s.LastRestart != "Evicted" {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("somebody's start forgets what was counted", func(t *testing.T) {
		c := conv().attempt(3, 1).started(0).ran(5).restarts(2, "x").ranFor(time.Hour).stopped("Idle", 9).with(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) })
		s := record(c, nil, 61)
		if s.Attempt != 4 || s.FirstAttempt != 4 || s.Restarts != 0 || s.LastRestart != "" || s.RanFor != nil || !s.RestartedAt.Equal(metaTime(60)) || !s.StartTime.Equal(metaTime(61)) {
			t.Errorf("recorded %+v", s)
		}
	})
	t.Run("a start that comes while it runs is heard and starts nothing later", func(t *testing.T) {
		c := conv().started(0).ran(5).with(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) })
		c.Status = record(c, ptrTo(pod().ready()), 61)
		if s := record(c, ptrTo(pod().ready().ended(0, `{"reason":"Idle"}`, 9)), 99); s.State != v1alpha1.StateStopped || !s.RestartedAt.Equal(metaTime(60)) {
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
		"a start":                      {conv().started(0), pod().scheduled(), 30, 570 * time.Second},
		"one that does not answer":     {conv().started(0).ran(2), pod().ready().condition(corev1.PodReady, false, ""), 3600, 0},
		"one that runs":                {conv().started(0).ran(0), pod().ready(), 3600, 23 * time.Hour},
		"one that runs without bounds": {conv().started(0).ran(0).with(func(s *v1alpha1.ConversationSpec) { s.MaxDuration = &metav1.Duration{} }), pod().ready(), 3600, 0},
		"one that is to start again":   {conv().started(0).ran(0).stopped("Idle", 9).with(func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(60) }), pod().ended(0, "", 9), 30, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			o := observation{conversation: tc.conversation.Conversation, bounds: class{}.bounds(&tc.conversation.Spec), scratch: tc.conversation.Spec.Workspace == nil, settingsExist: true, pod: tc.pod.Pod, now: at(tc.now)}
			got, err := (&conversationReconciler{}).next(t.Context(), o, judge(o), nil, 0)
			if err != nil || got.RequeueAfter != tc.want {
				t.Errorf("after %s, %v; want %s", got.RequeueAfter, err, tc.want)
			}
		})
	}
}

func TestABlockedSessionAsksLessAndLessOften(t *testing.T) {
	c := makeConversation("ns", "c").started(0)
	for seconds, want := range map[int][2]time.Duration{0: {5 * time.Second, 8 * time.Second}, 60: {30 * time.Second, 45 * time.Second}, 7200: {5 * time.Minute, 8 * time.Minute}} {
		if got := retryStuck(observation{conversation: c.Conversation, now: at(seconds)}); got < want[0] || got > want[1] {
			t.Errorf("after %d seconds it waits %s", seconds, got)
		}
	}
}

func ptrTo[T any](v T) *T { return &v }

func TestASessionWhoseSettingsAreGoneRunsOnAndSaysSo(t *testing.T) {
	c := makeConversation("ns", "c").started(0).ran(2)
	o := observation{conversation: c.Conversation, bounds: class{}.bounds(&c.Spec), scratch: c.Spec.Workspace == nil, pod: podOf(c).ready().Pod, now: at(10)}
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
			o := observation{conversation: c.DeepCopy(), bounds: class{}.bounds(&c.Spec), scratch: c.Spec.Workspace == nil, settingsExist: true, pod: pod, now: at(10)}
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
	if wait := worthWriting(starting, next, verdict{since: at(1)}, at(2)); wait != time.Second {
		t.Errorf("a step of one second: wait %s, want 1s", wait)
	}
	if wait := worthWriting(starting, next, verdict{since: at(1)}, at(3)); wait > 0 {
		t.Errorf("a step of two seconds: wait %s", wait)
	}
	waiting := starting
	waiting.Reason = v1alpha1.ReasonSettingsNotReady
	if wait := worthWriting(waiting, next, verdict{since: at(2)}, at(2)); wait > 0 {
		t.Errorf("the end of the wait for settings: wait %s", wait)
	}
	next.State = v1alpha1.StateRunning
	if wait := worthWriting(starting, next, verdict{since: at(2)}, at(2)); wait > 0 {
		t.Errorf("a change of state: wait %s", wait)
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
	// The runtime knows it where the kubelet does not.
	if got := causeOf(&corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137, Message: `{"reason":"OOMKilled"}`}); got != "OOMKilled" {
		t.Errorf("a runtime that says so: %s", got)
	}
}
