package controllers

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// stepVisible is how long a step of a start must last to be worth a write, while there is
	// nothing else to do. A start that takes no longer costs one: that it is running.
	stepVisible = 2 * time.Second
	// stepPatience is how much longer for each Conversation that waits to be looked at, and
	// stepLatest how long at most.
	stepPatience = 20 * time.Millisecond
	stepLatest   = 30 * time.Second
	// maxStatusMessage is the bound of status.message in the schema.
	maxStatusMessage = 2048
	// maxRestartCause is the bound of status.lastRestart in the schema.
	maxRestartCause = 256
)

// conversationStatus is the status of a session about which a verdict was found.
func conversationStatus(o observation, v verdict) v1alpha1.ConversationStatus {
	before := o.conversation.Status
	status := *before.DeepCopy()
	status.ObservedGeneration = o.conversation.Generation
	v.message = cut(v.message, maxStatusMessage)
	status.State, status.Reason, status.Message, status.URL, status.PodIP = v.state, v.reason, v.message, "", ""
	setAttempt(&status, o, v)
	if pod := o.pod; status.Workspace == "" && pod != nil {
		status.Workspace = v1alpha1.WorkspaceKind(pod.Labels[v1alpha1.LabelWorkspace])
	}
	setTimes(&status, o, v)
	if endsNow(before, v) {
		status.Result = v.result
	}
	// A time that comes while the session starts, runs or ends was heard, and starts nothing later.
	if waits := isOver(before) && v.next == nil; restartDue(o) && !waits {
		status.RestartedAt = o.conversation.Spec.RestartAt
	}
	if v.state == v1alpha1.StateRunning {
		status.URL = fmt.Sprintf("http://%s.%s.%s.svc:%d", o.conversation.Name, sessionsService, o.conversation.Namespace,
			session.Port)
		status.PodIP = o.pod.Status.PodIP
	}
	setConditions(&status, o, v)
	return status
}

// endsNow: the session is over, and nobody wrote so yet.
func endsNow(before v1alpha1.ConversationStatus, v verdict) bool {
	return v.state == v1alpha1.StateStopped && slices.Contains(endings, v.reason) && !isOver(before)
}

// setAttempt records what happened to the present attempt, or that another one follows.
func setAttempt(status *v1alpha1.ConversationStatus, o observation, v verdict) {
	before := o.conversation.Status
	status.Restarts, status.PodRestarts = restartsOf(o)
	if t := crash(o.pod); t != nil && status.PodRestarts > before.PodRestarts {
		status.LastRestart = causeOf(t)
	}
	if before.State == v1alpha1.StateRunning && v.state != v1alpha1.StateRunning {
		status.RanFor = &metav1.Duration{Duration: runningFor(before, o.now).Truncate(time.Second)}
	}
	if v.state == v1alpha1.StateRunning {
		status.RanAttempt = attemptOf(before)
	}
	if v.next == nil {
		return
	}
	status.Attempt, status.PodRestarts = attemptOf(before)+1, 0
	switch {
	case v.next.asked:
		status.FirstAttempt, status.Restarts, status.LastRestart, status.RanFor = status.Attempt, 0, "", nil
	case v.next.counted:
		status.Restarts++
		fallthrough
	default:
		status.LastRestart = cut(v.next.cause, maxRestartCause)
	}
}

// setTimes notes when, by this operator's clock.
func setTimes(status *v1alpha1.ConversationStatus, o observation, v verdict) {
	before := o.conversation.Status
	now := metav1.NewTime(o.now.Truncate(time.Second))
	// The time of a start begins when it could begin. Those who wait for a turn keep the time at
	// which they began to.
	waited := before.Reason == v1alpha1.ReasonSettingsNotReady && v.reason != v1alpha1.ReasonSettingsNotReady ||
		before.Reason == v1alpha1.ReasonQueued && v.reason != v1alpha1.ReasonQueued
	if v.state == v1alpha1.StateStopped {
		if status.StopTime == nil || before.Reason != v.reason {
			status.StopTime = &now
		}
		return
	}
	if status.StartTime == nil || status.StopTime != nil || v.next != nil || waited {
		status.StartTime = &now
	}
	// Of a start that nobody wrote about while it went on, the pod says when it began.
	if pod := o.pod; unseen(before) && pod != nil && pod.CreationTimestamp.Before(&now) {
		status.StartTime = pod.CreationTimestamp.DeepCopy()
	}
	status.StopTime = nil
	if v.state == v1alpha1.StateRunning && before.State != v1alpha1.StateRunning {
		status.RunningTime = &now
	}
}

// setConditions says the same in the words of kstatus: Ready when what was observed equals what was
// asked, Reconciling on the way there, Stalled when somebody's help is needed.
func setConditions(status *v1alpha1.ConversationStatus, o observation, v verdict) {
	set := func(condition string, ok bool, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: condition, Status: conditionStatus(ok), Reason: reason, Message: message,
			ObservedGeneration: o.conversation.Generation,
		})
	}
	setOrRemove := func(condition string, holds bool) {
		if holds {
			set(condition, true, v.reason, v.message)
		} else {
			meta.RemoveStatusCondition(&status.Conditions, condition)
		}
	}
	reconciling := !v.stalled && (v.state == v1alpha1.StateStarting || v.wish == removePod && (o.pod != nil ||
		o.old != nil) || v.reason == v1alpha1.ReasonDeleted)
	set(v1alpha1.ConditionReady, !v.stalled && !reconciling, v.reason, v.message)
	setOrRemove(v1alpha1.ConditionReconciling, reconciling)
	setOrRemove(v1alpha1.ConditionStalled, v.stalled)

	ready := o.pod != nil && o.pod.DeletionTimestamp == nil && podReady(o.pod)
	podReason := map[bool]string{true: "PodReady", false: "PodNotReady"}[ready]
	if v.podless {
		podReason = v1alpha1.ReasonNoPod
	}
	set(v1alpha1.ConditionPodReady, ready, podReason, "")

	if o.volume && o.conversation.Spec.Workspace == nil && status.Workspace == v1alpha1.WorkspaceScratch {
		set(v1alpha1.ConditionWorkspaceReady, false, v1alpha1.ReasonNoStorageClass,
			"The session's files go with its pod: its class gives it a volume, and when it first "+
				"started the cluster had no default StorageClass to make one of. Mark a StorageClass as the default, or name one "+
				"in the SessionClass")
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionWorkspaceReady)
	}
	switch {
	case o.pod == nil && o.unready != nil:
		set(v1alpha1.ConditionSettingsReady, false, o.unready.reason, v.message)
	case !o.settingsExist:
		set(v1alpha1.ConditionSettingsReady, false, v1alpha1.ReasonSettingsDeleted, "UserSettings "+
			o.conversation.Spec.UserSettingsName+" do not exist")
	case v.state == v1alpha1.StateStopped:
		// What a session would need that nobody wants is not looked at.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionSettingsReady)
	default:
		set(v1alpha1.ConditionSettingsReady, true, v1alpha1.ReasonResolved, "")
	}
}

// visible is how long a step must last to be worth a write now: the longer the more there is to do
// that more depends on.
func (r *conversationReconciler) visible() time.Duration {
	if r.queue == nil {
		return stepVisible
	}
	return min(stepVisible+time.Duration(r.queue.Len())*stepPatience, stepLatest)
}

// worthWriting tells a change of the status from one that may wait: a step of a start that has just
// begun, and that of a new Conversation to begin with, which says STARTING already. wait is how
// long it may.
func worthWriting(before, after v1alpha1.ConversationStatus, v verdict, now time.Time,
	visible time.Duration) (wait time.Duration) {
	begins := unseen(before) && after.State == v1alpha1.StateStarting && v.wish == needPod && !v.stalled && !v.stuck
	goesOn := before.State == v1alpha1.StateStarting && after.State == v1alpha1.StateStarting && !v.stalled &&
		before.Reason != v1alpha1.ReasonSettingsNotReady && before.Reason != v1alpha1.ReasonQueued &&
		attemptOf(before) == attemptOf(after) &&
		before.ObservedGeneration == after.ObservedGeneration && before.StartTime.Equal(after.StartTime) &&
		before.Restarts == after.Restarts
	switch {
	case begins && v.since.IsZero():
		return visible // its pod was made just now
	case !begins && !goesOn, v.since.IsZero(), v.since.After(now):
		// A node's clock may be ahead of ours; then how long a step has lasted is not known.
		return 0
	}
	return visible - now.Sub(v.since)
}
