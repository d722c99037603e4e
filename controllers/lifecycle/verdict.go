// Package lifecycle derives the state of a session from what is observed of it, and the status of
// its Conversation from that. It is pure: it reads and writes no object.
package lifecycle

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// Blocker is why a session cannot start, or a reference cannot be used. It never holds a secret
// value.
type Blocker struct{ Reason, Message string }

// NewBlocker is a Blocker with a formatted message.
func NewBlocker(reason, format string, args ...any) *Blocker {
	return &Blocker{reason, fmt.Sprintf(format, args...)}
}

// Observation is everything that the state of a session is derived from.
type Observation struct {
	Conversation *v1alpha1.Conversation
	Bounds       Bounds
	// SettingsExist says whether the UserSettings exist.
	SettingsExist bool
	// ClassVolume says whether the class gives sessions a volume.
	ClassVolume bool
	// Scratch says whether the session's files are lost with its pod.
	Scratch bool
	// Pod of the present attempt; nil if there is none.
	Pod *corev1.Pod
	// OldPod is the pod of an earlier attempt that is still there.
	OldPod *corev1.Pod
	// PodExpected: the pod of the present attempt was created a moment ago, and the cache does not
	// show it yet.
	PodExpected bool
	// Unready is why a session without a pod cannot get one yet; nil if nothing is missing.
	Unready *Blocker
	// Storing: the facade still stores what the session starts with, so that nothing is missing yet.
	Storing bool
	// QueueLimit is how many sessions its user may have running, where the session waits for one of
	// them to end; 0 where it does not wait.
	QueueLimit int32
	// Refusal is why the API server refused the last start of a session that is queued again.
	Refusal string
	Now     time.Time
}

// Bounds of a session's life: what it asks for, or else what its class gives.
type Bounds struct {
	IdleTimeout, StartDeadline, MaxDuration time.Duration // zero means none
	// TTL is how long the Conversation stays after its session ended, WorkspaceTTL how long the
	// class's volume stays, and EndedPodTTL how long the pod that ended; nil means for ever.
	TTL, WorkspaceTTL, EndedPodTTL *time.Duration
	MaxRestarts                    int32
}

// PodAction is what should happen to the session's pod.
type PodAction int

// What should happen to the session's pod.
const (
	KeepPod      PodAction = iota // whatever there is
	NeedPod                       // one of the present attempt
	KeepEndedPod                  // the pod that ended, for its logs; the session's Secret goes
	RemovePod                     // no pod, and no Secret of the session
)

// Verdict is the state of a session and what is to be done about it.
type Verdict struct {
	State           v1alpha1.ConversationState
	Reason, Message string
	Pod             PodAction
	// Since is when a start entered its present step; zero means unknown.
	Since time.Time
	// Stalled: the session makes no progress without somebody's help.
	Stalled bool
	// Blocked: a start is held up by something that does not pass in a moment.
	Blocked bool
	// Next begins another attempt.
	Next *NextAttempt
	// NoPod: it was verified that there is no pod, also none that the cache does not show.
	NoPod bool
	// Result of a session that ends, where it reports one.
	Result *v1alpha1.ConversationResult
}

// NextAttempt is why another attempt follows the present one.
type NextAttempt struct {
	// Asked: somebody started the session again, which resets the counters.
	Asked bool
	// Cause of a restart, and whether it counts against the class's bound.
	Cause   string
	Counted bool
}

type rung func(Observation) (Verdict, bool)

// ladder is tried from the top; the first rung that holds decides.
var ladder = []rung{
	beingDeleted, startedAgain, over, ended, suspended, resumed, restartedTooOften, ranTooLong, lost, running, leaving,
	waitingForSettings, queued, starting,
}

// Judge derives the state of a session. The state written before is never an input; of the status
// only the record of attempts is, the reason of an end, and what a start waited for.
func Judge(o Observation) Verdict {
	for _, r := range ladder {
		if v, holds := r(o); holds {
			return v
		}
	}
	panic("the last rung always holds")
}

// MustRecord says whether a verdict must be in the status before anything is created or removed for
// it: another attempt, or a stop. Whoever continues after a crash then continues from there.
func MustRecord(status v1alpha1.ConversationStatus, v Verdict) bool {
	return v.Next != nil || v.State == v1alpha1.StateStopped && (status.State != v.State || status.Reason != v.Reason)
}

// NeedsStart says whether objects of the session are to be created now. A start at its deadline may
// turn out to wait for its settings or for a slot, and is stopped only if it does not.
func (v Verdict) NeedsStart(o Observation) bool {
	late := v.Reason == v1alpha1.ReasonStartDeadlineExceeded && EndsNow(o.Conversation.Status, v)
	return (v.Pod == NeedPod || late) && o.Pod == nil && o.OldPod == nil && !o.PodExpected
}

func stopped(reason, message string, pod PodAction) Verdict {
	return Verdict{State: v1alpha1.StateStopped, Reason: reason, Message: message, Pod: pod,
		Stalled: slices.Contains(failures, reason)}
}

func beingDeleted(o Observation) (Verdict, bool) {
	return stopped(v1alpha1.ReasonDeleted, "The Conversation is being deleted", RemovePod),
		o.Conversation.DeletionTimestamp != nil
}

func suspended(o Observation) (Verdict, bool) {
	return stopped(v1alpha1.ReasonSuspended, "spec.suspend is set", RemovePod), o.Conversation.Spec.Suspend
}

// endings are the reasons after which a session starts again only when it is asked to. The record
// in the status outlives the pod, which may be collected at any time.
var endings = []string{
	v1alpha1.ReasonIdle, v1alpha1.ReasonCompleted, v1alpha1.ReasonFailed, v1alpha1.ReasonLost, v1alpha1.ReasonMaxDuration,
	v1alpha1.ReasonStartDeadlineExceeded,
}

// failures are the endings that need somebody's help.
var failures = []string{v1alpha1.ReasonFailed, v1alpha1.ReasonLost, v1alpha1.ReasonStartDeadlineExceeded,
	v1alpha1.ReasonSettingsMissing}

// retriedReasons are the reasons for which a start is retried without an event.
var retriedReasons = []string{v1alpha1.ReasonRejected, v1alpha1.ReasonForeignObject, v1alpha1.ReasonNotAllowed}

func isOver(s v1alpha1.ConversationStatus) bool {
	return s.StopTime != nil && slices.Contains(endings, s.Reason)
}

// startedAgain: somebody asks a session that is over to start again.
func startedAgain(o Observation) (Verdict, bool) {
	return Verdict{
		State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonScheduling, Message: "The session is started again",
		Next: &NextAttempt{Asked: true},
	}, isOver(o.Conversation.Status) && restartDue(o) && !o.Conversation.Spec.Suspend
}

// restartDue: a value of restartAt that was not followed yet counts, whatever the clock of its
// writer says; one in the future counts when it is time.
func restartDue(o Observation) bool {
	at := o.Conversation.Spec.RestartAt
	return at != nil && !at.Equal(o.Conversation.Status.RestartedAt) && !at.After(o.Now)
}

func over(o Observation) (Verdict, bool) {
	s := o.Conversation.Status
	v := stopped(s.Reason, s.Message, RemovePod)
	// A pod that ended is kept for its logs. One in which a sidecar still runs does not end by
	// itself.
	if o.Pod != nil && o.Pod.Status.Phase == corev1.PodSucceeded {
		v.Pod = KeepEndedPod
	}
	return v, isOver(s)
}

// ended: the session itself said why it is over. A pod that is deleted or evicted exits too: there,
// only a session that says why ended of its own accord.
func ended(o Observation) (Verdict, bool) {
	exit := Exited(o.Pod)
	if exit == nil || exit.ExitCode != 0 {
		return Verdict{}, false
	}
	t, said := session.ParseTermination(exit.Message)
	if !said && (o.Pod.DeletionTimestamp != nil || o.Pod.Status.Phase == corev1.PodFailed) {
		return Verdict{}, false
	}
	if t.Message == "" {
		t.Message = map[string]string{
			v1alpha1.ReasonIdle:      "Nothing happened for the idle timeout",
			v1alpha1.ReasonCompleted: "The session is done",
			v1alpha1.ReasonFailed:    "The session failed",
		}[t.Reason]
	}
	v := stopped(t.Reason, t.Message, KeepEndedPod)
	v.Result = t.Result
	return v, true
}

// resumed: the recorded suspension is over.
func resumed(o Observation) (Verdict, bool) {
	return Verdict{
		State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonScheduling, Message: "The session is resumed",
		Next: &NextAttempt{Asked: true},
	}, o.Conversation.Status.Reason == v1alpha1.ReasonSuspended && o.Conversation.Status.StopTime != nil
}

func restartedTooOften(o Observation) (Verdict, bool) {
	all, _ := restartCounts(o)
	cause := o.Conversation.Status.LastRestart
	if t := crash(o.Pod); t != nil {
		cause = exitCause(t)
	}
	return stopped(v1alpha1.ReasonFailed, fmt.Sprintf("The session was restarted %d times, more than the %d that its "+
			"class allows; the last time because of: %s", all, o.Bounds.MaxRestarts, cause), RemovePod),
		all > o.Bounds.MaxRestarts
}

func ranTooLong(o Observation) (Verdict, bool) {
	left, bounded := UntilMaxDuration(o)
	return stopped(v1alpha1.ReasonMaxDuration, fmt.Sprintf("The session ran for %s, as long as it may",
		o.Bounds.MaxDuration), RemovePod), bounded && left <= 0
}

// lost: the pod of an attempt that ran is gone, or cannot come back. Work is not begun again where
// the files, which show what was done of it, are gone too.
func lost(o Observation) (Verdict, bool) {
	s := o.Conversation.Status
	failed := o.Pod != nil && (o.Pod.Status.Phase == corev1.PodFailed ||
		Exited(o.Pod) != nil && o.Pod.DeletionTimestamp != nil)
	if !failed && (o.Pod != nil || !Ran(s)) {
		return Verdict{}, false
	}
	cause := lossCause(o.Pod)
	if (Ran(s) || processStarted(o.Pod)) && HasWork(&o.Conversation.Spec) && o.Scratch {
		return stopped(v1alpha1.ReasonLost, fmt.Sprintf("The session's pod is gone (%s), and its files with it; its work is "+
			"not begun again by itself", cause), RemovePod), true
	}
	return Verdict{
		State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonRestarting,
		Message: fmt.Sprintf("The pod was lost (%s); a new one takes its place", cause),
		Next:    &NextAttempt{Cause: cause, Counted: !disrupted(o.Pod)},
	}, true
}

func running(o Observation) (Verdict, bool) {
	v := Verdict{State: v1alpha1.StateRunning, Reason: v1alpha1.ReasonRunning, Message: "The session is running"}
	if !o.SettingsExist {
		v.Message = fmt.Sprintf("UserSettings %s are gone; the session goes on with those it started with",
			o.Conversation.Spec.UserSettingsName)
	}
	return v, o.Pod != nil && o.Pod.DeletionTimestamp == nil && PodReady(o.Pod)
}

// leaving: somebody deletes the pod. The end of its process is awaited, for it may be done.
func leaving(o Observation) (Verdict, bool) {
	return Verdict{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonRestarting,
			Message: "The pod is being deleted; a new one takes its place"},
		o.Pod != nil && o.Pod.DeletionTimestamp != nil
}

// StillStored is the message of a start that waits for the facade to store what it refers to.
const StillStored = "What it starts with is still being stored"

// waitingForSettings never gives up for good: when what is missing arrives, the session starts.
func waitingForSettings(o Observation) (Verdict, bool) {
	if o.Pod != nil || o.Unready == nil {
		return Verdict{}, false
	}
	s := o.Conversation.Status
	v := Verdict{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonSettingsNotReady, Message: o.Unready.Message}
	if o.Storing {
		v.Message = StillStored
	}
	missing := s.StopTime != nil && s.Reason == v1alpha1.ReasonSettingsMissing && !restartDue(o)
	if missing || s.Reason == v1alpha1.ReasonSettingsNotReady && pastDeadline(o) {
		return stopped(v1alpha1.ReasonSettingsMissing, o.Unready.Message, KeepPod), true
	}
	return v, true
}

// queued: no deadline counts while a session waits for a slot.
func queued(o Observation) (Verdict, bool) {
	message := fmt.Sprintf("This class allows %d running sessions per user; the session starts when one of them ends",
		o.QueueLimit)
	if o.Refusal != "" {
		message += ". Its last start was refused: " + o.Refusal
	}
	return Verdict{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonQueued, Message: message},
		o.Pod == nil && o.QueueLimit > 0
}

func starting(o Observation) (Verdict, bool) {
	v := Verdict{State: v1alpha1.StateStarting, Pod: NeedPod}
	v.Reason, v.Message, v.Since = podStep(o)
	return v.withinDeadline(o), true
}

// BlockedBy is the verdict of a start that something holds up.
func (v Verdict) BlockedBy(o Observation, b *Blocker) Verdict {
	v.Reason, v.Message, v.Since, v.Blocked = b.Reason, b.Message, time.Time{}, true
	v.Stalled = b.Reason == v1alpha1.ReasonForeignObject || b.Reason == v1alpha1.ReasonNotAllowed
	return v.withinDeadline(o)
}
