package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

func TestASessionIsRequeuedAtItsNextDeadline(t *testing.T) {
	conv := func() aConversation { return makeConversation("ns", "c") }
	pod := func() aPod { return podOf(conv()) }
	for name, tc := range map[string]struct {
		conversation aConversation
		pod          aPod
		now          int
		want         time.Duration
		class        objects.Class
	}{
		"a starting session": {conv().Started(0), pod().Scheduled(), 30, 570 * time.Second, objects.Class{}},
		"an unresponsive session": {conv().Started(0).Ran(2), pod().Ready().Condition(corev1.PodReady, false, ""), 3600,
			0, objects.Class{}},
		"a running session": {conv().Started(0).Ran(0), pod().Ready(), 3600, 23 * time.Hour, objects.Class{}},
		"a running session without a maximum duration": {conv().Started(0).Ran(0).With(func(s *v1alpha1.ConversationSpec) {
			s.MaxDuration =
				&metav1.Duration{}
		}), pod().Ready(), 3600, 0, objects.Class{}},
		"a scheduled restart": {conv().Started(0).Ran(0).Stopped("Idle", 9).With(func(s *v1alpha1.ConversationSpec) {
			s.RestartAt = metaTime(60)
		}), pod().Ended(0, "", 9), 30, 30 * time.Second, objects.Class{}},
		"an ended session with a pod": {conv().Started(0).Ran(0).Stopped("Idle", 9), pod().Ended(0, "", 9), 30,
			39 * time.Second, objects.Class{Spec: v1alpha1.SessionClassSpec{Lifetimes: &v1alpha1.SessionLifetimes{
				EndedPodTTL: &metav1.Duration{Duration: time.Minute}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			o := gathered{Observation: lifecycle.Observation{Conversation: tc.conversation.Conversation,
				Bounds: tc.class.Bounds().For(&tc.conversation.Spec), Scratch: tc.conversation.Spec.Workspace == nil,
				SettingsExist: true, Pod: tc.pod.Pod, Now: at(tc.now)}}
			v := lifecycle.Judge(o.Observation)
			left, err := (&conversationReconciler{}).expire(t.Context(), o, v)
			if got := (&conversationReconciler{}).requeue(o, nil, v, nil, left...).RequeueAfter; err != nil || got != tc.want {
				t.Errorf("after %s, %v; want %s", got, err, tc.want)
			}
		})
	}
}

func TestABlockedSessionIsRetriedAfterABackoff(t *testing.T) {
	for waited, want := range map[time.Duration][2]time.Duration{
		0: {5 * time.Second, 8 * time.Second}, time.Minute: {30 * time.Second, 45 * time.Second},
		2 * time.Hour: {5 * time.Minute, 8 * time.Minute},
	} {
		if got := retryDelay(waited); got < want[0] || got > want[1] {
			t.Errorf("blocked for %s: retry in %s", waited, got)
		}
	}
}
