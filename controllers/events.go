package controllers

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// maxEventNote is the longest note that the API server takes; it refuses an event with a longer
// one.
const maxEventNote = 1024

// cut shortens a text to n bytes, and not within a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}

// announce says, once for each change, what a person would want to know. A start that goes well
// says nothing: the state shows it.
func (r *conversationReconciler) announce(c *v1alpha1.Conversation, before, after v1alpha1.ConversationStatus) {
	warn := func(reason, action, message string) {
		r.recorder.Eventf(c, nil, corev1.EventTypeWarning, reason, action, "%s", cut(message, maxEventNote))
	}
	switch {
	case unseen(before) && after.Reason == v1alpha1.ReasonSuspended: // it was created so
	case after.State == v1alpha1.StateStopped && (before.State != after.State || before.Reason != after.Reason):
		kind := corev1.EventTypeNormal
		if meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionStalled) {
			kind = corev1.EventTypeWarning
		}
		r.recorder.Eventf(c, nil, kind, after.Reason, "Stop", "%s", cut(after.Message, maxEventNote))
	case before.State == v1alpha1.StateRunning && after.State == v1alpha1.StateStarting:
		warn(after.Reason, "Restart", after.Message)
	case meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionStalled) &&
		!meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionStalled):
		warn(after.Reason, "Start", after.Message)
	case after.Reason == v1alpha1.ReasonSettingsNotReady && after.Message != stillStored &&
		(before.Reason != after.Reason || before.Message != after.Message):
		warn(after.Reason, "Start", after.Message)
	case meta.IsStatusConditionFalse(after.Conditions, v1alpha1.ConditionWorkspaceReady) &&
		!meta.IsStatusConditionFalse(before.Conditions, v1alpha1.ConditionWorkspaceReady):
		warn(v1alpha1.ReasonNoStorageClass, "Start", meta.FindStatusCondition(after.Conditions,
			v1alpha1.ConditionWorkspaceReady).Message)
	case after.State == v1alpha1.StateRunning && settingsGone(after) && !settingsGone(before):
		warn(v1alpha1.ReasonSettingsDeleted, "KeepRunning", after.Message)
	}
}

func settingsGone(s v1alpha1.ConversationStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSettingsReady)
	return c != nil && c.Reason == v1alpha1.ReasonSettingsDeleted
}
