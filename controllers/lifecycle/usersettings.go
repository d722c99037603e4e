package lifecycle

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// referenceConditions report on references, in the order in which Ready names the first that fails.
var referenceConditions = []string{
	v1alpha1.ConditionSessionKeyReady,
	v1alpha1.ConditionLLMAPIKeyResolved,
	v1alpha1.ConditionSearchAPIKeyResolved,
	v1alpha1.ConditionSandboxAPIKeyResolved,
	v1alpha1.ConditionProviderTokensResolved,
	v1alpha1.ConditionCustomSecretsResolved,
	v1alpha1.ConditionMCPKeysResolved,
}

// SessionKey is what is published of a user's session key: where it is and its hash, or why there is
// none.
type SessionKey struct {
	Ref     v1alpha1.SecretKeyRef
	Hash    string
	Blocker *Blocker
}

// NewSettingsStatus is the status of settings whose references were looked up. blockers has an entry
// for each condition that has references, nil where all of them resolve.
func NewSettingsStatus(settings *v1alpha1.UserSettings, key SessionKey,
	blockers map[string]*Blocker) v1alpha1.UserSettingsStatus {
	status := *settings.Status.DeepCopy()
	status.ObservedGeneration = settings.Generation
	status.SessionKeyRef = &key.Ref
	status.SessionKeyHash = key.Hash

	set := func(condition string, ok bool, reason, message string) {
		SetCondition(&status.Conditions, settings.Generation, condition, ok, reason, message)
	}
	var first *Blocker
	for _, condition := range referenceConditions {
		blocker, present := blockers[condition]
		if condition == v1alpha1.ConditionSessionKeyReady {
			blocker, present = key.Blocker, true
		}
		switch {
		case !present:
			meta.RemoveStatusCondition(&status.Conditions, condition)
		case blocker == nil:
			set(condition, true, v1alpha1.ReasonResolved, "")
		default:
			set(condition, false, blocker.Reason, blocker.Message)
			if first == nil {
				first = blocker
			}
		}
	}
	if first == nil {
		set(v1alpha1.ConditionReady, true, v1alpha1.ReasonReady, "All references resolve")
	} else {
		set(v1alpha1.ConditionReady, false, first.Reason, first.Message)
	}
	// Most blockers are a Secret that has yet to arrive. A foreign object does not go away by itself.
	lasting := []string{v1alpha1.ReasonForeignObject, v1alpha1.ReasonKeyTooShort, v1alpha1.ReasonKeyUnfit}
	if first != nil && slices.Contains(lasting, first.Reason) {
		set(v1alpha1.ConditionStalled, true, first.Reason, first.Message)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionStalled)
	}
	return status
}
