package lifecycle

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestNewUserSettingsDoNotGetConversationsOfDeletedUserSettings(t *testing.T) {
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

func TestTheStatusRecordsAWarmPod(t *testing.T) {
	o := Observation{Conversation: makeConversation("ns", "c").Conversation, Bounds: Bounds{MaxRestarts: 5},
		SettingsExist: true, Pod: podOf(makeConversation("ns", "c")).Warm("warm-default-x").Ready().Pod,
		WorkspaceClaim: "warm-default-x", Warm: Warm{ClaimTime: at(3600)}, Now: at(3601)}
	s := NewStatus(o, Judge(o))
	if s.PodName != "warm-default-x" || s.WorkspaceClaimName != "warm-default-x" ||
		s.URL != "http://warm-default-x.sessions.ns.svc:8080" || !s.StartTime.Equal(metaTime(3600)) {
		t.Errorf("recorded %+v", s)
	}
	o.Conversation.Status = s
	if !RecordedAsBound(s, o.Pod) {
		t.Error("the record does not say that the session runs in its pod")
	}
	o.Pod = podOf(makeConversation("ns", "c")).Warm("warm-default-x").Ready().Crashed(1, "OOMKilled").Pod
	o.Warm.Unbound = true
	if RecordedAsBound(s, o.Pod) {
		t.Error("the record says that the session runs in a restarted container")
	}
	if s = NewStatus(o, Judge(o)); RecordedAsBound(s, o.Pod) {
		t.Error("the record of a restart says that the session runs in a restarted container")
	}
	o.Conversation.Status, o.Pod, o.Warm, o.WorkspaceClaim = s, nil, Warm{}, ""
	s = NewStatus(o, Judge(o))
	if s.Attempt != 2 || s.PodName != "warm-default-x" || s.WorkspaceClaimName != "warm-default-x" {
		t.Errorf("the next attempt is recorded as %+v", s)
	}
}
