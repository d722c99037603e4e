package controllers

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// An attempt is one pod's try at a session. What happened is recorded by its number, never inferred
// from times: the pod carries it as a label, the status holds the present one, and an end counts
// only if it is of the present attempt's pod. The first attempt needs no record. Each later one is
// recorded before anything is made or removed for it.

// attemptOf is the number of a session's present attempt.
func attemptOf(s v1alpha1.ConversationStatus) int32 { return max(1, s.Attempt) }

// firstAttempt is the one that somebody's last start began with.
func firstAttempt(s v1alpha1.ConversationStatus) int32 { return max(1, s.FirstAttempt) }

// ran says whether the present attempt got to run.
func ran(s v1alpha1.ConversationStatus) bool { return s.RanAttempt == attemptOf(s) }

// everRan says whether any attempt did.
func everRan(s v1alpha1.ConversationStatus) bool { return s.RanAttempt > 0 }

// madeFor is the attempt that an object of a session was made for; 0 if it does not say.
func madeFor(labels map[string]string) int32 {
	n, err := strconv.ParseInt(labels[v1alpha1.LabelAttempt], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// hasWork says whether a session was asked to do something, which must not be done twice.
func hasWork(spec *v1alpha1.ConversationSpec) bool {
	return spec.ReplayJSONRef != nil || session.FirstMessage(spec) != "" || len(spec.ImageURLs) > 0 ||
		len(spec.Images) > 0 ||
		spec.ConversationInstructions != nil
}

// restartsOf counts the restarts of a session: those recorded, and what its pod's process had
// since.
func restartsOf(o observation) (all, ofPod int32) {
	s := o.conversation.Status
	ofPod = s.PodRestarts
	if c := sessionStatus(o.pod); c != nil {
		ofPod = max(ofPod, c.RestartCount)
	}
	return s.Restarts - s.PodRestarts + ofPod, ofPod
}

// runningFor is how long a session was RUNNING since somebody last started it.
func runningFor(s v1alpha1.ConversationStatus, now time.Time) time.Duration {
	var all time.Duration
	if s.RanFor != nil {
		all = s.RanFor.Duration
	}
	if s.State == v1alpha1.StateRunning && s.RunningTime != nil {
		all += now.Sub(s.RunningTime.Time)
	}
	return all
}

// sessionStatus is the status of the session's own container. An injected sidecar has one beside
// it, and does not count.
func sessionStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	if pod == nil {
		return nil
	}
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == sessionContainer {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// processStarted says whether the session's process was started in the pod, so that it may have
// begun its work, whether or not anybody saw it run.
func processStarted(pod *corev1.Pod) bool {
	c := sessionStatus(pod)
	return c != nil && (c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil)
}

// exited is how the session's container ended for good; nil while it has not. One that failed is
// started again in its pod.
func exited(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	c := sessionStatus(pod)
	if c == nil || c.State.Terminated == nil {
		return nil
	}
	return c.State.Terminated
}

// crash is how the session's process last ended before it was started again; nil if it never was.
func crash(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	c := sessionStatus(pod)
	if c == nil {
		return nil
	}
	if c.State.Terminated != nil && c.State.Terminated.ExitCode != 0 {
		return c.State.Terminated
	}
	return c.LastTerminationState.Terminated
}

// causeOf a restart, in a word or two: why a process ended.
func causeOf(t *corev1.ContainerStateTerminated) string {
	if t.Reason != "" && t.Reason != "Error" {
		return t.Reason
	}
	if why := session.WhyEnded(t.Message); why != "" {
		return why
	}
	return fmt.Sprintf("exit status %d", t.ExitCode)
}

// disrupted says that the cluster took the pod away: a drain, an eviction, a preemption. That is no
// fault of the session's.
func disrupted(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	c := podCondition(pod, corev1.DisruptionTarget)
	return c != nil && c.Status == corev1.ConditionTrue
}

// lossOf is why a pod is lost.
func lossOf(pod *corev1.Pod) string {
	if pod == nil {
		return "the pod was deleted"
	}
	if c := podCondition(pod, corev1.DisruptionTarget); disrupted(pod) && c.Reason != "" {
		return c.Reason
	}
	if pod.Status.Reason != "" {
		return pod.Status.Reason
	}
	if t := exited(pod); t != nil && t.ExitCode != 0 {
		return causeOf(t)
	}
	return "the pod was deleted"
}
