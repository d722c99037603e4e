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
	// bounds of the session's life.
	bounds bounds
	// queued is how many sessions its user may have running, where the session waits for one of
	// them to end; 0 where it does not.
	queued int32
	// refused is why it could not start when it had its last turn; empty if it had none.
	refused string
	// paused: it was refused a moment ago, and does not try again yet.
	paused bool
	// volume: the class gives sessions a volume.
	volume bool
	// scratch: the session's files go with its pod.
	scratch bool
	// settingsExist says whether the UserSettings are there, analytics whether their user agreed to
	// be counted.
	settingsExist, analytics bool
	// unready is why a session that has no pod cannot get one yet; nil if nothing stands in the
	// way.
	unready *problem
	// storing: what it is to start with is still being stored, so that it is no problem yet.
	storing bool
	// pod of the present attempt; nil if there is none.
	pod *corev1.Pod
	// old says that the pod of an earlier attempt is still there.
	old *corev1.Pod
	// awaited: the pod of the present attempt was made a moment ago, and the cache has not shown it
	// yet.
	awaited bool
	now     time.Time
}

// bounds of a session's life: what it asks for, or else what its class gives.
type bounds struct {
	idleTimeout, startDeadline, maxDuration time.Duration // zero means none
	// ttl is how long the Conversation stays after its session ended, workspaceTTL how long the
	// class's volume; nil means for ever.
	ttl, workspaceTTL *time.Duration
	restarts          int32
}

// podWish is what should become of the session's pod.
type podWish int

const (
	keepPod   podWish = iota // whatever there is
	needPod                  // one of the present attempt
	keepEnded                // the pod that ended, for its logs; the session's Secret goes
	removePod                // none, nor the session's Secret
)

// verdict is where a session stands and what is to be done about it.
type verdict struct {
	state           v1alpha1.ConversationState
	reason, message string
	wish            podWish
	// since is when a start entered its present step; zero means that this is not known.
	since time.Time
	// stalled: it does not get on without somebody's help.
	stalled bool
	// stuck: something stands in the way of a start, and not for a moment only.
	stuck bool
	// next begins another attempt.
	next *nextAttempt
	// podless: it was made sure that there is no pod, also none that the cache does not have.
	podless bool
	// result is what came of a session that ends, where it says so.
	result *v1alpha1.ConversationResult
}

// nextAttempt is how an attempt comes to follow the present one.
type nextAttempt struct {
	// asked: somebody started the session again, and what was counted since the last time counts no
	// more.
	asked bool
	// cause of a restart, and whether it counts.
	cause   string
	counted bool
}

type rung func(observation) (verdict, bool)

// The rungs of the ladder are tried from the top; the first that holds decides.
var (
	notWanted = []rung{beingDeleted, startedAgain, over, ended, suspended, resumed, restartedTooOften, ranTooLong}
	wanted    = []rung{lost, running, leaving, waitingForSettings, queued, starting}
	ladder    = slices.Concat(notWanted, wanted)
)

// wantsPod: there is none yet, and nothing but a start is to be done.
func wantsPod(o observation) bool {
	return o.pod == nil && !slices.ContainsFunc(append(slices.Clone(notWanted), lost), func(r rung) bool {
		_, holds := r(o)
		return holds
	})
}

// judge derives where a session stands. The state written before is never an input; of the status
// only what was recorded of attempts is, the reason of an end, and what a start waited for.
func judge(o observation) verdict {
	for _, r := range ladder {
		if v, holds := r(o); holds {
			return v
		}
	}
	panic("the last rung holds always")
}

func stopped(reason, message string, wish podWish) verdict {
	return verdict{state: v1alpha1.StateStopped, reason: reason, message: message, wish: wish}
}

func beingDeleted(o observation) (verdict, bool) {
	return stopped(v1alpha1.ReasonDeleted, "The Conversation is being deleted", removePod),
		o.conversation.DeletionTimestamp != nil
}

func suspended(o observation) (verdict, bool) {
	return stopped(v1alpha1.ReasonSuspended, "spec.suspend is set", removePod), o.conversation.Spec.Suspend
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

// obstacles are the reasons for which a start is tried again and again.
var obstacles = []string{v1alpha1.ReasonRejected, v1alpha1.ReasonForeignObject, v1alpha1.ReasonNotAllowed}

func isOver(s v1alpha1.ConversationStatus) bool {
	return s.StopTime != nil && slices.Contains(endings, s.Reason)
}

// startedAgain: a session that is over is asked to start again, and that was not followed yet.
func startedAgain(o observation) (verdict, bool) {
	return verdict{
		state: v1alpha1.StateStarting, reason: v1alpha1.ReasonScheduling, message: "The session is started again",
		next: &nextAttempt{asked: true},
	}, isOver(o.conversation.Status) && restartDue(o) && !o.conversation.Spec.Suspend
}

// restartDue: a value of restartAt that was not followed yet counts, whatever the clock of who
// wrote it says; one in the future counts when it is time.
func restartDue(o observation) bool {
	at := o.conversation.Spec.RestartAt
	return at != nil && !at.Equal(o.conversation.Status.RestartedAt) && !at.After(o.now)
}

func over(o observation) (verdict, bool) {
	s := o.conversation.Status
	v := stopped(s.Reason, s.Message, removePod)
	v.stalled = slices.Contains(failures, s.Reason)
	// A pod that ended has its logs to show. One in which something else still runs does not end by
	// itself.
	if o.pod != nil && o.pod.Status.Phase == corev1.PodSucceeded {
		v.wish = keepEnded
	}
	return v, isOver(s)
}

// ended: the session said itself why it is over. A pod that is being deleted or evicted exits too:
// only one that says why ended of its own accord then.
func ended(o observation) (verdict, bool) {
	exit := exited(o.pod)
	if exit == nil || exit.ExitCode != 0 {
		return verdict{}, false
	}
	t, said := session.ParseTermination(exit.Message)
	if !said && (o.pod.DeletionTimestamp != nil || o.pod.Status.Phase == corev1.PodFailed) {
		return verdict{}, false
	}
	if t.Message == "" {
		t.Message = map[string]string{
			v1alpha1.ReasonIdle:      "Nothing happened for the idle timeout",
			v1alpha1.ReasonCompleted: "The session is done",
			v1alpha1.ReasonFailed:    "The session failed",
		}[t.Reason]
	}
	v := stopped(t.Reason, t.Message, keepEnded)
	v.result = t.Result
	v.stalled = slices.Contains(failures, t.Reason)
	return v, true
}

// resumed: the suspension that is recorded is over.
func resumed(o observation) (verdict, bool) {
	return verdict{
		state: v1alpha1.StateStarting, reason: v1alpha1.ReasonScheduling, message: "The session is resumed",
		next: &nextAttempt{asked: true},
	}, o.conversation.Status.Reason == v1alpha1.ReasonSuspended && o.conversation.Status.StopTime != nil
}

func restartedTooOften(o observation) (verdict, bool) {
	all, _ := restartsOf(o)
	cause := o.conversation.Status.LastRestart
	if t := crash(o.pod); t != nil {
		cause = causeOf(t)
	}
	v := stopped(v1alpha1.ReasonFailed, fmt.Sprintf("The session was restarted %d times, more than the %d that its "+
		"class allows; the last time because of: %s", all, o.bounds.restarts, cause), removePod)
	v.stalled = true
	return v, all > o.bounds.restarts
}

func ranTooLong(o observation) (verdict, bool) {
	left, bounded := untilMaxDuration(o)
	return stopped(v1alpha1.ReasonMaxDuration, fmt.Sprintf("The session ran for %s, as long as it may",
		o.bounds.maxDuration), removePod), bounded && left <= 0
}

// untilMaxDuration is how long a session may still run.
func untilMaxDuration(o observation) (left time.Duration, bounded bool) {
	if o.bounds.maxDuration == 0 {
		return 0, false
	}
	return o.bounds.maxDuration - runningFor(o.conversation.Status, o.now), true
}

// lost: the pod of an attempt that ran is gone, or cannot come back. Where its files are gone with
// it nobody knows what was done of its work, so it is not begun again.
func lost(o observation) (verdict, bool) {
	s := o.conversation.Status
	failed := o.pod != nil && (o.pod.Status.Phase == corev1.PodFailed || exited(o.pod) != nil &&
		o.pod.DeletionTimestamp != nil)
	if !failed && (o.pod != nil || !ran(s)) {
		return verdict{}, false
	}
	cause := lossOf(o.pod)
	if (ran(s) || processStarted(o.pod)) && hasWork(&o.conversation.Spec) && o.scratch {
		v := stopped(v1alpha1.ReasonLost, fmt.Sprintf("The session's pod is gone (%s), and its files with it; its work is "+
			"not begun again by itself", cause), removePod)
		v.stalled = true
		return v, true
	}
	return verdict{
		state: v1alpha1.StateStarting, reason: v1alpha1.ReasonRestarting,
		message: fmt.Sprintf("The pod was lost (%s); a new one takes its place", cause),
		next:    &nextAttempt{cause: cause, counted: !disrupted(o.pod)},
	}, true
}

func running(o observation) (verdict, bool) {
	v := verdict{state: v1alpha1.StateRunning, reason: v1alpha1.ReasonRunning, message: "The session is running"}
	if !o.settingsExist {
		v.message = fmt.Sprintf("UserSettings %s are gone; the session goes on with those it started with",
			o.conversation.Spec.UserSettingsName)
	}
	return v, o.pod != nil && o.pod.DeletionTimestamp == nil && podReady(o.pod)
}

// leaving: somebody deletes the pod. How its process ends is awaited, for it may be done.
func leaving(o observation) (verdict, bool) {
	return verdict{state: v1alpha1.StateStarting, reason: v1alpha1.ReasonRestarting,
			message: "The pod is being deleted; a new one takes its place"},
		o.pod != nil && o.pod.DeletionTimestamp != nil
}

// waitingForSettings never gives up for good: when what is missing arrives, the session starts.
func waitingForSettings(o observation) (verdict, bool) {
	if o.pod != nil || o.unready == nil {
		return verdict{}, false
	}
	s := o.conversation.Status
	v := verdict{state: v1alpha1.StateStarting, reason: v1alpha1.ReasonSettingsNotReady, message: o.unready.message}
	if o.storing {
		v.message = stillStored // nobody is to be alarmed
	}
	missing := s.StopTime != nil && s.Reason == v1alpha1.ReasonSettingsMissing && !restartDue(o)
	if missing || s.Reason == v1alpha1.ReasonSettingsNotReady && pastDeadline(o) {
		v = stopped(v1alpha1.ReasonSettingsMissing, o.unready.message, keepPod)
		v.stalled = true
	}
	return v, true
}

// queued: no deadline counts while a session waits for its turn.
func queued(o observation) (verdict, bool) {
	message := fmt.Sprintf("Of a user's sessions the class lets at most %d run at a time; this one starts when one of "+
		"them ends", o.queued)
	if o.refused != "" {
		message += ". When it had its turn it was refused: " + o.refused
	}
	return verdict{state: v1alpha1.StateStarting, reason: v1alpha1.ReasonQueued, message: message}, o.pod == nil &&
		o.queued > 0
}

func starting(o observation) (verdict, bool) {
	v := verdict{state: v1alpha1.StateStarting, wish: needPod}
	v.reason, v.message, v.since = podStep(o)
	return v.inTime(o), true
}

// inTime ends a start that takes too long, unless the session ran before: that one waits for its
// node, its quota or its image as long as it takes, and says so.
func (v verdict) inTime(o observation) verdict {
	if !pastDeadline(o) {
		return v
	}
	s, step, words := o.conversation.Status, v.reason, v.message
	if !everRan(s) && !v.stuck && o.pod == nil && slices.Contains(obstacles, s.Reason) {
		step, words = s.Reason, s.Message // it is not tried again, so that no more is known
	}
	stuck := fmt.Sprintf("Not running after %s, stuck at %s: %s", o.bounds.startDeadline, step, words)
	if everRan(s) {
		v.message, v.stalled = stuck, true
		return v
	}
	v = stopped(v1alpha1.ReasonStartDeadlineExceeded, stuck, removePod)
	v.stalled = true
	return v
}

// because of a problem, a start does not get on.
func (v verdict) because(o observation, p *problem) verdict {
	v.reason, v.message, v.since, v.stuck = p.reason, p.message, time.Time{}, true
	v.stalled = p.reason == v1alpha1.ReasonForeignObject || p.reason == v1alpha1.ReasonNotAllowed
	return v.inTime(o)
}

func pastDeadline(o observation) bool {
	left, bounded := untilDeadline(o)
	return bounded && left <= 0
}

// untilDeadline is how long the present start may still take: from the creation of its pod or,
// without one, from when it was recorded that there is none. A session that got to run in this
// attempt is not starting.
func untilDeadline(o observation) (left time.Duration, bounded bool) {
	s := o.conversation.Status
	if o.bounds.startDeadline == 0 || ran(s) {
		return 0, false
	}
	began := o.now
	switch {
	case o.pod != nil:
		began = o.pod.CreationTimestamp.Time
	case s.Reason == v1alpha1.ReasonQueued || s.Reason == v1alpha1.ReasonSettingsNotReady && o.unready == nil:
		// What it waited for has come only now, so that it begins only now.
	case s.StartTime != nil && s.StopTime == nil:
		began = s.StartTime.Time
	}
	return began.Add(o.bounds.startDeadline).Sub(o.now), true
}
