package lifecycle

import "testing"

func TestNewUserSettingsDoNotInheritConversationsOfDeletedOnes(t *testing.T) {
	for name, c := range map[string]struct {
		conversation aConversation
		belongs      bool
	}{
		"ended in 0.1.0":               {makeConversation("ns", "c").Started(0).Ran(2).Stopped("Completed", 9), false},
		"waits for its first settings": {makeConversation("ns", "c").Started(0), true},
	} {
		o := Observation{Conversation: c.conversation.Conversation, Bounds: boundsOf(&c.conversation.Spec), Now: at(10)}
		o.Conversation.Status = NewStatus(o, Judge(o))
		if o.Conversation.BelongsTo(o.Conversation.Spec.UserSettingsName, "next") != c.belongs {
			t.Errorf("a Conversation that %s belongs to %q", name, o.Conversation.Status.SettingsUID)
		}
	}
}
