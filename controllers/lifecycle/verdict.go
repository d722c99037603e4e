// Package lifecycle derives the state of a session from observations, and the status of its
// Conversation from that state. It is pure and does no I/O.
package lifecycle

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// Blocker is the reason why a session cannot start or a reference cannot be used. It contains no
// secret value.
type Blocker struct{ Reason, Message string }

// NewBlocker returns a Blocker with a formatted message.
func NewBlocker(reason, format string, args ...any) *Blocker {
	return &Blocker{reason, fmt.Sprintf(format, args...)}
}

// Observation holds all inputs of a session's state.
type Observation struct {
	Conversation *v1alpha1.Conversation
	Bounds       Bounds
	// ClassName is the session's class. ClassBounds are the bounds that follow from the class
	// alone, without the values of the Conversation.
	ClassName   string
	ClassBounds Bounds
	// SettingsExist reports whether the UserSettings of the Conversation exist. SettingsUID is
	// their UID. UserSettings that were deleted and created again have another UID, and count as
	// different UserSettings.
	SettingsExist bool
	SettingsUID   types.UID
	// SettingsOwner is the username of the owner of these UserSettings; empty without an owner.
	SettingsOwner string
	// OtherOwner reports whether the UserSettings got another owner. The Conversation then no
	// longer belongs to these UserSettings.
	OtherOwner bool
	// ClassVolume reports whether the class requests a volume for its sessions.
	ClassVolume bool
	// Scratch reports whether the session's files are lost with its pod.
	Scratch bool
	// Pod is the pod of the current attempt; nil if there is none.
	Pod *corev1.Pod
	// OldPod is a pod of an earlier attempt that still exists.
	OldPod *corev1.Pod
	// PodExpected says that the current attempt's pod was just created and is not in the cache yet.
	PodExpected bool
	// Warm holds the inputs of a session that claimed a warm pod.
	Warm Warm
	// WorkspaceClaim is the name of the PersistentVolumeClaim that the session's pod mounts. If the
	// claimed warm pod is gone, it is the PersistentVolumeClaim that the session adopted with that
	// pod. Empty means none.
	WorkspaceClaim string
	// Unready is the reason why a session without a pod cannot get a pod yet; nil if it can.
	Unready *Blocker
	// Storing says that the facade is still storing the session's inputs.
	Storing bool
	// QueueLimit is the maximum number of the user's running sessions. It is 0 if the session does not
	// wait for a slot.
	QueueLimit int32
	// QueueNumber is the session's queue number, which orders the waiting sessions. It is 0 if the
	// session does not wait for a slot.
	QueueNumber int64
	// Refusal is the reason that the API server gave when it refused the last start. It is set only
	// while the session is queued again.
	Refusal string
	// Turn is the outcome of the last turn that the session reported; nil if there is no report or
	// if the manager has not read the reports yet. In the latter case, TurnKnown is false.
	Turn      *v1alpha1.ConversationTurn
	TurnKnown bool
	// NoModel says that the session lacks the model that its agent needs. ModelSet says that the
	// session has this model, or needs none. Both are false if the manager prepared no start.
	NoModel, ModelSet bool
	Now               time.Time
}

// Warm is the observation of the warm pod that a session claimed. It is empty for other sessions.
type Warm struct {
	// ClaimTime is when the session claimed its pod. The pod was created earlier.
	ClaimTime time.Time
	// Unbound says that the manager does not know yet whether the session is ready in its pod.
	Unbound bool
	// Refused says that the pod refused the session.
	Refused bool
	// Gone says that the claimed pod no longer exists. The manager read this from the API server,
	// not from its cache. As far as the manager knows, the session never ran in this pod.
	Gone bool
}

// PodAction is the action on the session's pod.
type PodAction int

// These are the actions on the session's pod.
const (
	KeepPod      PodAction = iota // change nothing
	NeedPod                       // ensure that the current attempt has a pod
	KeepEndedPod                  // keep the ended pod for its logs, delete the session's Secret
	RemovePod                     // delete the pod and the session's Secret
)

// Verdict is the state of a session and the actions that follow from it.
type Verdict struct {
	State           v1alpha1.ConversationState
	Reason, Message string
	Pod             PodAction
	// Since is when a start entered its current step; zero means unknown.
	Since time.Time
	// Stalled says that the session makes no progress until a user acts.
	Stalled bool
	// Blocked says that something, such as a missing object, blocks the start.
	Blocked bool
	// Next is set if another attempt begins.
	Next *NextAttempt
	// NoPod says that there is no pod. The manager read this from the API server, not from its cache.
	NoPod bool
	// Result is the result that an ending session reports, if any.
	Result *v1alpha1.ConversationResult
}

// NextAttempt describes the attempt that follows the current attempt.
type NextAttempt struct {
	// Requested says that a user restarted the session, which resets the counters.
	Requested bool
	// Cause is the cause of an automatic restart. Counted says whether the restart counts against
	// MaxRestarts.
	Cause   string
	Counted bool
	// Losses is the number of pods lost in a row. No pod is created before RetryTime.
	Losses    int32
	RetryTime *metav1.Time
}

type rung func(Observation) (Verdict, bool)

// ladder lists the rungs in order. The first rung that holds decides the verdict.
var ladder = []rung{
	beingDeleted, restartRequested, alreadyEnded, finished, suspended, resumed, settingsDeleted, restartedTooOften,
	ranTooLong, lost, running, podTerminating, backingOff, waitingForSettings, queued, starting,
}

// Judge derives the state of a session. The previous state is never an input. From the status,
// Judge reads only the record of attempts, the reason of an end, and the reason why the session
// waited.
func Judge(o Observation) Verdict {
	for _, r := range ladder {
		if v, holds := r(o); holds {
			return v
		}
	}
	panic("no rung of the ladder applies, but the last rung must always apply")
}

// MustRecord reports whether the status must be written before anything is created or removed for
// the verdict. This applies to a new attempt, and to a stop that is not in the status yet. After a
// crash, the next manager continues from the status.
func MustRecord(status v1alpha1.ConversationStatus, v Verdict) bool {
	return v.Next != nil || v.State == v1alpha1.StateStopped && (status.State != v.State || status.Reason != v.Reason)
}

// NeedsStart reports whether the start of the session must be prepared now. A start that exceeded
// its deadline is prepared one more time before the session is stopped. If the preparation shows
// that the session lacks settings or a slot, the session keeps waiting instead.
func (v Verdict) NeedsStart(o Observation) bool {
	late := v.Reason == v1alpha1.ReasonStartDeadlineExceeded && EndsNow(o.Conversation.Status, v)
	return (v.Pod == NeedPod || late) && o.Pod == nil && o.OldPod == nil && !o.PodExpected && UntilRetry(o) == 0
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

// endings are the reasons of stopped sessions that start again only on request. The status records
// the reason, because the pod may be garbage collected at any time.
var endings = []string{
	v1alpha1.ReasonIdle, v1alpha1.ReasonCompleted, v1alpha1.ReasonFailed, v1alpha1.ReasonLost, v1alpha1.ReasonMaxDuration,
	v1alpha1.ReasonStartDeadlineExceeded, v1alpha1.ReasonSettingsDeleted,
}

// failures are the reasons of stopped sessions that need an action of a user.
var failures = []string{v1alpha1.ReasonFailed, v1alpha1.ReasonLost, v1alpha1.ReasonStartDeadlineExceeded,
	v1alpha1.ReasonSettingsMissing, v1alpha1.ReasonSettingsDeleted}

// retriedReasons are reasons why a start is blocked. A timer retries these starts, because there
// may be no event when the obstacle is gone.
var retriedReasons = []string{v1alpha1.ReasonRejected, v1alpha1.ReasonForeignObject, v1alpha1.ReasonNotAllowed}

// missingInputs are the reasons in the status of sessions that cannot start because an input is
// missing, or because the class does not allow the session.
var missingInputs = []string{v1alpha1.ReasonSettingsNotReady, v1alpha1.ReasonSettingsMissing,
	v1alpha1.ReasonNotAllowed}

// LacksInputs reports whether the reason in a status is one of missingInputs.
func LacksInputs(s v1alpha1.ConversationStatus) bool { return slices.Contains(missingInputs, s.Reason) }

// HasEnded reports whether a status says that the session ended. Suspended sessions and sessions
// that wait for their settings have not ended.
func HasEnded(s v1alpha1.ConversationStatus) bool {
	return s.StopTime != nil && slices.Contains(endings, s.Reason)
}

// restartRequested reports whether spec.restartAt asks for a restart of an ended session.
func restartRequested(o Observation) (Verdict, bool) {
	return Verdict{
		State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonScheduling, Message: "The session is being restarted",
		Next: &NextAttempt{Requested: true},
	}, HasEnded(o.Conversation.Status) && restartDue(o) && !o.Conversation.Spec.Suspend
}

// restartDue reports whether restartAt has a new value that is not in the future. The new value may
// be earlier than the last one, because clocks differ.
func restartDue(o Observation) bool {
	at := o.Conversation.Spec.RestartAt
	return at != nil && !at.Equal(o.Conversation.Status.RestartedAt) && !at.After(o.Now)
}

func alreadyEnded(o Observation) (Verdict, bool) {
	s := o.Conversation.Status
	v := stopped(s.Reason, s.Message, RemovePod)
	if endsByItself(o.Pod) {
		v.Pod = KeepEndedPod
	}
	return v, HasEnded(s)
}

// finished reports whether the session exited with 0. A deleted or evicted pod may exit with 0 too;
// such a pod is finished only if its session reported a reason.
func finished(o Observation) (Verdict, bool) {
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
			v1alpha1.ReasonIdle:      "No activity during the idle timeout",
			v1alpha1.ReasonCompleted: "The session completed",
			v1alpha1.ReasonFailed:    "The session failed",
		}[t.Reason]
	}
	v := stopped(t.Reason, t.Message, KeepEndedPod)
	v.Result = t.Result
	return v, true
}

// resumed reports whether the recorded suspension was lifted.
func resumed(o Observation) (Verdict, bool) {
	return Verdict{
		State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonScheduling, Message: "The session is being resumed",
		Next: &NextAttempt{Requested: true},
	}, o.Conversation.Status.Reason == v1alpha1.ReasonSuspended && o.Conversation.Status.StopTime != nil
}

// settingsDeleted reports whether the UserSettings of a started session were deleted, or got
// another owner. A session never outlives its UserSettings.
func settingsDeleted(o Observation) (Verdict, bool) {
	cause := "were deleted"
	if o.OtherOwner {
		cause = "have another owner"
	}
	return stopped(v1alpha1.ReasonSettingsDeleted, fmt.Sprintf("UserSettings %s %s", o.Conversation.Spec.UserSettingsName,
		cause), RemovePod), !o.SettingsExist && HasStarted(o)
}

// HasStarted reports whether a session has a pod, or had one since a user last started it. For a
// stopped session, it returns false.
func HasStarted(o Observation) bool {
	s := o.Conversation.Status
	return s.StopTime == nil && (o.Pod != nil || o.PodExpected || Ran(s) || Attempt(s) > FirstAttempt(s))
}

func restartedTooOften(o Observation) (Verdict, bool) {
	all, _ := restartCounts(o)
	cause := o.Conversation.Status.LastRestart
	if t := crash(o.Pod); t != nil {
		cause = exitCause(t)
	}
	return stopped(v1alpha1.ReasonFailed, fmt.Sprintf("The session was restarted %d times; its class allows %d "+
			"restarts. Cause of the last restart: %s", all, o.Bounds.MaxRestarts, cause), RemovePod),
		all > o.Bounds.MaxRestarts
}

func ranTooLong(o Observation) (Verdict, bool) {
	left, bounded := UntilMaxDuration(o)
	return stopped(v1alpha1.ReasonMaxDuration, fmt.Sprintf("The session reached its maximum duration of %s",
		o.Bounds.MaxDuration), RemovePod), bounded && left <= 0
}

// lost reports whether the pod failed, or disappeared although the session ran in it or claimed it.
// Usually a new pod replaces it. But if the session began a task and its files are lost too, the
// session stops: a new pod could not see the progress and would repeat the task.
func lost(o Observation) (Verdict, bool) {
	s := o.Conversation.Status
	failed := o.Pod != nil && (o.Pod.Status.Phase == corev1.PodFailed || o.Warm.Refused ||
		Exited(o.Pod) != nil && o.Pod.DeletionTimestamp != nil)
	if !failed && !o.Warm.Gone && (o.Pod != nil || !Ran(s)) {
		return Verdict{}, false
	}
	cause, processRan := Truncate(lossCause(o.Pod), maxRestartCause), Ran(s) || processStarted(o.Pod)
	if o.Warm.Refused {
		cause, processRan = "the warm pod refused the session", Ran(s)
	}
	if processRan && HasWork(&o.Conversation.Spec) && o.Scratch {
		return stopped(v1alpha1.ReasonLost, fmt.Sprintf("The session's pod was lost (%s), with all files that are not in "+
			"the archive. Its work is not repeated automatically; set spec.restartAt to restart the session", cause),
			RemovePod), true
	}
	v := Verdict{
		State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonRestarting,
		Message: fmt.Sprintf("The pod was lost (%s); a new pod replaces it", cause),
		Next:    &NextAttempt{Cause: cause, Counted: processRan && !disrupted(o.Pod)},
	}
	return v.replaceAfterBackoff(o), true
}

func running(o Observation) (Verdict, bool) {
	return Verdict{State: v1alpha1.StateRunning, Reason: v1alpha1.ReasonRunning, Message: "The session is running"},
		o.Pod != nil && o.Pod.DeletionTimestamp == nil && PodReady(o.Pod) && !o.Warm.Unbound
}

// podTerminating reports whether the pod is being deleted. No new attempt begins before the pod's
// process exits, because the session may still report that it completed.
func podTerminating(o Observation) (Verdict, bool) {
	return Verdict{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonRestarting,
			Message: "The pod is being deleted; a new pod replaces it"},
		o.Pod != nil && o.Pod.DeletionTimestamp != nil
}

// MessageStoring is the message of a start that waits for the facade to store its inputs.
const MessageStoring = "Waiting for the facade to store the session's keys and files"

// waitingForSettings reports whether a referenced object is missing. The session starts as soon as
// the object exists.
func waitingForSettings(o Observation) (Verdict, bool) {
	if o.Pod != nil || o.Unready == nil {
		return Verdict{}, false
	}
	s := o.Conversation.Status
	v := Verdict{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonSettingsNotReady, Message: o.Unready.Message}
	if o.Storing {
		v.Message = MessageStoring
	}
	missing := s.StopTime != nil && s.Reason == v1alpha1.ReasonSettingsMissing && !restartDue(o)
	if missing || s.Reason == v1alpha1.ReasonSettingsNotReady && pastDeadline(o) {
		return stopped(v1alpha1.ReasonSettingsMissing, o.Unready.Message, KeepPod), true
	}
	return v, true
}

// queued reports whether a session waits for a slot. No deadline applies meanwhile.
func queued(o Observation) (Verdict, bool) {
	message := fmt.Sprintf("This class allows %d running sessions per user; the session starts when one of them ends. "+
		"If a session of this user is idle, it is stopped to make room", o.QueueLimit)
	if o.Refusal != "" {
		message += ". The last start was refused: " + o.Refusal
	}
	return Verdict{State: v1alpha1.StateStarting, Reason: v1alpha1.ReasonQueued, Message: message},
		o.Pod == nil && o.QueueLimit > 0
}

func starting(o Observation) (Verdict, bool) {
	v := Verdict{State: v1alpha1.StateStarting, Pod: NeedPod}
	v.Reason, v.Message, v.Since = podStep(o)
	return v.withinDeadline(o), true
}

// BlockedBy returns the verdict for a session whose start is blocked.
func (v Verdict) BlockedBy(o Observation, b *Blocker) Verdict {
	v.Reason, v.Message, v.Since, v.Blocked = b.Reason, b.Message, time.Time{}, true
	v.Stalled = b.Reason == v1alpha1.ReasonForeignObject || b.Reason == v1alpha1.ReasonNotAllowed
	return v.withinDeadline(o)
}
