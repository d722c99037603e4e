package lifecycle

import (
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// MessageNoModel is the message of a turn that failed because no model is set.
const MessageNoModel = "No model is set: set llmModel in the UserSettings"

// turnOf returns the outcome of the last turn. While the session's reports cannot be read, the
// outcome does not change.
func turnOf(o Observation) *v1alpha1.ConversationTurn {
	before := o.Conversation.Status.Turn
	switch {
	case o.NoModel:
		return &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonNoModel,
			Message: MessageNoModel}
	case o.Turn != nil:
		return o.Turn.DeepCopy()
	case o.TurnKnown, o.ModelSet && FailedWithoutModel(o.Conversation.Status):
		return nil
	}
	return before
}

// FailedWithoutModel reports whether a status says that the last turn failed for lack of a model.
func FailedWithoutModel(s v1alpha1.ConversationStatus) bool {
	return s.Turn != nil && s.Turn.Reason == v1alpha1.ReasonNoModel
}

// TurnChanged reports whether the outcome of the last turn differs between two statuses.
func TurnChanged(before, after v1alpha1.ConversationStatus) bool {
	return !ptr.Equal(before.Turn, after.Turn)
}
