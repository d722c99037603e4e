package controllers

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// observation is all that the state of a session is derived from.
type observation struct {
	conversation *v1alpha1.Conversation
	// settingsExist says whether the UserSettings are there.
	settingsExist bool
	// unready is why a session that has no pod cannot get one yet; nil if nothing stands in the way.
	unready *problem
	// stuck is why somebody's help is needed: an object in the way, or a refusal of the API server.
	stuck *problem
	// pod of the session; nil if there is none.
	pod *corev1.Pod
	now time.Time
}

// podWish is what should become of the session's pod.
type podWish int

const (
	keepPod   podWish = iota // whatever there is
	needPod                  // one that is not over
	keepEnded                // the pod that ended, for its logs; the session's Secret goes
	removePod                // none, nor the session's Secret
)

// verdict is where a session stands and what is to be done about it.
type verdict struct {
	state           v1alpha1.ConversationState
	reason, message string
	wish            podWish
	// since is when a start entered its present step.
	since time.Time
	// stopped is when a session that is over ended; zero means now.
	stopped time.Time
}

type rung func(observation) (verdict, bool)

// The rungs of the ladder are tried from the top; the first that holds decides.
var (
	notWanted = []rung{beingDeleted, alreadyOver, justEnded, suspended}
	wanted    = []rung{running, waitingForSettings, starting}
	ladder    = slices.Concat(notWanted, wanted)
)

// wantsSession: the session is neither over nor stopped on purpose.
func wantsSession(o observation) bool {
	return !slices.ContainsFunc(notWanted, func(r rung) bool {
		_, holds := r(o)
		return holds
	})
}

// judge derives where a session stands. The state written before is never an input; of the status only
// the times, and the reason of an end, are.
func judge(o observation) verdict {
	for _, r := range ladder {
		if v, holds := r(o); holds {
			return v
		}
	}
	panic("the last rung holds always")
}

func beingDeleted(o observation) (verdict, bool) {
	return verdict{state: v1alpha1.StateStopped, reason: v1alpha1.ReasonDeleted, message: "The Conversation is being deleted"},
		o.conversation.DeletionTimestamp != nil
}

func suspended(o observation) (verdict, bool) {
	return verdict{state: v1alpha1.StateStopped, reason: v1alpha1.ReasonSuspended, message: "spec.suspend is set", wish: removePod},
		o.conversation.Spec.Suspend
}

// endings are the reasons after which a session starts again only when it is asked to. The record in the
// status outlives the pod, which may be collected at any time.
var endings = []string{v1alpha1.ReasonIdle, v1alpha1.ReasonCompleted, v1alpha1.ReasonFailed, v1alpha1.ReasonStartDeadlineExceeded}

func alreadyOver(o observation) (verdict, bool) {
	status := o.conversation.Status
	if status.StopTime == nil || !slices.Contains(endings, status.Reason) || askedToRestart(o) {
		return verdict{}, false
	}
	v := verdict{state: v1alpha1.StateStopped, reason: status.Reason, message: status.Message, wish: removePod, stopped: status.StopTime.Time}
	if o.pod != nil && o.pod.Status.Phase == corev1.PodSucceeded {
		v.wish = keepEnded
	}
	return v, true
}

// justEnded: the session said itself why it is over. A pod that is being deleted also exits, but was told to.
func justEnded(o observation) (verdict, bool) {
	if o.pod == nil || o.pod.Status.Phase != corev1.PodSucceeded || o.pod.DeletionTimestamp != nil {
		return verdict{}, false
	}
	ended, message := endOfPod(o.pod)
	if o.conversation.Status.StopTime != nil && askedToRestart(o) {
		return verdict{}, false // it is the pod of an end that is recorded
	}
	t := session.ParseTermination(message)
	if t.Message == "" {
		t.Message = map[string]string{
			v1alpha1.ReasonIdle:      "Nothing happened for the idle timeout",
			v1alpha1.ReasonCompleted: "The session is done",
			v1alpha1.ReasonFailed:    "The session failed",
		}[t.Reason]
	}
	return verdict{state: v1alpha1.StateStopped, reason: t.Reason, message: t.Message, wish: keepEnded, stopped: ended}, true
}

// askedToRestart: a session that is over is asked to start again. Any value counts that was not followed yet, whatever the
// clock of who wrote it says; one in the future counts when it is time.
func askedToRestart(o observation) bool {
	at := o.conversation.Spec.RestartAt
	return at != nil && !at.Equal(o.conversation.Status.RestartedAt) && !at.After(o.now)
}

func running(o observation) (verdict, bool) {
	v := verdict{state: v1alpha1.StateRunning, reason: v1alpha1.ReasonRunning, message: "The session is running"}
	if !o.settingsExist {
		v.message = fmt.Sprintf("UserSettings %s are gone; the session goes on with those it started with", o.conversation.Spec.UserSettingsName)
	}
	return v, o.pod != nil && o.pod.DeletionTimestamp == nil && podReady(o.pod)
}

// waitingForSettings never gives up for good: when what is missing arrives, the session starts.
func waitingForSettings(o observation) (verdict, bool) {
	v := verdict{state: v1alpha1.StateStarting, reason: v1alpha1.ReasonSettingsNotReady, since: startOf(o), wish: keepPod}
	if o.pod != nil || o.unready == nil {
		return verdict{}, false
	}
	v.message = o.unready.message
	if stop := o.conversation.Status.StopTime; stop != nil && o.conversation.Status.Reason == v1alpha1.ReasonSettingsMissing && !askedToRestart(o) {
		v.state, v.reason, v.stopped = v1alpha1.StateStopped, v1alpha1.ReasonSettingsMissing, stop.Time
	} else if pastDeadline(o) {
		v.state, v.reason = v1alpha1.StateStopped, v1alpha1.ReasonSettingsMissing
	}
	return v, true
}

func starting(o observation) (verdict, bool) {
	v := verdict{state: v1alpha1.StateStarting, wish: needPod}
	v.reason, v.message, v.since = podStep(o)
	if o.stuck != nil {
		v.reason, v.message, v.since = o.stuck.reason, o.stuck.message, startOf(o)
	}
	if pastDeadline(o) {
		return verdict{
			state: v1alpha1.StateStopped, reason: v1alpha1.ReasonStartDeadlineExceeded, wish: removePod,
			message: fmt.Sprintf("Not running after %s, stuck at %s: %s", o.conversation.Spec.StartDeadline.Duration, v.reason, v.message),
		}, true
	}
	return v, true
}

// startOf is when the present start began: the recorded time, unless the session was running or stopped since, or only
// waited for its settings. One that is silent has not begun to start again.
func startOf(o observation) time.Time {
	s := o.conversation.Status
	if wasRunning(s) && silent(o) {
		return s.StartTime.Time
	}
	settingsCame := s.Reason == v1alpha1.ReasonSettingsNotReady && o.unready == nil
	if s.StartTime == nil || s.StopTime != nil || wasRunning(s) || settingsCame {
		return o.now
	}
	return s.StartTime.Time
}

// wasRunning: the session got to run, and has not begun to start again when this status was written.
func wasRunning(s v1alpha1.ConversationStatus) bool {
	return s.StopTime == nil && s.StartTime != nil && s.RunningTime != nil && !s.RunningTime.Before(s.StartTime)
}

// pastDeadline: a start takes too long.
func pastDeadline(o observation) bool {
	left, bounded := untilDeadline(o)
	return bounded && left <= 0
}

// untilDeadline is how long the present start may still take. A session whose process was ready and still runs is not
// starting, it does not answer: its liveness probe, or the loss of its node, decides about it.
func untilDeadline(o observation) (left time.Duration, bounded bool) {
	deadline := o.conversation.Spec.StartDeadline
	if deadline == nil || silent(o) {
		return 0, false
	}
	return startOf(o).Add(deadline.Duration).Sub(o.now), true
}
