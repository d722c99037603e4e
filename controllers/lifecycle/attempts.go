package lifecycle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// An attempt is one try to run a session, in one pod. A label of the pod contains the number of its
// attempt, and the status contains the number of the current attempt. When a pod ends, the manager
// compares these two numbers, never times. If the numbers differ, it ignores the end of the pod.
// The first attempt has the number 1, even if the status contains no number. The manager writes
// each later number to the status before it creates or removes objects for that attempt.

// Attempt returns the number of a session's current attempt.
func Attempt(s v1alpha1.ConversationStatus) int32 { return max(1, s.Attempt) }

// FirstAttempt returns the number of the first attempt since a user last started the session.
func FirstAttempt(s v1alpha1.ConversationStatus) int32 { return max(1, s.FirstAttempt) }

// Ran reports whether the session ran in the current attempt.
func Ran(s v1alpha1.ConversationStatus) bool { return s.RanAttempt == Attempt(s) }

func everRan(s v1alpha1.ConversationStatus) bool { return s.RanAttempt > 0 }

// NeverReconciled reports whether the controller has never written this status.
func NeverReconciled(s v1alpha1.ConversationStatus) bool {
	return s.ObservedGeneration < 0 || s.State == ""
}

// LabelledAttempt returns the attempt in the labels of a session's object; 0 if there is no label.
func LabelledAttempt(labels map[string]string) int32 {
	n, err := strconv.ParseInt(labels[v1alpha1.LabelAttempt], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// HasWork reports whether a session starts with a task, which must not be done twice.
func HasWork(spec *v1alpha1.ConversationSpec) bool {
	return spec.ReplayJSONRef != nil || session.FirstMessage(spec) != "" || len(spec.ImageURLs) > 0 ||
		len(spec.Images) > 0 || spec.ConversationInstructions != nil
}

// podTime returns when the session got its pod.
func podTime(o Observation) time.Time {
	if !o.Warm.ClaimTime.IsZero() {
		return o.Warm.ClaimTime
	}
	return o.Pod.CreationTimestamp.Time
}

// PodRestarts returns the number of restarts of the session's process in a pod.
func PodRestarts(pod *corev1.Pod) int32 {
	if c := SessionStatus(pod); c != nil {
		return c.RestartCount
	}
	return 0
}

// IsWarm reports whether a pod was created as a warm pod. The manager must send the session's data
// to such a pod.
func IsWarm(pod *corev1.Pod) bool { return pod != nil && pod.Labels[v1alpha1.LabelWarm] != "" }

// RecordedAsBound reports whether the status says that the session runs in this warm pod. The
// result is false if the pod's process restarted after this status was written: the manager
// must bind the session again.
func RecordedAsBound(s v1alpha1.ConversationStatus, pod *corev1.Pod) bool {
	return s.State == v1alpha1.StateRunning && Ran(s) && s.PodName == pod.Name && s.PodRestarts == PodRestarts(pod)
}

func restartCounts(o Observation) (all, inPod int32) {
	s := o.Conversation.Status
	inPod = max(s.PodRestarts, PodRestarts(o.Pod))
	return s.Restarts - s.PodRestarts + inPod, inPod
}

// runningTime returns how long a session was RUNNING since a user last started it.
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

// SessionStatus returns the status of the session's own container, not of an injected sidecar.
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

// processStarted reports whether the session's process started in the pod. The process may have
// begun its work even if the status never was RUNNING.
func processStarted(pod *corev1.Pod) bool {
	c := SessionStatus(pod)
	return c != nil && (c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil)
}

// Exited returns the termination of the session's container; nil while the container runs. If the
// container failed, the kubelet restarts it, and the result becomes nil again.
func Exited(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	c := SessionStatus(pod)
	if c == nil {
		return nil
	}
	return c.State.Terminated
}

// endsByItself reports whether a session exited with 0 and no other container keeps its pod from
// ending. It does not wait for the phase Succeeded, which the kubelet may report later. It does not
// check native sidecars: they are init containers, and the kubelet stops them.
func endsByItself(pod *corev1.Pod) bool {
	exit := Exited(pod)
	if exit == nil || exit.ExitCode != 0 {
		return false
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 // it runs, or is restarted
	})
}

// HoldsSlot reports whether the session runs or may run in a pod. An ended pod that is kept for its
// logs holds no slot.
func HoldsSlot(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	exit := Exited(pod)
	return exit == nil || exit.ExitCode != 0
}

// crash returns the last failure of the session's process in this pod; nil if the process never
// failed.
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

// exitCause returns the cause of a process's exit, in a word or two.
func exitCause(t *corev1.ContainerStateTerminated) string {
	if t.Reason != "" && t.Reason != "Error" {
		return t.Reason
	}
	if why := session.WhyEnded(t.Message); why != "" {
		return why
	}
	return fmt.Sprintf("exit status %d", t.ExitCode)
}

// disrupted reports whether the cluster removed the pod by a drain, an eviction or a preemption.
// Such a loss does not count against the session.
func disrupted(pod *corev1.Pod) bool {
	return pod != nil && conditionTrue(pod, corev1.DisruptionTarget)
}

// EvictionMessage returns the kubelet's message about an evicted pod, such as the limit that the
// pod exceeded; empty for other pods.
func EvictionMessage(pod *corev1.Pod) string {
	if pod.Status.Reason != "Evicted" {
		return ""
	}
	return Truncate(strings.TrimRight(pod.Status.Message, ". "), maxRestartCause)
}

func lossCause(pod *corev1.Pod) string {
	const deleted = "the pod was deleted"
	if pod == nil {
		return deleted
	}
	if message := EvictionMessage(pod); message != "" {
		return pod.Status.Reason + ": " + message
	}
	if pod.Status.Reason != "" {
		return pod.Status.Reason
	}
	if c := podCondition(pod, corev1.DisruptionTarget); disrupted(pod) && c.Reason != "" {
		return c.Reason
	}
	if t := Exited(pod); t != nil && t.ExitCode != 0 {
		return exitCause(t)
	}
	return deleted
}
