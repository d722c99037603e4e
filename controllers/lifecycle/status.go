package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// ServiceName is the name of the Service that gives each session in a namespace its DNS name:
// <hostname of the pod>.sessions.
const ServiceName = "sessions"

// deletedSettings is recorded instead of a UID if UserSettings were deleted before their UID was
// recorded. For example, Parley 0.1.0 recorded no UIDs. No object has the UID "deleted", so the
// Conversation does not belong to UserSettings that are created later.
const deletedSettings types.UID = "deleted"

// NewStatus returns the status of a session for a verdict.
func NewStatus(o Observation, v Verdict) v1alpha1.ConversationStatus {
	before := o.Conversation.Status
	status := *before.DeepCopy()
	status.ObservedGeneration = o.Conversation.Generation
	v.Message = Truncate(v.Message, maxStatusMessage)
	status.State, status.Reason, status.Message, status.URL, status.PodIP = v.State, v.Reason, v.Message, "", ""
	setAttempt(&status, o, v)
	status.Workspace = WorkspaceKind(o)
	setTimes(&status, o, v)
	status.QueueNumber = 0
	if v.Reason == v1alpha1.ReasonQueued {
		status.QueueNumber = o.QueueNumber
	}
	status.Turn = turnOf(o)
	if EndsNow(before, v) {
		status.Result = v.Result
	}
	// When the time spec.restartAt has come, an ended session restarts. A session that has not ended
	// needs no restart. RestartedAt is recorded in both cases, so that the same time causes no
	// restart later. If the session has ended but is not restarted now, for example because
	// spec.suspend is set, the restart stays pending.
	if pending := HasEnded(before) && v.Next == nil; restartDue(o) && !pending {
		status.RestartedAt = o.Conversation.Spec.RestartAt
	}
	if v.State == v1alpha1.StateRunning {
		protocol := cmp.Or(o.Pod.Labels[v1alpha1.LabelProtocol], v1alpha1.ProtocolHTTP)
		status.URL = fmt.Sprintf("%s://%s.%s.%s.svc:%d", protocol, hostname(o), ServiceName, o.Conversation.Namespace,
			session.Port)
		status.PodIP = o.Pod.Status.PodIP
	}
	if !o.SettingsExist && everRan(before) && status.SettingsUID == "" {
		status.SettingsUID = deletedSettings
	}
	// If UserSettings without an owner get an owner, their Conversations get the same owner.
	if o.SettingsExist && status.SettingsUID != "" {
		status.Owner = o.SettingsOwner
	}
	setConditions(&status, o, v)
	if !equality.Semantic.DeepEqual(before, status) {
		record(&status, o)
	}
	return status
}

// hostname returns the hostname of the session's pod. The hostname of a warm pod is the pod's own
// name, because the pod was created before its session.
func hostname(o Observation) string {
	if IsWarm(o.Pod) {
		return o.Pod.Name
	}
	return o.Conversation.Name
}

// WorkspaceName returns the default name of the PersistentVolumeClaim of a Conversation.
func WorkspaceName(conversation string) string { return conversation + "-workspace" }

// record adds facts that may be unknown later: the class of the session, the UID and owner of the
// settings, the pod and its volume. NewStatus calls record only if another part of the status has
// changed, so these facts alone cause no write. A new owner of recorded settings is an exception:
// NewStatus sets it.
func record(status *v1alpha1.ConversationStatus, o Observation) {
	recordClass(status, o)
	if status.State == v1alpha1.StateRunning || IsWarm(o.Pod) {
		status.PodName = o.Pod.Name
	}
	switch o.WorkspaceClaim {
	case "":
	case WorkspaceName(o.Conversation.Name):
		status.WorkspaceClaimName = ""
	default:
		status.WorkspaceClaimName = o.WorkspaceClaim
	}
	if o.SettingsExist {
		status.SettingsUID, status.Owner = o.SettingsUID, o.SettingsOwner
	}
}

// WorkspaceKind returns the storage of the session's files: the storage of its pod or, without a
// pod, the recorded storage.
func WorkspaceKind(o Observation) v1alpha1.WorkspaceKind {
	if o.Pod != nil && o.Pod.Labels[v1alpha1.LabelWorkspace] != "" {
		return v1alpha1.WorkspaceKind(o.Pod.Labels[v1alpha1.LabelWorkspace])
	}
	return o.Conversation.Status.Workspace
}

// EndsNow reports whether the verdict ends the session and the end is not recorded yet.
func EndsNow(before v1alpha1.ConversationStatus, v Verdict) bool {
	return v.State == v1alpha1.StateStopped && slices.Contains(endings, v.Reason) && !HasEnded(before)
}

// StartsNow reports whether the session runs for the first time in its attempt.
func StartsNow(before, after v1alpha1.ConversationStatus) bool {
	return after.State == v1alpha1.StateRunning && Ran(after) && !Ran(before)
}

// RestartsNow reports whether a session goes from RUNNING back to STARTING, or whether it is
// backing off and has just lost one more pod.
func RestartsNow(before, after v1alpha1.ConversationStatus) bool {
	return before.State == v1alpha1.StateRunning && after.State == v1alpha1.StateStarting ||
		after.Reason == v1alpha1.ReasonBackingOff && Attempt(before) != Attempt(after)
}

// setAttempt records restarts, and the next attempt if the verdict begins one.
func setAttempt(status *v1alpha1.ConversationStatus, o Observation, v Verdict) {
	before := o.Conversation.Status
	status.Restarts, status.PodRestarts = restartCounts(o)
	if t := crash(o.Pod); t != nil && status.PodRestarts > before.PodRestarts {
		status.LastRestart = exitCause(t)
	}
	if before.State == v1alpha1.StateRunning && v.State != v1alpha1.StateRunning {
		status.RanFor = &metav1.Duration{Duration: runningTime(before, o.Now).Truncate(time.Second)}
	}
	if v.State == v1alpha1.StateRunning || v.Reason == v1alpha1.ReasonLost {
		status.RanAttempt = Attempt(before)
	}
	if v.Next == nil {
		if v.Reason != v1alpha1.ReasonBackingOff {
			status.RetryTime = nil
		}
		return
	}
	status.Attempt, status.PodRestarts = Attempt(before)+1, 0
	status.Losses, status.RetryTime = v.Next.Losses, v.Next.RetryTime
	if v.Next.Requested {
		status.FirstAttempt, status.Restarts, status.LastRestart, status.RanFor = status.Attempt, 0, "", nil
		return
	}
	status.LastRestart = v.Next.Cause
	if v.Next.Counted {
		status.Restarts++
	}
}

// setTimes records times by the operator's clock.
func setTimes(status *v1alpha1.ConversationStatus, o Observation, v Verdict) {
	before := o.Conversation.Status
	now := metav1.NewTime(o.Now.Truncate(time.Second))
	if v.State == v1alpha1.StateStopped {
		if status.StopTime == nil || before.Reason != v.Reason {
			status.StopTime = &now
		}
		return
	}
	// The start of a session begins when the session no longer waits for its settings or for a slot.
	// StartTime is then set to the current time. While a session is queued, StartTime is the time at
	// which it was queued.
	waited := before.Reason == v1alpha1.ReasonSettingsNotReady && v.Reason != v1alpha1.ReasonSettingsNotReady ||
		before.Reason == v1alpha1.ReasonQueued && v.Reason != v1alpha1.ReasonQueued
	// A new attempt begins a new start if a user requested it, or if the session ran in the
	// previous attempt. Otherwise, the new pod continues the same start, with the same deadline.
	begins := v.Next != nil && (v.Next.Requested || Ran(before))
	if status.StartTime == nil || status.StopTime != nil || begins || waited {
		status.StartTime = &now
	}
	// The manager may write the first status of a Conversation late. The time at which the session
	// got its pod is then closer to the true start.
	if NeverReconciled(before) && o.Pod != nil && podTime(o).Before(now.Time) {
		status.StartTime = &metav1.Time{Time: podTime(o)}
	}
	status.StopTime = nil
	if v.State == v1alpha1.StateRunning && before.State != v1alpha1.StateRunning {
		status.RunningTime = &now
	}
}

const (
	// stepThreshold is how long a step of a start must last before it is written to the status, if
	// there is no backlog. If all steps of a start are shorter, the only write is the one for
	// RUNNING.
	stepThreshold = 2 * time.Second
	// stepThresholdPerWaiting is added to the threshold for each waiting Conversation.
	// stepThresholdMax limits the sum.
	stepThresholdPerWaiting = 20 * time.Millisecond
	stepThresholdMax        = 30 * time.Second
)

// StepThreshold returns how long a step must last before it is written. backlog is the number of
// Conversations that wait to be reconciled.
func StepThreshold(backlog int) time.Duration {
	return min(stepThreshold+time.Duration(backlog)*stepThresholdPerWaiting, stepThresholdMax)
}

// WriteDelay returns how long a status write may wait; zero or less means now. A write that only
// records the next step of a start waits until the step has lasted for the threshold. The first
// step of a new Conversation waits too, because the initial status already says STARTING. If the
// outcome of the turn changed, the write does not wait.
func WriteDelay(before, after v1alpha1.ConversationStatus, v Verdict, now time.Time,
	threshold time.Duration) time.Duration {
	begins := NeverReconciled(before) && after.State == v1alpha1.StateStarting && v.Pod == NeedPod &&
		!v.Stalled && !v.Blocked
	continues := continuesStart(before, after) && !v.Stalled
	switch {
	case TurnChanged(before, after):
		return 0
	case v.Since.IsZero() && (begins || continues && v.Pod == NeedPod && !v.Blocked && before.Reason == after.Reason):
		return threshold // its pod was just created or claimed
	case !begins && !continues, v.Since.IsZero(), v.Since.After(now):
		// If Since is in the future, a node's clock is ahead of the manager's clock. The age of the
		// step is then unknown, so the write does not wait.
		return 0
	}
	return threshold - now.Sub(v.Since)
}

// continuesStart reports whether the status changes only from one step of a start to the next.
func continuesStart(before, after v1alpha1.ConversationStatus) bool {
	return before.State == v1alpha1.StateStarting && after.State == v1alpha1.StateStarting &&
		before.Reason != v1alpha1.ReasonSettingsNotReady && before.Reason != v1alpha1.ReasonQueued &&
		Attempt(before) == Attempt(after) && before.ObservedGeneration == after.ObservedGeneration &&
		before.StartTime.Equal(after.StartTime) && before.Restarts == after.Restarts
}
