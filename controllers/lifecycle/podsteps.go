package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// These are the names of containers in a session's pod.
const (
	SessionContainer = "session"
	InstallContainer = "install-runtime"
)

// WorkspaceVolume is the volume of the session's files in a pod.
const WorkspaceVolume = "workspace"

// WorkspaceClaim returns the name of the PersistentVolumeClaim of a pod's workspace; empty if there
// is no claim.
func WorkspaceClaim(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == WorkspaceVolume && v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// PodReady reports whether the pod runs and is ready.
func PodReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && conditionTrue(pod, corev1.PodReady)
}

// PodConditions are the pod conditions that a verdict depends on.
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

// LacksRoom reports whether a pod is unschedulable because the nodes are full. Such a pod may fit
// after another pod ends. Only the scheduler's message contains this cause: the reason of the
// condition is the same for all unschedulable pods.
func LacksRoom(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	c := podCondition(pod, corev1.PodScheduled)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable &&
		(strings.Contains(c.Message, "Insufficient ") || strings.Contains(c.Message, "Too many pods"))
}

// podStep returns the current step of a start as a reason and a message, and when the step began.
func podStep(o Observation) (reason, message string, since time.Time) {
	pod, status := o.Pod, o.Conversation.Status
	switch {
	case pod == nil && o.OldPod != nil:
		return v1alpha1.ReasonScheduling, "Waiting for deletion of the previous attempt's pod", since
	case pod == nil && Attempt(status) > FirstAttempt(status):
		return v1alpha1.ReasonRestarting, fmt.Sprintf("The pod was lost (%s); a new pod replaces it",
			status.LastRestart), since
	case pod == nil:
		return v1alpha1.ReasonScheduling, "The pod is being created", since
	}
	scheduled := podCondition(pod, corev1.PodScheduled)
	if scheduled == nil || scheduled.Status != corev1.ConditionTrue {
		message := "The pod is waiting for a node"
		if scheduled != nil && scheduled.Message != "" {
			message = scheduled.Message
		}
		return v1alpha1.ReasonScheduling, message, pod.CreationTimestamp.Time
	}
	if c := SessionStatus(pod); Ran(status) && c != nil && c.State.Running != nil && c.RestartCount == status.PodRestarts {
		return v1alpha1.ReasonRestarting, "The session was ready but no longer answers", time.Time{}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if reason, message, at := containerStep(pod, s); reason != "" {
			if at.IsZero() {
				at = scheduled.LastTransitionTime.Time
			}
			if o.Warm.ClaimTime.After(at) { // the step began before the session claimed the pod
				at = o.Warm.ClaimTime
			}
			return reason, message, at
		}
	}
	return v1alpha1.ReasonPreparingWorkspace, "The node is preparing the pod's volumes", scheduled.LastTransitionTime.Time
}

// containerStep returns the current step of a start if the start waits for this container.
// Otherwise it returns empty texts.
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
		return v1alpha1.ReasonPreparingWorkspace, fmt.Sprintf("The runtime could not be installed: %s", exitCause(last)),
			last.FinishedAt.Time
	case last != nil && s.Name == SessionContainer:
		return v1alpha1.ReasonRestarting, fmt.Sprintf("The session's process exited with %s and is being restarted",
			exitStatus(last)), last.FinishedAt.Time
	case waiting != nil:
		reason, message = waitingStep(pod, s.Name, waiting.Reason)
		return reason, message, since
	case s.Name == InstallContainer && s.State.Running != nil:
		return v1alpha1.ReasonPreparingWorkspace, "The runtime is being installed", s.State.Running.StartedAt.Time
	case s.Name == SessionContainer && s.State.Running != nil:
		return v1alpha1.ReasonStartingRuntime, "The runtime is preparing the workspace and the tool servers",
			s.State.Running.StartedAt.Time
	}
	return "", "", since // done
}

func exitStatus(t *corev1.ContainerStateTerminated) string {
	status := fmt.Sprintf("status %d", t.ExitCode)
	if cause := exitCause(t); cause != "exit "+status {
		return fmt.Sprintf("%s (%s)", status, cause)
	}
	return status
}

// waitingStep returns the step of a container that never ran.
func waitingStep(pod *corev1.Pod, container, waitingReason string) (reason, message string) {
	switch {
	case slices.Contains(containerProblems, waitingReason):
		return v1alpha1.ReasonStartingRuntime, fmt.Sprintf("Container %s cannot start: %s", container, waitingReason)
	case waitingReason == "PodInitializing" && !initialized(pod):
		return "", "" // an init container still runs
	case conditionTrue(pod, corev1.PodReadyToStartContainers):
		// Volumes and network are ready, so the container waits for its image.
		return v1alpha1.ReasonPullingImage, fmt.Sprintf("Pulling image %s and creating its container",
			imageOf(pod, container))
	}
	return "", ""
}

// containerProblems are the kubelet's reasons why a container cannot start although its image is
// present.
var containerProblems = []string{"CreateContainerError", "CreateContainerConfigError", "RunContainerError",
	"PreStartHookError", "PostStartHookError"}

// initialized reports whether every init container is done. The kubelet may report PodInitializing
// for the other containers a little longer.
func initialized(pod *corev1.Pod) bool {
	return len(pod.Status.InitContainerStatuses) > 0 && !slices.ContainsFunc(pod.Status.InitContainerStatuses,
		func(s corev1.ContainerStatus) bool {
			return s.State.Terminated == nil || s.State.Terminated.ExitCode != 0
		})
}
