package lifecycle

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Names of the containers of a session's pod.
const (
	SessionContainer = "session"
	InstallContainer = "install-runtime"
)

// PodReady says whether the pod runs and is ready.
func PodReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && conditionTrue(pod, corev1.PodReady)
}

// PodConditions are the conditions of a pod that a verdict depends on.
var PodConditions = []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodReady,
	corev1.DisruptionTarget}

func podCondition(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func conditionTrue(pod *corev1.Pod, t corev1.PodConditionType) bool {
	c := podCondition(pod, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// podStep names the step that a start is in, what it waits for, and since when.
func podStep(o Observation) (reason, message string, since time.Time) {
	pod, status := o.Pod, o.Conversation.Status
	switch {
	case pod == nil && o.OldPod != nil:
		return v1alpha1.ReasonScheduling, "The pod of the attempt before is going away", since
	case pod == nil && Attempt(status) > FirstAttempt(status):
		return v1alpha1.ReasonRestarting, fmt.Sprintf("The pod was lost (%s); a new one takes its place",
			status.LastRestart), since
	case pod == nil:
		return v1alpha1.ReasonScheduling, "A pod is being made", since
	}
	scheduled := podCondition(pod, corev1.PodScheduled)
	if scheduled == nil || scheduled.Status != corev1.ConditionTrue {
		message := "The pod waits for a node"
		if scheduled != nil && scheduled.Message != "" {
			message = scheduled.Message
		}
		return v1alpha1.ReasonScheduling, message, pod.CreationTimestamp.Time
	}
	if c := SessionStatus(pod); Ran(status) && c != nil && c.State.Running != nil && c.RestartCount == status.PodRestarts {
		return v1alpha1.ReasonRestarting, "The session was ready and does not answer any more", time.Time{}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if reason, message, at := containerStep(pod, s); reason != "" {
			if at.IsZero() {
				at = scheduled.LastTransitionTime.Time
			}
			return reason, message, at
		}
	}
	return v1alpha1.ReasonPreparingWorkspace, "The node prepares the pod's volumes", scheduled.LastTransitionTime.Time
}

// containerStep is the step that a container holds the start in; empty if it does not.
func containerStep(pod *corev1.Pod, s corev1.ContainerStatus) (reason, message string, since time.Time) {
	if s.Name != SessionContainer && s.Name != InstallContainer {
		return "", "", since // a sidecar
	}
	last := s.LastTerminationState.Terminated
	if failed := s.State.Terminated; failed != nil && failed.ExitCode != 0 {
		last = failed
	}
	switch waiting := s.State.Waiting; {
	case waiting != nil && slices.Contains(imageProblems, waiting.Reason):
		return v1alpha1.ReasonPullingImage, fmt.Sprintf("Image %s: %s", imageOf(pod, s.Name), waiting.Reason), since
	case last != nil && s.Name == InstallContainer && s.State.Running == nil:
		return v1alpha1.ReasonPreparingWorkspace, fmt.Sprintf("The runtime could not be put in: %s", exitCause(last)),
			last.FinishedAt.Time
	case last != nil && s.Name == SessionContainer:
		return v1alpha1.ReasonRestarting, fmt.Sprintf("The session's process ended with %s and is started again",
			exitStatus(last)), last.FinishedAt.Time
	case waiting != nil:
		reason, message = waitingStep(pod, s.Name, waiting.Reason)
		return reason, message, since
	case s.Name == InstallContainer && s.State.Running != nil:
		return v1alpha1.ReasonPreparingWorkspace, "The runtime is put in", s.State.Running.StartedAt.Time
	case s.Name == SessionContainer && s.State.Running != nil:
		return v1alpha1.ReasonStartingRuntime, "The runtime prepares the workspace and connects tool servers",
			s.State.Running.StartedAt.Time
	}
	return "", "", since // done
}

// exitStatus is the status of a process that ended, and why it ended where that is known.
func exitStatus(t *corev1.ContainerStateTerminated) string {
	status := fmt.Sprintf("status %d", t.ExitCode)
	if cause := exitCause(t); cause != "exit "+status {
		return fmt.Sprintf("%s (%s)", status, cause)
	}
	return status
}

// waitingStep is the step of a container that never ran.
func waitingStep(pod *corev1.Pod, container, waitingReason string) (reason, message string) {
	switch {
	case slices.Contains(containerProblems, waitingReason):
		return v1alpha1.ReasonStartingRuntime, fmt.Sprintf("The container %s cannot be started: %s", container, waitingReason)
	case waitingReason == "PodInitializing" && !initialized(pod):
		return "", "" // it waits for an init container
	case conditionTrue(pod, corev1.PodReadyToStartContainers):
		// Volumes and network are there, so that it waits for its image.
		return v1alpha1.ReasonPullingImage, fmt.Sprintf("Image %s is pulled or its container is made",
			imageOf(pod, container))
	}
	return "", ""
}

// containerProblems are the reasons of a kubelet that has the image and cannot create or start a
// container of it.
var containerProblems = []string{"CreateContainerError", "CreateContainerConfigError", "RunContainerError",
	"PreStartHookError", "PostStartHookError"}

// initialized says whether every init container is done. A kubelet then still says PodInitializing
// of the others for a while.
func initialized(pod *corev1.Pod) bool {
	return len(pod.Status.InitContainerStatuses) > 0 && !slices.ContainsFunc(pod.Status.InitContainerStatuses,
		func(s corev1.ContainerStatus) bool {
			return s.State.Terminated == nil || s.State.Terminated.ExitCode != 0
		})
}
