package lifecycle

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// referenceConditions are the conditions that say whether references resolve. If several of them
// are false, the condition Ready reports the first one in this order.
var referenceConditions = []string{
	v1alpha1.ConditionSessionKeyReady,
	v1alpha1.ConditionLLMAPIKeyResolved,
	v1alpha1.ConditionSearchAPIKeyResolved,
	v1alpha1.ConditionSandboxAPIKeyResolved,
	v1alpha1.ConditionProviderTokensResolved,
	v1alpha1.ConditionCustomSecretsResolved,
	v1alpha1.ConditionMCPKeysResolved,
	v1alpha1.ConditionInheritFromResolved,
}

// SessionKey is the published part of a user's session key: its reference and hash, or the reason
// why the key cannot be used.
type SessionKey struct {
	Ref     v1alpha1.SecretKeyRef
	Hash    string
	Blocker *Blocker
}

// NewSettingsStatus returns the status of a UserSettings object after its references were checked.
// blockers has one key for each condition that covers references of this object. The value is the
// first blocker, or nil if all of these references resolve.
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
	// Most blockers are missing Secrets, which are created later. Blockers with the following reasons
	// do not disappear until a user acts.
	lasting := []string{v1alpha1.ReasonForeignObject, v1alpha1.ReasonKeyTooShort, v1alpha1.ReasonKeyUnfit,
		v1alpha1.ReasonInheritsTwice}
	if first != nil && slices.Contains(lasting, first.Reason) {
		set(v1alpha1.ConditionStalled, true, first.Reason, first.Message)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionStalled)
	}
	return status
}
