package controllers

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// stepVisible is how long a step of a start must last to be worth a write. A start that
	// takes no longer costs two: that it began, and that it is running.
	stepVisible = 2 * time.Second
	// maxStatusMessage is the bound of status.message in the schema.
	maxStatusMessage = 2048
)

// conversationStatus is the status of a session about which a verdict was found.
func conversationStatus(o observation, v verdict) v1alpha1.ConversationStatus {
	status := *o.conversation.Status.DeepCopy()
	status.ObservedGeneration = o.conversation.Generation
	v.message = cut(v.message, maxStatusMessage)
	status.State, status.Reason, status.Message, status.URL = v.state, v.reason, v.message, ""
	setTimes(&status, o, v)
	// A session that is wanted needs not be asked once more.
	if at := o.conversation.Spec.RestartAt; v.state != v1alpha1.StateStopped && !at.IsZero() && !at.After(o.now) {
		status.RestartedAt = at
	}
	if v.state == v1alpha1.StateRunning {
		status.URL = fmt.Sprintf("http://%s.%s.%s.svc:%d", o.conversation.Name, sessionsService, o.conversation.Namespace, session.Port)
	}
	setConditions(&status, o, v)
	return status
}

// setTimes moves the times on: a stop ends the attempt, and the next start begins a new one.
func setTimes(status *v1alpha1.ConversationStatus, o observation, v verdict) {
	before := o.conversation.Status
	now := metav1.NewTime(o.now.Truncate(time.Second))
	switch v.state {
	case v1alpha1.StateStarting:
		started := metav1.NewTime(startOf(o).Truncate(time.Second))
		status.StartTime = &started
		if before.StopTime != nil {
			status.RunningTime, status.StopTime = nil, nil
		}
	case v1alpha1.StateRunning:
		if status.StartTime == nil {
			status.StartTime = &now
		}
		if before.State != v1alpha1.StateRunning {
			status.RunningTime = &now
		}
		status.StopTime = nil
	case v1alpha1.StateStopped:
		switch {
		case !v.stopped.IsZero():
			stopped := metav1.NewTime(v.stopped.Truncate(time.Second))
			status.StopTime = &stopped
		case status.StopTime == nil || before.Reason != v.reason:
			status.StopTime = &now
		}
	}
}

// setConditions says the same in the words of kstatus: Ready when what was observed equals what was asked,
// Reconciling on the way there, Stalled when somebody's help is needed.
func setConditions(status *v1alpha1.ConversationStatus, o observation, v verdict) {
	set := func(condition string, ok bool, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: condition, Status: conditionStatus(ok), Reason: reason, Message: message, ObservedGeneration: o.conversation.Generation,
		})
	}
	setOrRemove := func(condition string, holds bool) {
		if holds {
			set(condition, true, v.reason, v.message)
		} else {
			meta.RemoveStatusCondition(&status.Conditions, condition)
		}
	}
	stalled, reconciling := false, false
	switch v.reason {
	case v1alpha1.ReasonFailed, v1alpha1.ReasonStartDeadlineExceeded, v1alpha1.ReasonSettingsMissing:
		stalled = true
	case v1alpha1.ReasonForeignObject, v1alpha1.ReasonRejected:
		stalled = true
	default:
		reconciling = v.state == v1alpha1.StateStarting || v.wish == removePod && o.pod != nil || v.reason == v1alpha1.ReasonDeleted
	}
	set(v1alpha1.ConditionReady, !stalled && !reconciling, v.reason, v.message)
	setOrRemove(v1alpha1.ConditionReconciling, reconciling)
	setOrRemove(v1alpha1.ConditionStalled, stalled)

	ready := o.pod != nil && o.pod.DeletionTimestamp == nil && podReady(o.pod)
	podReason := map[bool]string{true: "PodReady", false: "PodNotReady"}[ready]
	if o.pod == nil {
		podReason = "NoPod"
	}
	set(v1alpha1.ConditionPodReady, ready, podReason, "")

	switch {
	case o.pod == nil && o.unready != nil:
		set(v1alpha1.ConditionSettingsReady, false, o.unready.reason, o.unready.message)
	case !o.settingsExist:
		set(v1alpha1.ConditionSettingsReady, false, v1alpha1.ReasonSettingsDeleted, "UserSettings "+o.conversation.Spec.UserSettingsName+" do not exist")
	default:
		set(v1alpha1.ConditionSettingsReady, true, v1alpha1.ReasonResolved, "")
	}
}

// worthWriting tells a change of the status from one that may wait: a step of a start that has just begun.
// wait is how long it may.
func worthWriting(before, after v1alpha1.ConversationStatus, since, now time.Time) (wait time.Duration) {
	sameStart := before.State == v1alpha1.StateStarting && after.State == v1alpha1.StateStarting &&
		before.ObservedGeneration == after.ObservedGeneration && before.StartTime.Equal(after.StartTime) && before.Reason != v1alpha1.ReasonSettingsNotReady && after.Reason != v1alpha1.ReasonForeignObject && after.Reason != v1alpha1.ReasonRejected
	// A node's clock may be ahead of ours; then how long a step has lasted is not known.
	if !sameStart || since.After(now) {
		return 0
	}
	return stepVisible - now.Sub(since)
}
