package lifecycle

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// setConditions expresses the verdict in kstatus conditions: Ready if the session is in the
// requested state, Reconciling while it makes progress towards that state, Stalled if a user has to
// act.
func setConditions(status *v1alpha1.ConversationStatus, o Observation, v Verdict) {
	set := func(condition string, ok bool, reason, message string) {
		SetCondition(&status.Conditions, o.Conversation.Generation, condition, ok, reason, message)
	}
	setOrRemove := func(condition string, holds bool) {
		if holds {
			set(condition, true, v.Reason, v.Message)
		} else {
			meta.RemoveStatusCondition(&status.Conditions, condition)
		}
	}
	removingPod := v.Pod == RemovePod && (o.Pod != nil || o.OldPod != nil)
	reconciling := !v.Stalled && (v.State == v1alpha1.StateStarting || removingPod || v.Reason == v1alpha1.ReasonDeleted)
	set(v1alpha1.ConditionReady, !v.Stalled && !reconciling, v.Reason, v.Message)
	setOrRemove(v1alpha1.ConditionReconciling, reconciling)
	setOrRemove(v1alpha1.ConditionStalled, v.Stalled)

	ready := o.Pod != nil && o.Pod.DeletionTimestamp == nil && PodReady(o.Pod)
	podReason := map[bool]string{true: "PodReady", false: "PodNotReady"}[ready]
	if v.NoPod {
		podReason = v1alpha1.ReasonNoPod
	}
	set(v1alpha1.ConditionPodReady, ready, podReason, "")

	if reason, message := workspaceProblem(*status, o); reason != "" {
		set(v1alpha1.ConditionWorkspaceReady, false, reason, message)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionWorkspaceReady)
	}
	switch {
	case o.Pod == nil && o.Unready != nil:
		set(v1alpha1.ConditionSettingsReady, false, o.Unready.Reason, v.Message)
	case !o.SettingsExist:
		set(v1alpha1.ConditionSettingsReady, false, v1alpha1.ReasonSettingsDeleted,
			"UserSettings "+o.Conversation.Spec.UserSettingsName+" do not exist")
	case v.State == v1alpha1.StateStopped:
		// The manager does not check the references of a stopped session, so it does not know
		// whether the settings are ready.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionSettingsReady)
	default:
		set(v1alpha1.ConditionSettingsReady, true, v1alpha1.ReasonResolved, "")
	}
}

// workspaceProblem returns why a session has scratch space instead of the volume that its class
// requests or that the session had before. The reason is empty if there is no such problem.
func workspaceProblem(status v1alpha1.ConversationStatus, o Observation) (reason, message string) {
	before := o.Conversation.Status
	known := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionWorkspaceReady)
	switch {
	case o.Conversation.Spec.Workspace != nil || status.Workspace != v1alpha1.WorkspaceScratch:
		return "", ""
	case known != nil:
		reason = known.Reason
	case before.Workspace == v1alpha1.WorkspaceScratch: // recorded without a problem
		return "", ""
	case o.ClassVolume:
		reason = v1alpha1.ReasonNoStorageClass
	case before.Workspace == v1alpha1.WorkspaceClass:
		reason = v1alpha1.ReasonVolumeDeleted
	}
	return reason, workspaceProblems[reason]
}

var workspaceProblems = map[string]string{
	v1alpha1.ReasonNoStorageClass: "The session has scratch space: its class requests a volume, but the cluster had no " +
		"default StorageClass when the session started. Without an archive, its files are lost when its pod is deleted. " +
		"For new Conversations, mark a StorageClass as the default, or name one in the SessionClass",
	v1alpha1.ReasonVolumeDeleted: "The session's volume was deleted, with the files of earlier attempts, and its class " +
		"provides no volume. The session has scratch space now. Without an archive, its files are lost when its pod is " +
		"deleted",
}

// SetCondition sets one condition and its observedGeneration.
func SetCondition(conditions *[]metav1.Condition, generation int64, name string, ok bool, reason,
	message string) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: name, Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
	})
}
