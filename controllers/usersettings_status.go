package controllers

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// userSettingsStatus is the status of settings whose references were looked up. problems has an
// entry for each condition that has references, nil where all of them resolve.
func userSettingsStatus(settings *v1alpha1.UserSettings, key sessionKey,
	problems map[string]*problem) v1alpha1.UserSettingsStatus {
	status := *settings.Status.DeepCopy()
	status.ObservedGeneration = settings.Generation
	status.SessionKeyRef = &key.ref
	status.SessionKeyHash = key.hash

	set := func(condition string, ok bool, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: condition, Status: conditionStatus(ok), Reason: reason, Message: message,
			ObservedGeneration: settings.Generation,
		})
	}
	var first *problem
	for _, condition := range referenceConditions {
		problem, present := problems[condition]
		if condition == v1alpha1.ConditionSessionKeyReady {
			problem, present = key.problem, true
		}
		switch {
		case !present:
			meta.RemoveStatusCondition(&status.Conditions, condition)
		case problem == nil:
			set(condition, true, v1alpha1.ReasonResolved, "")
		default:
			set(condition, false, problem.reason, problem.message)
			if first == nil {
				first = problem
			}
		}
	}
	if first == nil {
		set(v1alpha1.ConditionReady, true, v1alpha1.ReasonReady, "All references resolve")
	} else {
		set(v1alpha1.ConditionReady, false, first.reason, first.message)
	}
	// Most problems are a Secret that has yet to arrive. Another's object in the way does not go
	// away by itself.
	lasting := []string{v1alpha1.ReasonForeignObject, v1alpha1.ReasonKeyTooShort, v1alpha1.ReasonKeyUnfit}
	if first != nil && slices.Contains(lasting, first.reason) {
		set(v1alpha1.ConditionStalled, true, first.reason, first.message)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionStalled)
	}
	return status
}

func conditionStatus(ok bool) metav1.ConditionStatus {
	if ok {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
