package controllers

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
	unready      *problem
	// queued is how many sessions its user may have running, where it waits for one of them;
	// refused why its pod is not made.
	// waited is why it was refused when it had its turn.
	queued  int32
	waited  string
	refused *problem
	now     int
	state   v1alpha1.ConversationState
	reason  string
	message string
	wish    podWish
	stalled bool
	// next is what the next attempt comes from: asked, counted or not counted.
	next string
}

// judged is what the operator would see, and find.
func (s aState) judged() (observation, verdict) {
	o := observation{queued: s.queued, refused: s.waited, conversation: s.conversation.Conversation,
		bounds: class{}.bounds(&s.conversation.Spec), scratch: s.conversation.Spec.Workspace == nil,
		settingsExist: s.unready == nil, unready: s.unready, now: at(s.now)}
	if s.pod != nil && madeFor(s.pod.Labels) == attemptOf(s.conversation.Status) {
		o.pod = s.pod.Pod
	} else if s.pod != nil {
		o.old = s.pod.Pod
	}
	v := judge(o)
	if s.refused != nil {
		v = v.because(o, s.refused)
	}
	return o, v
}

// states is the table of all states. Whatever judges a session, such as the health checks of GitOps
// tools, is tested with it.
func states() map[string]aState {
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

	return map[string]aState{
		// Starting.
		"a new one needs a pod": {conversation: conv(), state: "STARTING", reason: "Scheduling",
			wish: needPod},
		"one without settings waits for them": {conversation: conv(), unready: noSettings, state: "STARTING",
			reason: "SettingsNotReady", message: "UserSettings ada"},
		"a pod without a node is being scheduled": {conversation: conv().started(0),
			pod: ptrTo(pod().condition(corev1.PodScheduled, false, "0/3 nodes are available")), state: "STARTING",
			reason: "Scheduling", message: "0/3 nodes", wish: needPod},
		"a pod with a node gets its volumes": {conversation: conv().started(0),
			pod: ptrTo(pod().scheduled().waiting(installContainer, "PodInitializing")), state: "STARTING",
			reason: "PreparingWorkspace", wish: needPod},
		"an image that is being pulled": {conversation: conv().started(0),
			pod: ptrTo(pod().sandboxed().waiting(installContainer, "ContainerCreating")), state: "STARTING",
			reason: "PullingImage", message: "example.com/runtime:1", wish: needPod},
		"an image that cannot be pulled is named": {conversation: conv().started(0),
			pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "ImagePullBackOff")), state: "STARTING",
			reason: "PullingImage", message: "example.com/base:1: ImagePullBackOff: the registry has no such image",
			wish: needPod},
		"a container that cannot be made": {conversation: conv().started(0),
			pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "CreateContainerError")), state: "STARTING",
			reason: "StartingRuntime", message: "CreateContainerError: the manifest was not found", wish: needPod},
		"the runtime is put in": {conversation: conv().started(0),
			pod: ptrTo(pod().sandboxed().running(installContainer)), state: "STARTING", reason: "PreparingWorkspace",
			wish: needPod},
		"the runtime cannot be put in": {conversation: conv().started(0),
			pod: ptrTo(pod().sandboxed().installCrashed()), state: "STARTING", reason: "PreparingWorkspace",
			message: "could not be put in: exit status 1", wish: needPod},
		"the runtime runs and is not ready": {conversation: conv().started(0),
			pod: ptrTo(pod().sandboxed().running(sessionContainer)), state: "STARTING", reason: "StartingRuntime",
			wish: needPod},
		"the session's image after the runtime is in": {conversation: conv().started(0),
			pod: ptrTo(pod().sandboxed().installed().waiting(sessionContainer, "PodInitializing")), state: "STARTING",
			reason: "PullingImage", message: "example.com/base:1", wish: needPod},
		"a ready pod runs": {conversation: conv().started(0), pod: ptrTo(pod().ready()),
			state: "RUNNING", reason: "Running"},
		"a first pod that is deleted is awaited": {conversation: conv().started(0),
			pod: ptrTo(pod().scheduled().terminating()), state: "STARTING", reason: "Restarting"},
		"and made again once it is gone": {conversation: conv().started(0).with(work), state: "STARTING",
			reason: "Scheduling", wish: needPod},

		// Held up.
		"one that waits for its turn": {conversation: conv(), queued: 2, state: "STARTING", reason: "Queued",
			message: "at most 2 run"},
		"one that waits for another turn": {conversation: conv().started(0).because("Rejected"), queued: 2,
			waited: "exceeded quota", now: 3600, state: "STARTING", reason: "Queued",
			message: "when one of them ends. When it had its turn it was refused: exceeded quota"},
		"one that asks for too much": {conversation: conv().started(0), refused: &problem{v1alpha1.ReasonNotAllowed,
			"spec.workspace"}, state: "STARTING", reason: "NotAllowed", message: "spec.workspace", wish: needPod, stalled: true},
		"one whose pod's name is taken": {conversation: conv().started(0), refused: &problem{v1alpha1.ReasonForeignObject,
			"Pod c-session"}, state: "STARTING", reason: "ForeignObject", wish: needPod, stalled: true},
		"one that a quota refuses": {conversation: conv().started(0), refused: &problem{v1alpha1.ReasonRejected,
			"exceeded quota"}, state: "STARTING", reason: "Rejected", wish: needPod},
		"one that a quota refuses too long": {conversation: conv().started(0), refused: &problem{v1alpha1.ReasonRejected,
			"exceeded quota"}, now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "Rejected: exceeded quota",
			wish: removePod, stalled: true},
		"one whose last refusal is too old": {conversation: conv().started(0).because("Rejected").saying("exceeded quota"),
			now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "stuck at Rejected: exceeded quota",
			wish: removePod, stalled: true},

		// The deadline of a start.
		"a deadline names the step": {conversation: conv().started(0),
			pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "ErrImagePull")), now: 600, state: "STOPPED",
			reason: "StartDeadlineExceeded", message: "PullingImage: Image example.com/base:1", wish: removePod, stalled: true},
		"it counts from the creation of the pod": {conversation: conv().started(500),
			pod: ptrTo(pod().sandboxed().waiting(sessionContainer, "ErrImagePull")), now: 600, state: "STOPPED",
			reason: "StartDeadlineExceeded", wish: removePod, stalled: true},
		"it is not final for one that ran": {conversation: conv().started(0).ran(2).attempt(2, 1),
			pod: ptrTo(pod().attempt("2").sandboxed().waiting(sessionContainer, "ErrImagePull")), now: 600, state: "STARTING",
			reason: "PullingImage", message: "Not running after 10m0s", wish: needPod, stalled: true},
		"settings that never come": {conversation: conv().started(0).because("SettingsNotReady"),
			unready: noSettings, now: 600, state: "STOPPED", reason: "SettingsMissing", message: "UserSettings ada",
			stalled: true},
		"settings that are still missing": {conversation: conv().started(0).stopped("SettingsMissing", 600),
			unready: noSettings, now: 700, state: "STOPPED", reason: "SettingsMissing", stalled: true},
		"settings that come late": {conversation: conv().started(0).stopped("SettingsMissing", 600),
			now: 700, state: "STARTING", reason: "Scheduling", wish: needPod},
		"settings that come shortly before the deadline": {conversation: conv().started(0).because("SettingsNotReady"),
			now: 599, state: "STARTING", reason: "Scheduling", wish: needPod},

		"it does not count the time of waiting for a turn": {conversation: conv().started(0).because("Queued"), now: 3600,
			state: "STARTING", reason: "Scheduling", wish: needPod},
		"nor that of waiting for settings": {conversation: conv().started(0).because("SettingsNotReady"), now: 3600,
			state: "STARTING", reason: "Scheduling", wish: needPod},

		// Ends of the present attempt's pod.
		"a session that says it is done is done": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed","message":"all green"}`, 9)), state: "STOPPED",
			reason: "Completed", message: "all green", wish: keepEnded},
		"a session that says it was idle was": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().ready().ended(0, `{"reason":"Idle"}`, 9)), state: "STOPPED", reason: "Idle", wish: keepEnded},
		"a session that says it failed failed": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().ready().ended(0, `{"reason":"Failed","message":"branch x not found"}`, 9)), state: "STOPPED",
			reason: "Failed", message: "branch x not found", wish: keepEnded, stalled: true},
		"what else an image says is not passed on": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().ready().ended(0, `token=hunter2`, 9)), state: "STOPPED", reason: "Completed",
			message: "The session is done", wish: keepEnded},
		"a sidecar does not hide the end": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed"}`, 9).sidecar()), state: "STOPPED", reason: "Completed",
			wish: keepEnded},
		"one that ended before anybody saw it run": {conversation: conv().started(0),
			pod: ptrTo(pod().ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed", wish: keepEnded},
		"one that ended and is deleted at once": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().ready().ended(0, `{"reason":"Completed"}`, 9).terminating()), state: "STOPPED", reason: "Completed",
			wish: keepEnded},
		"a pod that exits because it is deleted is no end": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().ready().ended(0, ``, 9).terminating()), state: "STARTING", reason: "Restarting", next: "counted"},
		"an end outlives its pod": {conversation: conv().started(0).ran(2).stopped("Completed", 9),
			state: "STOPPED", reason: "Completed", message: "it was Completed", wish: removePod},
		"an end keeps the pod for its logs": {conversation: conv().started(0).ran(2).stopped("Completed", 9),
			pod: ptrTo(pod().ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed", wish: keepEnded},
		"an end removes a pod in which others still run": {conversation: conv().started(0).ran(2).stopped("Completed", 9),
			pod: ptrTo(pod().ended(0, `{"reason":"Completed"}`, 9).sidecar()), state: "STOPPED", reason: "Completed",
			wish: removePod},
		"an end of an earlier attempt is none of this": {conversation: conv().attempt(2, 2).started(9),
			pod: ptrTo(pod().attempt("1").ended(0, `{"reason":"Completed"}`, 9)), state: "STARTING", reason: "Scheduling",
			message: "attempt before", wish: needPod},

		// Restarts.
		"a crashed process is restarted": {conversation: conv().started(0).ran(2),
			pod: ptrTo(looping(1, "OOMKilled")), state: "STARTING", reason: "Restarting", message: "status 137 (OOMKilled)",
			wish: needPod},
		"as often as the limit": {conversation: conv().started(0).ran(2),
			pod: ptrTo(looping(5, "OOMKilled")), state: "STARTING", reason: "Restarting", wish: needPod},
		"and not more often": {conversation: conv().started(0).ran(2),
			pod: ptrTo(looping(6, "OOMKilled")), state: "STOPPED", reason: "Failed", message: "6 times, more than the 5 that " +
				"its class allows; the last time because of: OOMKilled", wish: removePod, stalled: true},
		"also if it never ran": {conversation: conv().started(0), pod: ptrTo(looping(6, "Error")),
			state: "STOPPED", reason: "Failed", message: "exit status 137", wish: removePod, stalled: true},
		"pods that were replaced count with it": {conversation: conv().started(0).ran(2).attempt(4, 1).restarts(3, "x"),
			pod: ptrTo(looping(3, "OOMKilled").attempt("4")), state: "STOPPED", reason: "Failed", message: "6 times",
			wish: removePod, stalled: true},
		"a session that does not answer any more": {conversation: conv().started(0).ran(2), pod: ptrTo(silent()), now: 30,
			state: "STARTING", reason: "Restarting", message: "does not answer", wish: needPod},
		"it is not cut off at the deadline": {conversation: conv().started(0).ran(2), pod: ptrTo(silent()),
			now: 3600, state: "STARTING", reason: "Restarting", message: "does not answer", wish: needPod},
		"one that crashed before and does not": {conversation: conv().started(0).ran(2).podRestarts(1),
			pod: ptrTo(silent().crashed(1, "OOMKilled")), state: "STARTING", reason: "Restarting", message: "does not answer",
			wish: needPod},
		"one that crashed and is not ready again": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().sandboxed().running(sessionContainer).crashed(1, "OOMKilled")), state: "STARTING",
			reason: "Restarting", message: "status 137", wish: needPod},
		"a pod that takes another's place starts": {conversation: conv().started(0).ran(2).attempt(2, 1),
			pod: ptrTo(pod().attempt("2").sandboxed().running(sessionContainer)), state: "STARTING", reason: "StartingRuntime",
			message: "clones the repository", wish: needPod},
		"a replacement that is not there yet": {conversation: conv().started(0).ran(2).attempt(2, 1).restarts(1,
			"Evicted"), state: "STARTING", reason: "Restarting", message: "Evicted", wish: needPod},
		"the old pod goes before a new one is made": {conversation: conv().started(0).ran(2).attempt(2, 1),
			pod: ptrTo(pod().attempt("1").ready()), state: "STARTING", reason: "Scheduling", wish: needPod},
		"a ready pod that is deleted is awaited": {conversation: conv().started(0).ran(2),
			pod: ptrTo(pod().ready().terminating()), state: "STARTING", reason: "Restarting"},
		"a pod that cannot run at all is replaced": {conversation: conv().started(0), pod: ptrTo(pod().failed("OutOfcpu")),
			state: "STARTING", reason: "Restarting", message: "OutOfcpu", next: "counted"},
		"a lost pod is replaced": {conversation: conv().started(0).ran(2), state: "STARTING",
			reason: "Restarting", next: "counted"},
		"an evicted pod is replaced without counting": {conversation: conv().started(0).ran(2), pod: ptrTo(evicted()),
			state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},

		"one that exits with 0 because it is evicted": {conversation: conv().started(0).ran(2),
			pod:   ptrTo(pod().ready().ended(0, "", 9).failed("Evicted").condition(corev1.DisruptionTarget, true, "")),
			state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},
		"one that says why before it is evicted": {conversation: conv().started(0).ran(2), pod: ptrTo(pod().ready().ended(0,
			`{"reason":"Completed"}`, 9).failed("Evicted").condition(corev1.DisruptionTarget, true, "")), state: "STOPPED",
			reason: "Completed", wish: keepEnded},

		// Lost work.
		"lost with work and without a workspace": {conversation: conv().with(work).started(0).ran(2), state: "STOPPED",
			reason: "Lost", message: "not begun again", wish: removePod, stalled: true},
		"evicted with work and without a workspace": {conversation: conv().with(work).started(0).ran(2),
			pod: ptrTo(evicted()), state: "STOPPED", reason: "Lost", message: "Evicted", wish: removePod, stalled: true},
		"lost with work and with a workspace": {conversation: conv().with(work).with(workspace).started(0).ran(2),
			state: "STARTING", reason: "Restarting", next: "counted"},
		"a pod that failed before it ran has no losses": {conversation: conv().with(work).started(0),
			pod: ptrTo(pod().failed("OutOfcpu")), state: "STARTING", reason: "Restarting", next: "counted"},
		"evicted before anybody saw it run": {conversation: conv().with(work).started(0), pod: ptrTo(evicted()),
			state: "STOPPED", reason: "Lost", message: "Evicted", wish: removePod, stalled: true},
		"deleted before anybody saw it run": {conversation: conv().with(work).started(0), pod: ptrTo(pod().ready().ended(137,
			"", 9).terminating()), state: "STOPPED", reason: "Lost", wish: removePod, stalled: true},
		"unseen, and with a workspace": {conversation: conv().with(work).with(workspace).started(0), pod: ptrTo(evicted()),
			state: "STARTING", reason: "Restarting", next: "not counted"},
		"a loss stays lost": {conversation: conv().with(work).started(0).ran(2).stopped("Lost", 9), state: "STOPPED",
			reason: "Lost", wish: removePod, stalled: true},

		// Asked to stop and to start.
		"suspended while starting": {conversation: conv().with(suspend).started(0),
			pod: ptrTo(pod().scheduled()), state: "STOPPED", reason: "Suspended", wish: removePod},
		"suspended while running": {conversation: conv().with(suspend).started(0).ran(2),
			pod: ptrTo(pod().ready()), state: "STOPPED", reason: "Suspended", wish: removePod},
		"suspended without settings": {conversation: conv().with(suspend), unready: noSettings,
			state: "STOPPED", reason: "Suspended", wish: removePod},
		"suspended after its end": {conversation: conv().with(suspend).started(0).ran(2).stopped(
			"Completed", 9), state: "STOPPED", reason: "Completed", wish: removePod},
		"suspended and gone with its work": {conversation: conv().with(suspend).with(work).started(0).ran(
			2).stopped("Suspended", 9), state: "STOPPED", reason: "Suspended", wish: removePod},
		"resumed after a suspension": {conversation: conv().with(work).started(0).ran(2).stopped(
			"Suspended", 9), state: "STARTING", reason: "Scheduling", next: "asked"},
		"resumed with the old pod still there": {conversation: conv().started(0).ran(2).stopped("Suspended", 9),
			pod: ptrTo(pod().ready().terminating()), state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted after an end": {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped(
			"Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted after a loss": {conversation: conv().with(work).with(restartAt(60)).started(0).ran(
			2).stopped("Lost", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"restarted with the old pod still there": {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped(
			"Idle", 9), pod: ptrTo(pod().ended(0, `{"reason":"Idle"}`, 9)), now: 61, state: "STARTING", reason: "Scheduling",
			next: "asked"},
		"a restart in the future waits": {conversation: conv().with(restartAt(60)).started(0).ran(2).stopped(
			"Idle", 9), now: 30, state: "STOPPED", reason: "Idle", wish: removePod},
		"a restart waits while it is suspended": {conversation: conv().with(restartAt(20)).with(suspend).started(
			0).ran(2).stopped("Idle", 9), now: 30, state: "STOPPED", reason: "Idle", wish: removePod},
		"a restart by a clock that is behind": {conversation: conv().with(restartAt(5)).started(0).ran(2).stopped(
			"Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "asked"},
		"a restart that was followed": {conversation: conv().with(restartAt(60)).restarted(60).started(
			60).ran(62).stopped("Idle", 69), now: 70, state: "STOPPED", reason: "Idle", wish: removePod},
		"a restart that comes while it runs": {conversation: conv().with(restartAt(60)).started(0).ran(2),
			pod: ptrTo(pod().ready()), now: 70, state: "RUNNING", reason: "Running"},
		"a Conversation that is deleted loses its pod": {conversation: deleted(conv().started(0).ran(2)),
			pod: ptrTo(pod().ready()), state: "STOPPED", reason: "Deleted", wish: removePod},

		// How long it may run.
		"one that ran for as long as it may": {conversation: conv().started(0).ran(0), pod: ptrTo(pod().ready()),
			now: 86400, state: "STOPPED", reason: "MaxDuration", message: "24h0m0s", wish: removePod},
		"over all its attempts": {conversation: conv().attempt(2, 1).ranFor(24 * time.Hour).started(0),
			pod: ptrTo(pod().attempt("2").sandboxed()), state: "STOPPED", reason: "MaxDuration", wish: removePod},
		"what it ran before it was asked again": {conversation: conv().attempt(2, 2).started(0).ran(0),
			pod: ptrTo(pod().attempt("2").ready()), now: 86399, state: "RUNNING", reason: "Running"},
	}
}
