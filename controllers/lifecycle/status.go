package lifecycle

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// ServiceName is the Service that gives the sessions of a namespace their names:
// <conversation>.sessions.
const ServiceName = "sessions"

// NewStatus is the status of a session with a verdict.
func NewStatus(o Observation, v Verdict) v1alpha1.ConversationStatus {
	before := o.Conversation.Status
	status := *before.DeepCopy()
	status.ObservedGeneration = o.Conversation.Generation
	v.Message = Truncate(v.Message, maxStatusMessage)
	status.State, status.Reason, status.Message, status.URL, status.PodIP = v.State, v.Reason, v.Message, "", ""
	setAttempt(&status, o, v)
	if status.Workspace == "" && o.Pod != nil {
		status.Workspace = v1alpha1.WorkspaceKind(o.Pod.Labels[v1alpha1.LabelWorkspace])
	}
	setTimes(&status, o, v)
	if EndsNow(before, v) {
		status.Result = v.Result
	}
	// A restart time that passes while the session starts, runs or ends is recorded as followed, so
	// that it starts nothing later.
	if pending := isOver(before) && v.Next == nil; restartDue(o) && !pending {
		status.RestartedAt = o.Conversation.Spec.RestartAt
	}
	if v.State == v1alpha1.StateRunning {
		status.URL = fmt.Sprintf("http://%s.%s.%s.svc:%d", o.Conversation.Name, ServiceName, o.Conversation.Namespace,
			session.Port)
		status.PodIP = o.Pod.Status.PodIP
	}
	setConditions(&status, o, v)
	return status
}

// EndsNow says whether the session is over and that is not recorded yet.
func EndsNow(before v1alpha1.ConversationStatus, v Verdict) bool {
	return v.State == v1alpha1.StateStopped && slices.Contains(endings, v.Reason) && !isOver(before)
}

// StartsNow says whether the session runs for the first time in its attempt.
func StartsNow(before, after v1alpha1.ConversationStatus) bool { return Ran(after) && !Ran(before) }

// setAttempt records what happened to the present attempt, or that another one follows.
func setAttempt(status *v1alpha1.ConversationStatus, o Observation, v Verdict) {
	before := o.Conversation.Status
	status.Restarts, status.PodRestarts = restartCounts(o)
	if t := crash(o.Pod); t != nil && status.PodRestarts > before.PodRestarts {
		status.LastRestart = exitCause(t)
	}
	if before.State == v1alpha1.StateRunning && v.State != v1alpha1.StateRunning {
		status.RanFor = &metav1.Duration{Duration: runningTime(before, o.Now).Truncate(time.Second)}
	}
	if v.State == v1alpha1.StateRunning {
		status.RanAttempt = Attempt(before)
	}
	if v.Next == nil {
		return
	}
	status.Attempt, status.PodRestarts = Attempt(before)+1, 0
	if v.Next.Asked {
		status.FirstAttempt, status.Restarts, status.LastRestart, status.RanFor = status.Attempt, 0, "", nil
		return
	}
	status.LastRestart = Truncate(v.Next.Cause, maxRestartCause)
	if v.Next.Counted {
		status.Restarts++
	}
}

// setTimes records times by this operator's clock.
func setTimes(status *v1alpha1.ConversationStatus, o Observation, v Verdict) {
	before := o.Conversation.Status
	now := metav1.NewTime(o.Now.Truncate(time.Second))
	if v.State == v1alpha1.StateStopped {
		if status.StopTime == nil || before.Reason != v.Reason {
			status.StopTime = &now
		}
		return
	}
	// A start begins when it could begin. A session that is still queued keeps the time at which its
	// wait began.
	waited := before.Reason == v1alpha1.ReasonSettingsNotReady && v.Reason != v1alpha1.ReasonSettingsNotReady ||
		before.Reason == v1alpha1.ReasonQueued && v.Reason != v1alpha1.ReasonQueued
	if status.StartTime == nil || status.StopTime != nil || v.Next != nil || waited {
		status.StartTime = &now
	}
	// The first status of a start may be written late; its pod says when it began.
	if Unseen(before) && o.Pod != nil && o.Pod.CreationTimestamp.Before(&now) {
		status.StartTime = o.Pod.CreationTimestamp.DeepCopy()
	}
	status.StopTime = nil
	if v.State == v1alpha1.StateRunning && before.State != v1alpha1.StateRunning {
		status.RunningTime = &now
	}
}

const (
	// stepVisible is how long a step of a start must last to be worth a write, while there is nothing
	// else to do. A start that takes no longer costs one write: that it is running.
	stepVisible = 2 * time.Second
	// stepPatience is how much longer for each Conversation that waits to be reconciled, and
	// stepLatest how long at most.
	stepPatience = 20 * time.Millisecond
	stepLatest   = 30 * time.Second
)

// VisibleStep is how long a step must last to be worth a write, with so many Conversations waiting to
// be reconciled.
func VisibleStep(backlog int) time.Duration {
	return min(stepVisible+time.Duration(backlog)*stepPatience, stepLatest)
}

// WriteDelay is how long the write of a status may wait; zero or less means that it is due. A step of
// a start is written only if it lasts, and so is the first step of a new Conversation, which says
// STARTING already. visible is how long a step must last.
func WriteDelay(before, after v1alpha1.ConversationStatus, v Verdict, now time.Time,
	visible time.Duration) time.Duration {
	begins := Unseen(before) && after.State == v1alpha1.StateStarting && v.Pod == NeedPod && !v.Stalled && !v.Blocked
	continues := before.State == v1alpha1.StateStarting && after.State == v1alpha1.StateStarting && !v.Stalled &&
		before.Reason != v1alpha1.ReasonSettingsNotReady && before.Reason != v1alpha1.ReasonQueued &&
		Attempt(before) == Attempt(after) && before.ObservedGeneration == after.ObservedGeneration &&
		before.StartTime.Equal(after.StartTime) && before.Restarts == after.Restarts
	switch {
	case begins && v.Since.IsZero():
		return visible // its pod was created just now
	case !begins && !continues, v.Since.IsZero(), v.Since.After(now):
		// A node's clock may be ahead of ours; then the step's age is unknown.
		return 0
	}
	return visible - now.Sub(v.Since)
}
