package lifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// aState is a state of a session: what was recorded of its attempts and what is observed, and where
// it stands by that.
type aState struct {
	conversation aConversation
	pod          *aPod
	unready      *Blocker
	// queued is how many sessions its user may have running, where it waits for one of them;
	// refused why its pod is not made.
	// waited is why it was refused when it had its turn.
	queued  int32
	waited  string
	refused *Blocker
	now     int
	state   v1alpha1.ConversationState
	reason  string
	message string
	wish    PodAction
	stalled bool
	// next is what the next attempt comes from: asked, counted or not counted.
	next string
}

// judged is what the operator would see, and find.
func (s aState) judged() (Observation, Verdict) {
	o := Observation{QueueLimit: s.queued, Refusal: s.waited, Conversation: s.conversation.Conversation,
		Bounds: boundsOf(&s.conversation.Spec), Scratch: s.conversation.Spec.Workspace == nil,
		SettingsExist: s.unready == nil, Unready: s.unready, Now: at(s.now)}
	if s.pod != nil && LabelledAttempt(s.pod.Labels) == Attempt(s.conversation.Status) {
		o.Pod = s.pod.Pod
	} else if s.pod != nil {
		o.OldPod = s.pod.Pod
	}
	v := Judge(o)
	if s.refused != nil {
		v = v.BlockedBy(o, s.refused)
	}
	return o, v
}

// states is the table of all states. Whatever judges a session, such as the health checks of GitOps
// tools, is tested with it.
func states() map[string]aState {
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	silent := func() aPod { return pod().Ready().Condition(corev1.PodReady, false, "") }
	looping := func(n int32, reason string) aPod {
		return pod().Sandboxed().Waiting(SessionContainer, "CrashLoopBackOff").Crashed(n, reason)
	}
	evicted := func() aPod { return pod().Ready().Failed("Evicted").Condition(corev1.DisruptionTarget, true, "") }
	suspend := func(s *v1alpha1.ConversationSpec) { s.Suspend = true }
	work := func(s *v1alpha1.ConversationSpec) { s.InitialUserMsg = ptrTo("do it") }
	workspace := func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} }
	restartAt := func(seconds int) func(*v1alpha1.ConversationSpec) {
		return func(s *v1alpha1.ConversationSpec) { s.RestartAt = metaTime(seconds) }
	}
	noSettings := &Blocker{v1alpha1.ReasonSettingsNotReady, "UserSettings ada do not exist"}
	deleted := func(c aConversation) aConversation { c.DeletionTimestamp = metaTime(9); return c }

	return map[string]aState{
		// Starting.
		"a new one needs a pod": {conversation: conv(), state: "STARTING", reason: "Scheduling",
			wish: NeedPod},
		"one without settings waits for them": {conversation: conv(), unready: noSettings, state: "STARTING",
			reason: "SettingsNotReady", message: "UserSettings ada"},
		"a pod without a node is being scheduled": {conversation: conv().Started(0),
			pod: ptrTo(pod().Condition(corev1.PodScheduled, false, "0/3 nodes are available")), state: "STARTING",
			reason: "Scheduling", message: "0/3 nodes", wish: NeedPod},
		"a pod with a node gets its volumes": {conversation: conv().Started(0),
			pod: ptrTo(pod().Scheduled().Waiting(InstallContainer, "PodInitializing")), state: "STARTING",
			reason: "PreparingWorkspace", wish: NeedPod},
		"an image that is being pulled": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Waiting(InstallContainer, "ContainerCreating")), state: "STARTING",
			reason: "PullingImage", message: "example.com/runtime:1", wish: NeedPod},
		"an image that cannot be pulled is named": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Waiting(SessionContainer, "ImagePullBackOff")), state: "STARTING",
			reason: "PullingImage", message: "Image example.com/base:1: ImagePullBackOff",
			wish: NeedPod},
		"a container that cannot be made": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Waiting(SessionContainer, "CreateContainerError")), state: "STARTING",
			reason: "StartingRuntime", message: "session cannot be started: CreateContainerError", wish: NeedPod},
		"the runtime is put in": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Running(InstallContainer)), state: "STARTING", reason: "PreparingWorkspace",
			wish: NeedPod},
		"the runtime cannot be put in": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().InstallCrashed()), state: "STARTING", reason: "PreparingWorkspace",
			message: "could not be put in: exit status 1", wish: NeedPod},
		"the runtime runs and is not ready": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Running(SessionContainer)), state: "STARTING", reason: "StartingRuntime",
			wish: NeedPod},
		"the session's image after the runtime is in": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Installed().Waiting(SessionContainer, "PodInitializing")), state: "STARTING",
			reason: "PullingImage", message: "example.com/base:1", wish: NeedPod},
		"a ready pod runs": {conversation: conv().Started(0), pod: ptrTo(pod().Ready()),
			state: "RUNNING", reason: "Running"},
		"a first pod that is deleted is awaited": {conversation: conv().Started(0),
			pod: ptrTo(pod().Scheduled().Terminating()), state: "STARTING", reason: "Restarting"},
		"and made again once it is gone": {conversation: conv().Started(0).With(work), state: "STARTING",
			reason: "Scheduling", wish: NeedPod},

		// Held up.
		"one that waits for its turn": {conversation: conv(), queued: 2, state: "STARTING", reason: "Queued",
			message: "allows 2 running sessions per user"},
		"one that waits for another turn": {conversation: conv().Started(0).Because("Rejected"), queued: 2,
			waited: "exceeded quota", now: 3600, state: "STARTING", reason: "Queued",
			message: "when one of them ends. Its last start was refused: exceeded quota"},
		"one that asks for too much": {conversation: conv().Started(0), refused: &Blocker{v1alpha1.ReasonNotAllowed,
			"spec.workspace"}, state: "STARTING", reason: "NotAllowed", message: "spec.workspace", wish: NeedPod, stalled: true},
		"one whose pod's name is taken": {conversation: conv().Started(0), refused: &Blocker{v1alpha1.ReasonForeignObject,
			"Pod c-session"}, state: "STARTING", reason: "ForeignObject", wish: NeedPod, stalled: true},
		"one that a quota refuses": {conversation: conv().Started(0), refused: &Blocker{v1alpha1.ReasonRejected,
			"exceeded quota"}, state: "STARTING", reason: "Rejected", wish: NeedPod},
		"one that a quota refuses too long": {conversation: conv().Started(0), refused: &Blocker{v1alpha1.ReasonRejected,
			"exceeded quota"}, now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "Rejected: exceeded quota",
			wish: RemovePod, stalled: true},
		"one whose last refusal is too old": {conversation: conv().Started(0).Because("Rejected").Saying("exceeded quota"),
			now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "stuck at Rejected: exceeded quota",
			wish: RemovePod, stalled: true},

		// The deadline of a start.
		"a deadline names the step": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Waiting(SessionContainer, "ErrImagePull")), now: 600, state: "STOPPED",
			reason: "StartDeadlineExceeded", message: "PullingImage: Image example.com/base:1", wish: RemovePod, stalled: true},
		"it counts from the creation of the pod": {conversation: conv().Started(500),
			pod: ptrTo(pod().Sandboxed().Waiting(SessionContainer, "ErrImagePull")), now: 600, state: "STOPPED",
			reason: "StartDeadlineExceeded", wish: RemovePod, stalled: true},
		"it is not final for one that ran": {conversation: conv().Started(0).Ran(2).Attempt(2, 1),
			pod: ptrTo(pod().Attempt("2").Sandboxed().Waiting(SessionContainer, "ErrImagePull")), now: 600, state: "STARTING",
			reason: "PullingImage", message: "Not running after 10m0s", wish: NeedPod, stalled: true},
		"settings that never come": {conversation: conv().Started(0).Because("SettingsNotReady"),
			unready: noSettings, now: 600, state: "STOPPED", reason: "SettingsMissing", message: "UserSettings ada",
			stalled: true},
		"settings that are still missing": {conversation: conv().Started(0).Stopped("SettingsMissing", 600),
			unready: noSettings, now: 700, state: "STOPPED", reason: "SettingsMissing", stalled: true},
		"settings that come late": {conversation: conv().Started(0).Stopped("SettingsMissing", 600),
			now: 700, state: "STARTING", reason: "Scheduling", wish: NeedPod},
		"settings that come shortly before the deadline": {conversation: conv().Started(0).Because("SettingsNotReady"),
			now: 599, state: "STARTING", reason: "Scheduling", wish: NeedPod},

		"it does not count the time of waiting for a turn": {conversation: conv().Started(0).Because("Queued"), now: 3600,
			state: "STARTING", reason: "Scheduling", wish: NeedPod},
		"nor that of waiting for settings": {conversation: conv().Started(0).Because("SettingsNotReady"), now: 3600,
			state: "STARTING", reason: "Scheduling", wish: NeedPod},

		// Ends of the present attempt's pod.
		"a session that says it is done is done": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Completed","message":"all green"}`, 9)), state: "STOPPED",
			reason: "Completed", message: "all green", wish: KeepEndedPod},
		"a session that says it was idle was": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Idle"}`, 9)), state: "STOPPED", reason: "Idle", wish: KeepEndedPod},
		"a session that says it failed failed": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Failed","message":"branch x not found"}`, 9)), state: "STOPPED",
			reason: "Failed", message: "branch x not found", wish: KeepEndedPod, stalled: true},
		"what else an image says is not passed on": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `token=hunter2`, 9)), state: "STOPPED", reason: "Completed",
			message: "The session is done", wish: KeepEndedPod},
		"a sidecar does not hide the end": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Completed"}`, 9).Sidecar()), state: "STOPPED", reason: "Completed",
			wish: KeepEndedPod},
		"one that ended before anybody saw it run": {conversation: conv().Started(0),
			pod: ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed", wish: KeepEndedPod},
		"one that ended and is deleted at once": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Completed"}`, 9).Terminating()), state: "STOPPED", reason: "Completed",
			wish: KeepEndedPod},
		"a pod that exits because it is deleted is no end": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, ``, 9).Terminating()), state: "STARTING", reason: "Restarting", next: "counted"},
		"an end outlives its pod": {conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			state: "STOPPED", reason: "Completed", message: "it was Completed", wish: RemovePod},
		"an end keeps the pod for its logs": {conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			pod: ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed", wish: KeepEndedPod},
		"an end removes a pod in which others still run": {conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			pod: ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9).Sidecar()), state: "STOPPED", reason: "Completed",
			wish: RemovePod},
		"an end of an earlier attempt is none of this": {conversation: conv().Attempt(2, 2).Started(9),
			pod: ptrTo(pod().Attempt("1").Ended(0, `{"reason":"Completed"}`, 9)), state: "STARTING", reason: "Scheduling",
			message: "attempt before", wish: NeedPod},

		// Restarts.
		"a crashed process is restarted": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(looping(1, "OOMKilled")), state: "STARTING", reason: "Restarting", message: "status 137 (OOMKilled)",
			wish: NeedPod},
		"as often as the limit": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(looping(5, "OOMKilled")), state: "STARTING", reason: "Restarting", wish: NeedPod},
		"and not more often": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(looping(6, "OOMKilled")), state: "STOPPED", reason: "Failed", message: "6 times, more than the 5 that " +
				"its class allows; the last time because of: OOMKilled", wish: RemovePod, stalled: true},
		"also if it never ran": {conversation: conv().Started(0), pod: ptrTo(looping(6, "Error")),
			state: "STOPPED", reason: "Failed", message: "exit status 137", wish: RemovePod, stalled: true},
		"pods that were replaced count with it": {conversation: conv().Started(0).Ran(2).Attempt(4, 1).Restarts(3, "x"),
			pod: ptrTo(looping(3, "OOMKilled").Attempt("4")), state: "STOPPED", reason: "Failed", message: "6 times",
			wish: RemovePod, stalled: true},
		"a session that does not answer any more": {conversation: conv().Started(0).Ran(2), pod: ptrTo(silent()), now: 30,
			state: "STARTING", reason: "Restarting", message: "does not answer", wish: NeedPod},
		"it is not cut off at the deadline": {conversation: conv().Started(0).Ran(2), pod: ptrTo(silent()),
			now: 3600, state: "STARTING", reason: "Restarting", message: "does not answer", wish: NeedPod},
		"one that crashed before and does not": {conversation: conv().Started(0).Ran(2).PodRestarts(1),
			pod: ptrTo(silent().Crashed(1, "OOMKilled")), state: "STARTING", reason: "Restarting", message: "does not answer",
			wish: NeedPod},
		"one that crashed and is not ready again": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Sandboxed().Running(SessionContainer).Crashed(1, "OOMKilled")), state: "STARTING",
			reason: "Restarting", message: "status 137", wish: NeedPod},
		"a pod that takes another's place starts": {conversation: conv().Started(0).Ran(2).Attempt(2, 1),
			pod: ptrTo(pod().Attempt("2").Sandboxed().Running(SessionContainer)), state: "STARTING", reason: "StartingRuntime",
			message: "connects tool servers", wish: NeedPod},
		"a replacement that is not there yet": {conversation: conv().Started(0).Ran(2).Attempt(2, 1).Restarts(1,
			"Evicted"), state: "STARTING", reason: "Restarting", message: "Evicted", wish: NeedPod},
		"the old pod goes before a new one is made": {conversation: conv().Started(0).Ran(2).Attempt(2, 1),
			pod: ptrTo(pod().Attempt("1").Ready()), state: "STARTING", reason: "Scheduling", wish: NeedPod},
		"a ready pod that is deleted is awaited": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Terminating()), state: "STARTING", reason: "Restarting"},
		"a pod that cannot run at all is replaced": {conversation: conv().Started(0), pod: ptrTo(pod().Failed("OutOfcpu")),
			state: "STARTING", reason: "Restarting", message: "OutOfcpu", next: "counted"},
		"a lost pod is replaced": {conversation: conv().Started(0).Ran(2), state: "STARTING",
			reason: "Restarting", next: "counted"},
		"an evicted pod is replaced without counting": {conversation: conv().Started(0).Ran(2), pod: ptrTo(evicted()),
			state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},

		"one that exits with 0 because it is evicted": {conversation: conv().Started(0).Ran(2),
			pod:   ptrTo(pod().Ready().Ended(0, "", 9).Failed("Evicted").Condition(corev1.DisruptionTarget, true, "")),
			state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},
		"one that says why before it is evicted": {conversation: conv().Started(0).Ran(2), pod: ptrTo(pod().Ready().Ended(0,
			`{"reason":"Completed"}`, 9).Failed("Evicted").Condition(corev1.DisruptionTarget, true, "")), state: "STOPPED",
			reason: "Completed", wish: KeepEndedPod},

		// Lost work.
		"lost with work and without a workspace": {conversation: conv().With(work).Started(0).Ran(2), state: "STOPPED",
			reason: "Lost", message: "not begun again", wish: RemovePod, stalled: true},
		"evicted with work and without a workspace": {conversation: conv().With(work).Started(0).Ran(2),
			pod: ptrTo(evicted()), state: "STOPPED", reason: "Lost", message: "Evicted", wish: RemovePod, stalled: true},
		"lost with work and with a workspace": {conversation: conv().With(work).With(workspace).Started(0).Ran(2),
			state: "STARTING", reason: "Restarting", next: "counted"},
		"a pod that failed before it ran has no losses": {conversation: conv().With(work).Started(0),
			pod: ptrTo(pod().Failed("OutOfcpu")), state: "STARTING", reason: "Restarting", next: "counted"},
		"evicted before anybody saw it run": {conversation: conv().With(work).Started(0), pod: ptrTo(evicted()),
			state: "STOPPED", reason: "Lost", message: "Evicted", wish: RemovePod, stalled: true},
		"deleted before anybody saw it run": {conversation: conv().With(work).Started(0), pod: ptrTo(pod().Ready().Ended(137,
			"", 9).Terminating()), state: "STOPPED", reason: "Lost", wish: RemovePod, stalled: true},
		"Unseen, and with a workspace": {conversation: conv().With(work).With(workspace).Started(0), pod: ptrTo(evicted()),
			state: "STARTING", reason: "Restarting", next: "not counted"},
		"a loss stays lost": {conversation: conv().With(work).Started(0).Ran(2).Stopped("Lost", 9), state: "STOPPED",
			reason: "Lost", wish: RemovePod, stalled: true},

		// Asked to stop and to start.
		"suspended while starting": {conversation: conv().With(suspend).Started(0),
			pod: ptrTo(pod().Scheduled()), state: "STOPPED", reason: "Suspended", wish: RemovePod},
		"suspended while running": {conversation: conv().With(suspend).Started(0).Ran(2),
			pod: ptrTo(pod().Ready()), state: "STOPPED", reason: "Suspended", wish: RemovePod},
		"suspended without settings": {conversation: conv().With(suspend), unready: noSettings,
			state: "STOPPED", reason: "Suspended", wish: RemovePod},
		"suspended after its end": {conversation: conv().With(suspend).Started(0).Ran(2).Stopped(
			"Completed", 9), state: "STOPPED", reason: "Completed", wish: RemovePod},
		"suspended and gone with its work": {conversation: conv().With(suspend).With(work).Started(0).Ran(
			2).Stopped("Suspended", 9), state: "STOPPED", reason: "Suspended", wish: RemovePod},
		"resumed after a suspension": {conversation: conv().With(work).Started(0).Ran(2).Stopped(
			"Suspended", 9), state: "STARTING", reason: "Scheduling", next: "asked"},
		"resumed with the old pod still there": {conversation: conv().Started(0).Ran(2).Stopped("Suspended", 9),
			pod: ptrTo(pod().Ready().Terminating()), state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted after an end": {conversation: conv().With(restartAt(60)).Started(0).Ran(2).Stopped(
			"Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted after a loss": {conversation: conv().With(work).With(restartAt(60)).Started(0).Ran(
			2).Stopped("Lost", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted with the old pod still there": {conversation: conv().With(restartAt(60)).Started(0).Ran(2).Stopped(
			"Idle", 9), pod: ptrTo(pod().Ended(0, `{"reason":"Idle"}`, 9)), now: 61, state: "STARTING", reason: "Scheduling",
			next: "asked"},
		"a restart in the future waits": {conversation: conv().With(restartAt(60)).Started(0).Ran(2).Stopped(
			"Idle", 9), now: 30, state: "STOPPED", reason: "Idle", wish: RemovePod},
		"a restart waits while it is suspended": {conversation: conv().With(restartAt(20)).With(suspend).Started(
			0).Ran(2).Stopped("Idle", 9), now: 30, state: "STOPPED", reason: "Idle", wish: RemovePod},
		"a restart by a clock that is behind": {conversation: conv().With(restartAt(5)).Started(0).Ran(2).Stopped(
			"Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"a restart that was followed": {conversation: conv().With(restartAt(60)).Restarted(60).Started(
			60).Ran(62).Stopped("Idle", 69), now: 70, state: "STOPPED", reason: "Idle", wish: RemovePod},
		"a restart that comes while it runs": {conversation: conv().With(restartAt(60)).Started(0).Ran(2),
			pod: ptrTo(pod().Ready()), now: 70, state: "RUNNING", reason: "Running"},
		"a Conversation that is deleted loses its pod": {conversation: deleted(conv().Started(0).Ran(2)),
			pod: ptrTo(pod().Ready()), state: "STOPPED", reason: "Deleted", wish: RemovePod},

		// How long it may run.
		"one that ran for as long as it may": {conversation: conv().Started(0).Ran(0), pod: ptrTo(pod().Ready()),
			now: 86400, state: "STOPPED", reason: "MaxDuration", message: "24h0m0s", wish: RemovePod},
		"over all its attempts": {conversation: conv().Attempt(2, 1).RanFor(24 * time.Hour).Started(0),
			pod: ptrTo(pod().Attempt("2").Sandboxed()), state: "STOPPED", reason: "MaxDuration", wish: RemovePod},
		"what it ran before it was asked again": {conversation: conv().Attempt(2, 2).Started(0).Ran(0),
			pod: ptrTo(pod().Attempt("2").Ready()), now: 86399, state: "RUNNING", reason: "Running"},
	}
}
