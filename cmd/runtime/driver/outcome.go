package driver

import (
	"bytes"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// extraErrorID and extraNotStarted are fields in the error event of a turn. Errors outside a turn
// have no extraErrorID. extraNotStarted is set if the agent could not be started.
const (
	extraErrorID    = "error_id"
	extraNotStarted = "agent_not_started"
)

// turnReasons maps error IDs to the reasons in a Conversation's status.
var turnReasons = map[string]string{
	errorIDs["authentication"]:  v1alpha1.ReasonModelRefusedKey,
	errorIDs["network"]:         v1alpha1.ReasonModelUnreachable,
	errorIDs["model_not_found"]: v1alpha1.ReasonModelNotFound,
	errorIDs["rate_limit"]:      v1alpha1.ReasonModelRateLimited,
	errorIDs["context"]:         v1alpha1.ReasonContextExceeded,
	errorIDs["provider"]:        v1alpha1.ReasonModelFailed,
}

// Outcome reads the outcome of a session's last turn from the journal. The last recorded state
// determines the outcome.
type Outcome struct {
	Journal *journal.Journal
	// NoModel reports whether the agent needs a model and has none. The function may be nil.
	NoModel func() bool

	read int
	turn *v1alpha1.ConversationTurn
}

var stateMark = []byte(`"observation":"` + session.ObservedState + `"`)

// Turn returns the outcome of the last turn if a user has to act on it, and otherwise nil. It reads
// only the events since the last call. It is not safe for concurrent use.
func (o *Outcome) Turn() (*v1alpha1.ConversationTurn, error) {
	end := o.Journal.Len()
	for id := end - 1; id >= o.read; id-- {
		event, err := o.event(id, stateMark)
		if err != nil {
			return nil, err
		}
		if event.StateOf() == "" {
			continue
		}
		if o.turn, err = o.outcomeAfter(event); err != nil {
			return nil, err
		}
		break
	}
	o.read = end
	return o.turn, nil
}

// event reads the event with this ID. It returns an empty event if the event's JSON does not
// contain the parameter mark.
func (o *Outcome) event(id int, mark []byte) (event session.Event, err error) {
	lines, err := o.Journal.Lines(id, id+1)
	if err != nil || len(lines) == 0 || !bytes.Contains(lines[0], mark) {
		return event, err
	}
	return session.ParseEvent(lines[0])
}

func (o *Outcome) outcomeAfter(state session.Event) (*v1alpha1.ConversationTurn, error) {
	switch state.StateOf() {
	case session.StateConfirmation:
		return &v1alpha1.ConversationTurn{State: v1alpha1.TurnNeedsApproval, Reason: v1alpha1.ReasonApprovalPending,
			Message: "An action of the agent waits for approval"}, nil
	case session.StateError:
	default:
		return nil, nil
	}
	// The event before the change of state contains the error. An error without an error ID ended
	// the session and not a turn.
	failure, err := o.event(state.ID-1, nil)
	id, ofTurn := failure.Extras[extraErrorID].(string)
	if err != nil || failure.Observation != session.ObservedError || !ofTurn {
		return nil, err
	}
	turn := &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonTurnFailed}
	turn.Message, _ = state.Extras["reason"].(string)
	switch reason, known := turnReasons[id]; {
	case o.NoModel != nil && o.NoModel():
		turn.Reason = v1alpha1.ReasonNoModel
	case failure.Extras[extraNotStarted] == true:
		turn.Reason = v1alpha1.ReasonAgentNotStarted
	case known && id != "":
		turn.Reason = reason
	}
	return session.BoundTurn(turn), nil
}
