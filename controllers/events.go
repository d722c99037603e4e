package controllers

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// emitEvents emits the events of a status change. It is called after the status was written.
func (r *conversationReconciler) emitEvents(c *v1alpha1.Conversation, before, after v1alpha1.ConversationStatus) {
	emit := func(kind, reason, action, message string) { r.emit(c, kind, reason, action, message) }
	stalled := meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionStalled)
	changed := before.State != after.State || before.Reason != after.Reason
	if lifecycle.StartsNow(before, after) {
		emit(corev1.EventTypeNormal, "Started", "Start", "The session is running")
	}
	switch {
	case lifecycle.NeverReconciled(before) && after.Reason == v1alpha1.ReasonSuspended: // it was created suspended
	case after.State == v1alpha1.StateStopped && changed:
		kind := map[bool]string{false: corev1.EventTypeNormal, true: corev1.EventTypeWarning}[stalled]
		emit(kind, after.Reason, "Stop", after.Message)
	case lifecycle.RestartsNow(before, after):
		emit(corev1.EventTypeWarning, after.Reason, "Restart", after.Message)
	case stalled && !meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionStalled):
		emit(corev1.EventTypeWarning, after.Reason, "Start", after.Message)
	case after.Reason == v1alpha1.ReasonSettingsNotReady && after.Message != lifecycle.MessageStoring &&
		(before.Reason != after.Reason || before.Message != after.Message):
		emit(corev1.EventTypeWarning, after.Reason, "Start", after.Message)
	case meta.IsStatusConditionFalse(after.Conditions, v1alpha1.ConditionWorkspaceReady) &&
		!meta.IsStatusConditionFalse(before.Conditions, v1alpha1.ConditionWorkspaceReady):
		workspace := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionWorkspaceReady)
		emit(corev1.EventTypeWarning, workspace.Reason, "Start", workspace.Message)
	}
}

func (r *conversationReconciler) emitTurnEvent(c *v1alpha1.Conversation, before, after v1alpha1.ConversationStatus) {
	turn := after.Turn
	switch {
	case turn == nil || !lifecycle.TurnChanged(before, after):
	case turn.State == v1alpha1.TurnNeedsApproval:
		r.emit(c, corev1.EventTypeNormal, "ApprovalNeeded", "Turn", turn.Reason+": "+turn.Message)
	default:
		r.emit(c, corev1.EventTypeWarning, "TurnFailed", "Turn", turn.Reason+": "+turn.Message)
	}
}

func (r *conversationReconciler) emit(c *v1alpha1.Conversation, kind, reason, action, message string) {
	r.recorder.Eventf(c, nil, kind, reason, action, "%s", lifecycle.Truncate(message, lifecycle.MaxEventNote))
}
