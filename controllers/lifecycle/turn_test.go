package lifecycle

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestTheStatusContainsTheLastKnownOutcomeOfTheTurn(t *testing.T) {
	turn := func(reason string) *v1alpha1.ConversationTurn {
		return &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: reason, Message: "m"}
	}
	noModel, failed := turn(v1alpha1.ReasonNoModel), turn(v1alpha1.ReasonTurnFailed)
	own := &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonNoModel,
		Message: MessageNoModel}
	for name, c := range map[string]struct {
		before *v1alpha1.ConversationTurn
		o      Observation
		want   *v1alpha1.ConversationTurn
	}{
		"nothing is known":                        {nil, Observation{}, nil},
		"an outcome stays while nothing is known": {failed, Observation{}, failed},
		"a report":                                 {nil, Observation{Turn: failed, TurnKnown: true}, failed},
		"another report":                           {failed, Observation{Turn: noModel, TurnKnown: true}, noModel},
		"a report in an incomplete list":           {nil, Observation{Turn: failed}, failed},
		"the outcome is cleared":                   {failed, Observation{TurnKnown: true}, nil},
		"a start without a model":                  {nil, Observation{NoModel: true, TurnKnown: true}, own},
		"a start without a model after a failure":  {failed, Observation{NoModel: true, Turn: failed}, own},
		"no model, and no report":                  {own, Observation{NoModel: true, TurnKnown: true}, own},
		"a model is set, and nothing is known":     {noModel, Observation{}, noModel},
		"a model is set, without a report":         {noModel, Observation{TurnKnown: true}, nil},
		"a model is set, and the report is old":    {noModel, Observation{Turn: noModel, TurnKnown: true}, noModel},
		"a start with a model":                     {noModel, Observation{ModelSet: true}, nil},
		"a start with a model after a failed turn": {failed, Observation{ModelSet: true}, failed},
	} {
		conversation := makeConversation("ns", "c").Started(0)
		conversation.Status.Turn = c.before
		c.o.Conversation, c.o.SettingsExist, c.o.Now = conversation.Conversation, true, at(1)
		if got := NewStatus(c.o, Judge(c.o)).Turn; !ptr.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestTheOutcomeOfATurnIsWrittenWithoutDelay(t *testing.T) {
	o := Observation{Conversation: makeConversation("ns", "c").Conversation, SettingsExist: true, NoModel: true,
		Now: at(0)}
	o.Conversation.Status.ObservedGeneration = -1
	v := Judge(o)
	after := NewStatus(o, v)
	if wait := WriteDelay(o.Conversation.Status, after, v, o.Now, time.Minute); wait != 0 {
		t.Errorf("the write waits %s", wait)
	}
	o.NoModel = false
	if wait := WriteDelay(o.Conversation.Status, NewStatus(o, v), v, o.Now, time.Minute); wait == 0 {
		t.Error("without an outcome the write does not wait")
	}
}
