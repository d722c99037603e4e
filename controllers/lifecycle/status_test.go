package lifecycle

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

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
		next := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Name: o.Conversation.Spec.UserSettingsName, UID: "next"}}
		if o.Conversation.BelongsTo(next) != c.belongs {
			t.Errorf("a Conversation that %s belongs to %q", name, o.Conversation.Status.SettingsUID)
		}
	}
}
