package session

import (
	"regexp"
	"strings"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// MaxTurns limits the outcomes in a TurnList. A full TurnList has about 4 MiB.
const MaxTurns = 10000

// MaxTurnWait is the longest time, in seconds, for which a request for the TurnList may wait in the
// archive.
const MaxTurnWait = 25

// TurnReport is a session's report about its last turn. It contains an outcome only if a user has
// to act.
type TurnReport struct {
	Turn *v1alpha1.ConversationTurn `json:"turn,omitempty"`
}

// TurnList is a page of the current outcomes that sessions reported, sorted by Conversation UID.
type TurnList struct {
	Turns []ReportedTurn `json:"turns"`
	// Next is the UID after which the next page begins; empty on the last page.
	Next string `json:"next,omitempty"`
}

// ReportedTurn is the outcome that the session of a Conversation reported.
type ReportedTurn struct {
	UID string `json:"uid"`
	// Conversation is the namespace and name, separated by a slash.
	Conversation string `json:"conversation"`
	// Attempt is the number of the attempt that reported the outcome.
	Attempt int                       `json:"attempt,omitempty"`
	Turn    v1alpha1.ConversationTurn `json:"turn"`
}

var reasonForm = regexp.MustCompile(`^[A-Z][A-Za-z]{0,63}$`)

// BoundTurn returns an outcome that fits into a status, with its message in one line. It returns
// nil if the state or the reason is invalid: a container image can replace Parley's runtime with a
// program that reports anything.
func BoundTurn(turn *v1alpha1.ConversationTurn) *v1alpha1.ConversationTurn {
	if turn == nil || turn.State != v1alpha1.TurnNeedsApproval && turn.State != v1alpha1.TurnFailed ||
		!reasonForm.MatchString(turn.Reason) {
		return nil
	}
	bounded := *turn
	// Truncate the message before it is processed, because a runtime other than Parley's may send a
	// long message.
	line := strings.Join(strings.Fields(printable(cut(turn.Message, 4*v1alpha1.MaxTurnMessage))), " ")
	if bounded.Message = line; len(line) > v1alpha1.MaxTurnMessage {
		bounded.Message = cut(line, v1alpha1.MaxTurnMessage-len("…")) + "…"
	}
	return &bounded
}
