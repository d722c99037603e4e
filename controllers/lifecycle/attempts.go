package lifecycle

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// An attempt is one pod's try at a session. Events are recorded by its number, never inferred from
// times: the pod carries it as a label, the status holds the present one, and an end counts only if
// it is of the present attempt's pod. The first attempt needs no record. Each later one is recorded
// before anything is created or removed for it.

// Attempt is the number of a session's present attempt.
func Attempt(s v1alpha1.ConversationStatus) int32 { return max(1, s.Attempt) }

// FirstAttempt is the number of the attempt that somebody's last start began with.
func FirstAttempt(s v1alpha1.ConversationStatus) int32 { return max(1, s.FirstAttempt) }

// Ran says whether the session ran in the present attempt.
func Ran(s v1alpha1.ConversationStatus) bool { return s.RanAttempt == Attempt(s) }

// everRan says whether the session ran in any attempt.
func everRan(s v1alpha1.ConversationStatus) bool { return s.RanAttempt > 0 }

// Unseen says that nobody wrote this status: it is the one that a Conversation begins with.
func Unseen(s v1alpha1.ConversationStatus) bool { return s.ObservedGeneration < 0 || s.State == "" }

// LabelledAttempt is the attempt that an object of a session was created for; 0 if it has no label.
func LabelledAttempt(labels map[string]string) int32 {
	n, err := strconv.ParseInt(labels[v1alpha1.LabelAttempt], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// HasWork says whether a session was asked to do something, which must not be done twice.
func HasWork(spec *v1alpha1.ConversationSpec) bool {
	return spec.ReplayJSONRef != nil || session.FirstMessage(spec) != "" || len(spec.ImageURLs) > 0 ||
		len(spec.Images) > 0 || spec.ConversationInstructions != nil
}

// restartCounts are the restarts of a session, and among them those of the process in its present
// pod.
func restartCounts(o Observation) (all, inPod int32) {
	s := o.Conversation.Status
	inPod = s.PodRestarts
	if c := SessionStatus(o.Pod); c != nil {
		inPod = max(inPod, c.RestartCount)
	}
	return s.Restarts - s.PodRestarts + inPod, inPod
}

// runningTime is how long a session was RUNNING since somebody last started it.
func runningTime(s v1alpha1.ConversationStatus, now time.Time) time.Duration {
	var all time.Duration
	if s.RanFor != nil {
		all = s.RanFor.Duration
	}
	if s.State == v1alpha1.StateRunning && s.RunningTime != nil {
		all += now.Sub(s.RunningTime.Time)
	}
	return all
}

// SessionStatus is the status of the session's own container, not of an injected sidecar.
func SessionStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	if pod == nil {
		return nil
	}
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == SessionContainer {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// processStarted says whether the session's process was started in the pod, so that it may have
// begun its work, whether or not anybody saw it run.
func processStarted(pod *corev1.Pod) bool {
	c := SessionStatus(pod)
	return c != nil && (c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil)
}

// Exited is how the session's container ended; nil while it has not. The kubelet restarts one that
// failed.
func Exited(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	c := SessionStatus(pod)
	if c == nil {
		return nil
	}
	return c.State.Terminated
}

// HoldsSlot says whether something of a session runs or may run in a pod. A pod that is kept for its
// logs holds no slot.
func HoldsSlot(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	exit := Exited(pod)
	return exit == nil || exit.ExitCode != 0
}

// crash is how the session's process last ended before it was restarted; nil if it never was.
func crash(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	c := SessionStatus(pod)
	if c == nil {
		return nil
	}
	if c.State.Terminated != nil && c.State.Terminated.ExitCode != 0 {
		return c.State.Terminated
	}
	return c.LastTerminationState.Terminated
}

// exitCause is why a process ended, in a word or two.
func exitCause(t *corev1.ContainerStateTerminated) string {
	if t.Reason != "" && t.Reason != "Error" {
		return t.Reason
	}
	if why := session.WhyEnded(t.Message); why != "" {
		return why
	}
	return fmt.Sprintf("exit status %d", t.ExitCode)
}

// disrupted says whether the cluster took the pod away: a drain, an eviction, a preemption. That is
// not the session's fault.
func disrupted(pod *corev1.Pod) bool {
	return pod != nil && conditionTrue(pod, corev1.DisruptionTarget)
}

// lossCause is why a pod is lost.
func lossCause(pod *corev1.Pod) string {
	const deleted = "the pod was deleted"
	if pod == nil {
		return deleted
	}
	if c := podCondition(pod, corev1.DisruptionTarget); disrupted(pod) && c.Reason != "" {
		return c.Reason
	}
	if pod.Status.Reason != "" {
		return pod.Status.Reason
	}
	if t := Exited(pod); t != nil && t.ExitCode != 0 {
		return exitCause(t)
	}
	return deleted
}

// WaitingSince is when a session began to wait for a slot: as recorded or, before that, now.
func WaitingSince(s v1alpha1.ConversationStatus, now time.Time) time.Time {
	if s.StartTime != nil && s.StopTime == nil {
		return s.StartTime.Time
	}
	return now
}
