package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
)

// CurrentTurn returns the outcome of the last turn if a user has to act on it now. It returns nil
// while the session starts, and after a user suspended the session.
func (c *Conversation) CurrentTurn() *ConversationTurn {
	if c.Status.State == StateStarting || c.Status.Reason == ReasonSuspended {
		return nil
	}
	return c.Status.Turn
}

// NeedsAttention reports whether the session failed, or waits for a user to act.
func (c *Conversation) NeedsAttention() bool {
	return c.CurrentTurn() != nil || meta.IsStatusConditionTrue(c.Status.Conditions, ConditionStalled) ||
		slices.Contains([]string{ReasonSettingsNotReady, ReasonRejected, ReasonMaxDuration}, c.Status.Reason)
}
