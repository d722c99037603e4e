package lifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// aState is a state of a session: the recorded attempts, the observation, and the expected verdict.
type aState struct {
	conversation aConversation
	pod          *aPod
	unready      *Blocker
	// queueLimit is set if the session waits for a slot.
	queueLimit int32
	// refusal is set if the API server refused the last start.
	refusal string
	blocker *Blocker
	warm    Warm
	now     int
	state   v1alpha1.ConversationState
	reason  string
	message string
	action  PodAction
	stalled bool
	// next describes the attempt that begins; empty if none begins. "requested" means a restart by
	// a user. "counted" and "not counted" mean an automatic restart that does or does not count
	// against MaxRestarts.
	next string
}

func (s aState) judged() (Observation, Verdict) {
	o := Observation{QueueLimit: s.queueLimit, Refusal: s.refusal, Conversation: s.conversation.Conversation,
		Bounds: boundsOf(&s.conversation.Spec), Scratch: s.conversation.Spec.Workspace == nil,
		SettingsExist: s.unready == nil, Unready: s.unready, Warm: s.warm, Now: at(s.now)}
	if s.pod != nil && LabelledAttempt(s.pod.Labels) == Attempt(s.conversation.Status) {
		o.Pod = s.pod.Pod
	} else if s.pod != nil {
		o.OldPod = s.pod.Pod
	}
	v := Judge(o)
	if s.blocker != nil {
		v = v.BlockedBy(o, s.blocker)
	}
	return o, v
}

// states returns the table of all states. The health checks of GitOps tools are tested with it too.
func states() map[string]aState {
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	unresponsive := func() aPod { return pod().Ready().Condition(corev1.PodReady, false, "") }
	looping := func(n int32, reason string) aPod {
		return pod().Sandboxed().Waiting(SessionContainer, "CrashLoopBackOff").Crashed(n, reason)
	}
	evicted := func() aPod { return pod().Ready().Failed("Evicted").Condition(corev1.DisruptionTarget, true, "") }
	full := func() aPod {
		p := pod().Ready().Failed("Evicted")
		p.Status.Message = "Usage of EmptyDir volume exceeds the limit. "
		return p
	}
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
		"a new session needs a pod": {conversation: conv(), state: "STARTING", reason: "Scheduling",
			action: NeedPod},
		"a session waits for its settings": {conversation: conv(), unready: noSettings, state: "STARTING",
			reason: "SettingsNotReady", message: "UserSettings ada"},
		"a pod without a node is being scheduled": {conversation: conv().Started(0),
			pod: ptrTo(pod().Condition(corev1.PodScheduled, false, "0/3 nodes are available")), state: "STARTING",
			reason: "Scheduling", message: "0/3 nodes", action: NeedPod},
		"a pod with a node gets its volumes": {conversation: conv().Started(0),
			pod: ptrTo(pod().Scheduled().Waiting(InstallContainer, "PodInitializing")), state: "STARTING",
			reason: "PreparingWorkspace", action: NeedPod},
		"an image that is being pulled": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Waiting(InstallContainer, "ContainerCreating")), state: "STARTING",
			reason: "PullingImage", message: "example.com/runtime:1", action: NeedPod},
		"an image that cannot be pulled is named": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Waiting(SessionContainer, "ImagePullBackOff")), state: "STARTING",
			reason: "PullingImage", message: "Image example.com/base:1: ImagePullBackOff",
			action: NeedPod},
		"a container that cannot be created": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Waiting(SessionContainer, "CreateContainerError")), state: "STARTING",
			reason: "StartingRuntime", message: "session cannot start: CreateContainerError", action: NeedPod},
		"the runtime is being installed": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Running(InstallContainer)), state: "STARTING", reason: "PreparingWorkspace",
			action: NeedPod},
		"the runtime cannot be installed": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().InstallCrashed()), state: "STARTING", reason: "PreparingWorkspace",
			message: "could not be installed: exit status 1", action: NeedPod},
		"the runtime runs and is not ready": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Running(SessionContainer)), state: "STARTING", reason: "StartingRuntime",
			action: NeedPod},
		"the session's image is pulled after the runtime is installed": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Installed().Waiting(SessionContainer, "PodInitializing")), state: "STARTING",
			reason: "PullingImage", message: "example.com/base:1", action: NeedPod},
		"a ready pod runs": {conversation: conv().Started(0), pod: ptrTo(pod().Ready()),
			state: "RUNNING", reason: "Running"},
		"a first pod that is deleted is awaited": {conversation: conv().Started(0),
			pod: ptrTo(pod().Scheduled().Terminating()), state: "STARTING", reason: "Restarting"},
		"a deleted first pod is created again": {conversation: conv().Started(0).With(work), state: "STARTING",
			reason: "Scheduling", action: NeedPod},

		// Blocked.
		"a session that waits for a slot": {conversation: conv(), queueLimit: 2, state: "STARTING", reason: "Queued",
			message: "allows 2 running sessions per user"},
		"a refused session that waits for a slot again": {conversation: conv().Started(0).WithReason("Rejected"),
			queueLimit: 2,
			refusal:    "exceeded quota", now: 3600, state: "STARTING", reason: "Queued",
			message: "is stopped to make room. The last start was refused: exceeded quota"},
		"a request that the class does not allow": {conversation: conv().Started(0),
			blocker: &Blocker{v1alpha1.ReasonNotAllowed, "spec.workspace"},
			state:   "STARTING", reason: "NotAllowed", message: "spec.workspace", action: NeedPod,
			stalled: true},
		"a foreign object has the name of the pod": {conversation: conv().Started(0),
			blocker: &Blocker{v1alpha1.ReasonForeignObject, "Pod c-session"},
			state:   "STARTING", reason: "ForeignObject", action: NeedPod, stalled: true},
		"a start refused by a quota": {conversation: conv().Started(0), blocker: &Blocker{v1alpha1.ReasonRejected,
			"exceeded quota"},
			state: "STARTING", reason: "Rejected", action: NeedPod},
		"a start refused by a quota until the deadline": {conversation: conv().Started(0),
			blocker: &Blocker{v1alpha1.ReasonRejected, "exceeded quota"},
			now:     600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "Rejected: exceeded quota",
			action: RemovePod, stalled: true},
		"a recorded refusal at the deadline": {conversation: conv().Started(0).WithReason("Rejected").WithMessage(
			"exceeded quota"),
			now: 600, state: "STOPPED", reason: "StartDeadlineExceeded", message: "at step Rejected: exceeded quota",
			action: RemovePod, stalled: true},

		// Start deadline.
		"an exceeded deadline names the step": {conversation: conv().Started(0),
			pod: ptrTo(pod().Sandboxed().Waiting(SessionContainer, "ErrImagePull")), now: 600, state: "STOPPED",
			reason: "StartDeadlineExceeded", message: "PullingImage: Image example.com/base:1", action: RemovePod,
			stalled: true},
		"the deadline counts from the creation of the pod": {conversation: conv().Started(500),
			pod: ptrTo(pod().Sandboxed().Waiting(SessionContainer, "ErrImagePull")), now: 600, state: "STOPPED",
			reason: "StartDeadlineExceeded", action: RemovePod, stalled: true},
		"a replaced pod does not extend the deadline": {conversation: conv().Started(0).Attempt(2, 1),
			pod: ptrTo(pod().Attempt("2").Created(400).Sandboxed()), now: 600, state: "STOPPED",
			reason: "StartDeadlineExceeded", action: RemovePod, stalled: true},
		"a deleted first pod does not extend the deadline": {conversation: conv().Started(0),
			pod: ptrTo(pod().Created(400).Sandboxed()), now: 600, state: "STOPPED", reason: "StartDeadlineExceeded",
			action: RemovePod, stalled: true},
		"the deadline of a pod excludes the wait for a slot": {conversation: conv().Started(0).WithReason("Queued"),
			pod: ptrTo(pod().Created(400).Sandboxed()), now: 999, state: "STARTING", reason: "PreparingWorkspace",
			action: NeedPod},
		"the deadline stalls a session that ran, without stopping it": {conversation: conv().Started(0).Ran(2).Attempt(2, 1),
			pod: ptrTo(pod().Attempt("2").Sandboxed().Waiting(SessionContainer, "ErrImagePull")), now: 600, state: "STARTING",
			reason: "PullingImage", message: "exceeded its deadline of 10m0s", action: NeedPod, stalled: true},
		"settings that are missing at the deadline": {conversation: conv().Started(0).WithReason("SettingsNotReady"),
			unready: noSettings, now: 600, state: "STOPPED", reason: "SettingsMissing", message: "UserSettings ada",
			stalled: true},
		"settings that are missing after the deadline": {conversation: conv().Started(0).Stopped("SettingsMissing", 600),
			unready: noSettings, now: 700, state: "STOPPED", reason: "SettingsMissing", stalled: true},
		"settings that arrive after the deadline": {conversation: conv().Started(0).Stopped("SettingsMissing", 600),
			now: 700, state: "STARTING", reason: "Scheduling", action: NeedPod},
		"settings that arrive just before the deadline": {conversation: conv().Started(0).WithReason("SettingsNotReady"),
			now: 599, state: "STARTING", reason: "Scheduling", action: NeedPod},

		"the deadline excludes the wait for a slot": {conversation: conv().Started(0).WithReason("Queued"), now: 3600,
			state: "STARTING", reason: "Scheduling", action: NeedPod},
		"the deadline excludes the wait for settings": {conversation: conv().Started(0).WithReason("SettingsNotReady"),
			now:   3600,
			state: "STARTING", reason: "Scheduling", action: NeedPod},

		// Ends of the current attempt's pod.
		"a session that reports Completed": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Completed","message":"all green"}`, 9)), state: "STOPPED",
			reason: "Completed", message: "all green", action: KeepEndedPod},
		"a session that reports Idle": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Idle"}`, 9)), state: "STOPPED", reason: "Idle", action: KeepEndedPod},
		"a session that reports Failed": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Failed","message":"branch x not found"}`, 9)), state: "STOPPED",
			reason: "Failed", message: "branch x not found", action: KeepEndedPod, stalled: true},
		"other output of an image is dropped": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `token=hunter2`, 9)), state: "STOPPED", reason: "Completed",
			message: "The session completed", action: KeepEndedPod},
		"a sidecar does not hide the end": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Completed"}`, 9).Sidecar()), state: "STOPPED", reason: "Completed",
			action: KeepEndedPod},
		"an end before RUNNING was recorded": {conversation: conv().Started(0),
			pod: ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed",
			action: KeepEndedPod},
		"an end while the pod is being deleted": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Completed"}`, 9).Terminating()), state: "STOPPED", reason: "Completed",
			action: KeepEndedPod},
		"an exit due to the pod's deletion is not an end": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, ``, 9).Terminating()), state: "STARTING", reason: "Restarting", next: "counted"},
		"an end outlives its pod": {conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			state: "STOPPED", reason: "Completed", message: "it was Completed", action: RemovePod},
		"an end keeps the pod for its logs": {conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			pod: ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9)), state: "STOPPED", reason: "Completed",
			action: KeepEndedPod},
		"an end keeps the pod while its phase is still Running": {
			conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			pod:          ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9).Phase(corev1.PodRunning)), state: "STOPPED",
			reason: "Completed", action: KeepEndedPod},
		"an end keeps the pod with a sidecar that ended too": {
			conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			pod:          ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9).Sidecar().SidecarEnded(0)), state: "STOPPED",
			reason: "Completed", action: KeepEndedPod},
		"an end keeps the pod if it was evicted afterwards": {
			conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			pod:          ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9).Failed("Evicted")), state: "STOPPED",
			reason: "Completed", action: KeepEndedPod},
		"an end removes a pod with a crashing sidecar": {conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			pod: ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9).Sidecar().SidecarEnded(1)), state: "STOPPED",
			reason: "Completed", action: RemovePod},
		"a failure removes a pod that crashed": {conversation: conv().Started(0).Ran(2).Stopped("Failed", 9),
			pod: ptrTo(pod().Ended(1, "", 9).Phase(corev1.PodRunning)), state: "STOPPED", reason: "Failed",
			action: RemovePod, stalled: true},
		"an end removes a pod with a running sidecar": {conversation: conv().Started(0).Ran(2).Stopped("Completed", 9),
			pod: ptrTo(pod().Ended(0, `{"reason":"Completed"}`, 9).Sidecar()), state: "STOPPED", reason: "Completed",
			action: RemovePod},
		"the end of an earlier attempt is ignored": {conversation: conv().Attempt(2, 2).Started(9),
			pod: ptrTo(pod().Attempt("1").Ended(0, `{"reason":"Completed"}`, 9)), state: "STARTING", reason: "Scheduling",
			message: "previous attempt", action: NeedPod},

		// Restarts.
		"a crashed process is restarted": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(looping(1, "OOMKilled")), state: "STARTING", reason: "Restarting", message: "status 137 (OOMKilled)",
			action: NeedPod},
		"restarts up to the limit": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(looping(5, "OOMKilled")), state: "STARTING", reason: "Restarting", action: NeedPod},
		"restarts above the limit": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(looping(6, "OOMKilled")), state: "STOPPED", reason: "Failed", message: "6 times; its class allows 5 " +
				"restarts. Cause of the last restart: OOMKilled", action: RemovePod, stalled: true},
		"restarts above the limit before it ran": {conversation: conv().Started(0), pod: ptrTo(looping(6, "Error")),
			state: "STOPPED", reason: "Failed", message: "exit status 137", action: RemovePod, stalled: true},
		"replaced pods count as restarts": {conversation: conv().Started(0).Ran(2).Attempt(4, 1).Restarts(3, "x"),
			pod: ptrTo(looping(3, "OOMKilled").Attempt("4")), state: "STOPPED", reason: "Failed", message: "6 times",
			action: RemovePod, stalled: true},
		"a session that no longer answers": {conversation: conv().Started(0).Ran(2), pod: ptrTo(unresponsive()), now: 30,
			state: "STARTING", reason: "Restarting", message: "no longer answers", action: NeedPod},
		"an unresponsive session has no deadline": {conversation: conv().Started(0).Ran(2), pod: ptrTo(unresponsive()),
			now: 3600, state: "STARTING", reason: "Restarting", message: "no longer answers", action: NeedPod},
		"an unresponsive session that crashed before": {conversation: conv().Started(0).Ran(2).PodRestarts(1),
			pod: ptrTo(unresponsive().Crashed(1, "OOMKilled")), state: "STARTING", reason: "Restarting",
			message: "no longer answers",
			action:  NeedPod},
		"a crashed session that is not ready again": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Sandboxed().Running(SessionContainer).Crashed(1, "OOMKilled")), state: "STARTING",
			reason: "Restarting", message: "status 137", action: NeedPod},
		"a replacement pod starts": {conversation: conv().Started(0).Ran(2).Attempt(2, 1),
			pod: ptrTo(pod().Attempt("2").Sandboxed().Running(SessionContainer)), state: "STARTING", reason: "StartingRuntime",
			message: "tool servers", action: NeedPod},
		"a replacement pod that does not exist yet": {conversation: conv().Started(0).Ran(2).Attempt(2, 1).Restarts(1,
			"Evicted"), state: "STARTING", reason: "Restarting", message: "Evicted", action: NeedPod},
		"the old pod is deleted before a new one is created": {conversation: conv().Started(0).Ran(2).Attempt(2, 1),
			pod: ptrTo(pod().Attempt("1").Ready()), state: "STARTING", reason: "Scheduling", action: NeedPod},
		"a ready pod that is deleted is awaited": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Terminating()), state: "STARTING", reason: "Restarting"},
		"a pod that cannot run at all is replaced": {conversation: conv().Started(0), pod: ptrTo(pod().Failed("OutOfcpu")),
			state: "STARTING", reason: "Restarting", message: "OutOfcpu", next: "not counted"},
		"a lost pod is replaced": {conversation: conv().Started(0).Ran(2), state: "STARTING",
			reason: "Restarting", next: "counted"},
		"an evicted pod is replaced without counting": {conversation: conv().Started(0).Ran(2), pod: ptrTo(evicted()),
			state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},

		// Backoff.
		"a second pod in a row that a node rejects": {conversation: conv().Started(0).Attempt(2, 1).Losses(1, "x", 0),
			pod: ptrTo(pod().Attempt("2").Failed("NodeShutdown")), now: 1, state: "STARTING", reason: "BackingOff",
			message: "2 pods in a row were lost, the last one because of NodeShutdown; the next pod is created at " +
				"2030-01-02T12:00:06Z", next: "not counted"},
		"a second pod in a row that is evicted soon": {
			conversation: conv().Started(0).Attempt(2, 1).Ran(2).Losses(1, "x", 0), pod: ptrTo(evicted().Attempt("2")), now: 601,
			state: "STARTING", reason: "BackingOff", message: "Evicted", next: "not counted"},
		"a second pod in a row that is evicted after ten minutes": {
			conversation: conv().Started(0).Attempt(2, 1).Ran(2).Losses(1, "x", 0), pod: ptrTo(evicted().Attempt("2")), now: 602,
			state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},
		"a session waits before its next pod": {conversation: conv().Started(0).Attempt(3, 1).Losses(2, "NodeShutdown", 6),
			now: 5, state: "STARTING", reason: "BackingOff", message: "NodeShutdown; the next pod is created at " +
				"2030-01-02T12:00:06Z", action: NeedPod},
		"the lost pod is deleted during the wait": {
			conversation: conv().Started(0).Attempt(3, 1).Losses(2, "NodeShutdown", 6),
			pod:          ptrTo(pod().Attempt("2").Failed("NodeShutdown")), now: 5, state: "STARTING", reason: "BackingOff",
			action: NeedPod},
		"the wait before the next pod is over": {conversation: conv().Started(0).Attempt(3, 1).Losses(2, "NodeShutdown", 6),
			now: 6, state: "STARTING", reason: "Restarting", action: NeedPod},
		"the wait before the next pod ends if the clock is set back": {
			conversation: conv().Started(0).Attempt(3, 1).Losses(2, "NodeShutdown", 3600), now: 5, state: "STARTING",
			reason: "Restarting", action: NeedPod},
		"pods are rejected until the deadline": {
			conversation: conv().Started(0).Attempt(9, 1).Losses(8, "NodeShutdown", 700), now: 600, state: "STOPPED",
			reason: "StartDeadlineExceeded", message: "at step BackingOff: 8 pods", action: RemovePod, stalled: true},
		"pods of a session that ran are rejected until the deadline": {
			conversation: conv().Ran(2).Started(0).Attempt(9, 1).Losses(8, "NodeShutdown", 700), now: 600, state: "STARTING",
			reason: "BackingOff", message: "exceeded its deadline of 10m0s", action: NeedPod, stalled: true},

		"a session that exits with 0 because of an eviction": {conversation: conv().Started(0).Ran(2),
			pod:   ptrTo(pod().Ready().Ended(0, "", 9).Failed("Evicted").Condition(corev1.DisruptionTarget, true, "")),
			state: "STARTING", reason: "Restarting", message: "Evicted", next: "not counted"},
		"a session that reports its end before an eviction": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0,
				`{"reason":"Completed"}`, 9).Failed("Evicted").Condition(corev1.DisruptionTarget, true, "")), state: "STOPPED",
			reason: "Completed", action: KeepEndedPod},

		// Lost work.
		"lost with work and without a workspace": {conversation: conv().With(work).Started(0).Ran(2), state: "STOPPED",
			reason: "Lost", message: "not repeated automatically", action: RemovePod, stalled: true},
		"evicted with work and without a workspace": {conversation: conv().With(work).Started(0).Ran(2),
			pod: ptrTo(evicted()), state: "STOPPED", reason: "Lost", message: "Evicted", action: RemovePod, stalled: true},
		"evicted because the disk was full": {conversation: conv().With(work).Started(0).Ran(2), pod: ptrTo(full()),
			state: "STOPPED", reason: "Lost", message: "(Evicted: Usage of EmptyDir volume exceeds the limit)",
			action: RemovePod, stalled: true},
		"lost with work and with a workspace": {conversation: conv().With(work).With(workspace).Started(0).Ran(2),
			state: "STARTING", reason: "Restarting", next: "counted"},
		"a pod that failed before it ran loses no work": {conversation: conv().With(work).Started(0),
			pod: ptrTo(pod().Failed("OutOfcpu")), state: "STARTING", reason: "Restarting", next: "not counted"},
		"evicted before RUNNING was recorded": {conversation: conv().With(work).Started(0), pod: ptrTo(evicted()),
			state: "STOPPED", reason: "Lost", message: "Evicted", action: RemovePod, stalled: true},
		"deleted before RUNNING was recorded": {conversation: conv().With(work).Started(0),
			pod: ptrTo(pod().Ready().Ended(137,
				"", 9).Terminating()), state: "STOPPED", reason: "Lost", action: RemovePod, stalled: true},
		"evicted before RUNNING was recorded, with a workspace": {conversation: conv().With(work).With(workspace).Started(0),
			pod:   ptrTo(evicted()),
			state: "STARTING", reason: "Restarting", next: "not counted"},
		"a lost session stays lost": {conversation: conv().With(work).Started(0).Ran(2).Stopped("Lost", 9), state: "STOPPED",
			reason: "Lost", action: RemovePod, stalled: true},

		// Suspension, restart and deletion.
		"suspended while starting": {conversation: conv().With(suspend).Started(0),
			pod: ptrTo(pod().Scheduled()), state: "STOPPED", reason: "Suspended", action: RemovePod},
		"suspended while running": {conversation: conv().With(suspend).Started(0).Ran(2),
			pod: ptrTo(pod().Ready()), state: "STOPPED", reason: "Suspended", action: RemovePod},
		"suspended without settings": {conversation: conv().With(suspend), unready: noSettings,
			state: "STOPPED", reason: "Suspended", action: RemovePod},
		"suspended after its end": {conversation: conv().With(suspend).Started(0).Ran(2).Stopped(
			"Completed", 9), state: "STOPPED", reason: "Completed", action: RemovePod},
		"suspended after its pod is gone": {conversation: conv().With(suspend).With(work).Started(0).Ran(
			2).Stopped("Suspended", 9), state: "STOPPED", reason: "Suspended", action: RemovePod},
		"resumed after a suspension": {conversation: conv().With(work).Started(0).Ran(2).Stopped(
			"Suspended", 9), state: "STARTING", reason: "Scheduling", next: "requested"},
		"resumed with the old pod still there": {conversation: conv().Started(0).Ran(2).Stopped("Suspended", 9),
			pod: ptrTo(pod().Ready().Terminating()), state: "STARTING", reason: "Scheduling", next: "requested"},
		"restarted after an end": {conversation: conv().With(restartAt(60)).Started(0).Ran(2).Stopped(
			"Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "requested"},
		"restarted after a loss": {conversation: conv().With(work).With(restartAt(60)).Started(0).Ran(
			2).Stopped("Lost", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "requested"},
		"restarted with the old pod still there": {conversation: conv().With(restartAt(60)).Started(0).Ran(2).Stopped(
			"Idle", 9), pod: ptrTo(pod().Ended(0, `{"reason":"Idle"}`, 9)), now: 61, state: "STARTING", reason: "Scheduling",
			next: "requested"},
		"a restart in the future waits": {conversation: conv().With(restartAt(60)).Started(0).Ran(2).Stopped(
			"Idle", 9), now: 30, state: "STOPPED", reason: "Idle", action: RemovePod},
		"a restart waits while it is suspended": {conversation: conv().With(restartAt(20)).With(suspend).Started(
			0).Ran(2).Stopped("Idle", 9), now: 30, state: "STOPPED", reason: "Idle", action: RemovePod},
		"a restart request with a clock that is behind": {conversation: conv().With(restartAt(5)).Started(0).Ran(2).Stopped(
			"Idle", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "requested"},
		"a restart request that was handled": {conversation: conv().With(restartAt(60)).Restarted(60).Started(
			60).Ran(62).Stopped("Idle", 69), now: 70, state: "STOPPED", reason: "Idle", action: RemovePod},
		"a restart request while the session runs": {conversation: conv().With(restartAt(60)).Started(0).Ran(2),
			pod: ptrTo(pod().Ready()), now: 70, state: "RUNNING", reason: "Running"},
		"a Conversation that is deleted loses its pod": {conversation: deleted(conv().Started(0).Ran(2)),
			pod: ptrTo(pod().Ready()), state: "STOPPED", reason: "Deleted", action: RemovePod},

		// Deleted settings.
		"settings that are deleted while the session runs": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready()), unready: noSettings, state: "STOPPED", reason: "SettingsDeleted",
			message: "UserSettings ada", action: RemovePod, stalled: true},
		"settings that are deleted while the session starts": {conversation: conv().Started(0),
			pod: ptrTo(pod().Scheduled()), unready: noSettings, state: "STOPPED", reason: "SettingsDeleted",
			action: RemovePod, stalled: true},
		"settings that are deleted before a lost pod is replaced": {conversation: conv().Started(0).Ran(2).Attempt(2, 1),
			unready: noSettings, state: "STOPPED", reason: "SettingsDeleted", action: RemovePod, stalled: true},
		"settings that are deleted while the session completes": {conversation: conv().Started(0).Ran(2),
			pod: ptrTo(pod().Ready().Ended(0, `{"reason":"Completed"}`, 9)), unready: noSettings, state: "STOPPED",
			reason: "Completed", action: KeepEndedPod},
		"settings that are deleted after the end": {conversation: conv().Started(0).Ran(2).Stopped("Idle", 9),
			unready: noSettings, state: "STOPPED", reason: "Idle", action: RemovePod},
		"settings that exist again": {conversation: conv().Started(0).Ran(2).Stopped("SettingsDeleted", 9),
			state: "STOPPED", reason: "SettingsDeleted", action: RemovePod, stalled: true},
		"restarted with settings that exist again": {conversation: conv().With(restartAt(60)).Started(0).Ran(2).Stopped(
			"SettingsDeleted", 9), now: 61, state: "STARTING", reason: "Scheduling", next: "requested"},
		"resumed without settings": {conversation: conv().Started(0).Ran(2).Stopped("Suspended", 9).Attempt(2, 2),
			unready: noSettings, state: "STARTING", reason: "Scheduling", next: "requested"},

		// Sessions in warm pods. A warm pod is created before a session claims it, so the times of
		// the session count from ClaimTime, not from the creation of the pod.
		"a claimed pod that is not bound": {conversation: conv().Started(3600), pod: ptrTo(pod().Warm("w").Ready()),
			warm: Warm{Unbound: true, ClaimTime: at(3600)}, now: 3601, state: "STARTING", reason: "StartingRuntime",
			action: NeedPod},
		"a claimed pod that is bound": {conversation: conv().Started(3600), pod: ptrTo(pod().Warm("w").Ready()),
			warm: Warm{ClaimTime: at(3600)}, now: 3601, state: "RUNNING", reason: "Running"},
		"a claimed pod that is never bound": {conversation: conv().Started(3600), pod: ptrTo(pod().Warm("w").Ready()),
			warm: Warm{Unbound: true, ClaimTime: at(3600)}, now: 4200, state: "STOPPED", reason: "StartDeadlineExceeded",
			action: RemovePod, stalled: true},
		"a claimed pod that is gone": {conversation: conv().With(work).Started(0), warm: Warm{Gone: true}, now: 1,
			state: "STARTING", reason: "Restarting", message: "the pod was deleted", next: "not counted"},
		"a claimed pod that refuses": {conversation: conv().With(work).Started(0), pod: ptrTo(pod().Warm("w").Ready()),
			warm: Warm{Unbound: true, Refused: true}, now: 1, state: "STARTING", reason: "Restarting",
			message: "the warm pod refused the session", next: "not counted"},
		"a claimed pod that refuses after it ran": {conversation: conv().With(work).Started(0).Ran(2),
			pod:  ptrTo(pod().Warm("w").Ready().Crashed(1, "OOMKilled")),
			warm: Warm{Unbound: true, Refused: true}, now: 9, state: "STOPPED", reason: "Lost", action: RemovePod,
			stalled: true},
		"a bound pod whose process restarted": {conversation: conv().With(work).Started(0).Ran(2),
			pod: ptrTo(pod().Warm("w").Ready().Crashed(1, "OOMKilled")), warm: Warm{Unbound: true}, now: 9,
			state: "STARTING", reason: "Restarting", action: NeedPod},

		// Maximum duration.
		"the maximum duration is reached": {conversation: conv().Started(0).Ran(0), pod: ptrTo(pod().Ready()),
			now: 86400, state: "STOPPED", reason: "MaxDuration", message: "24h0m0s", action: RemovePod},
		"the maximum duration counts all attempts": {conversation: conv().Attempt(2, 1).RanFor(24 * time.Hour).Started(0),
			pod: ptrTo(pod().Attempt("2").Sandboxed()), state: "STOPPED", reason: "MaxDuration", action: RemovePod},
		"the maximum duration counts from the requested restart": {conversation: conv().Attempt(2, 2).Started(0).Ran(0),
			pod: ptrTo(pod().Attempt("2").Ready()), now: 86399, state: "RUNNING", reason: "Running"},
	}
}
