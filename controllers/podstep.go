package controllers

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Names of the containers of a session's pod.
const (
	sessionContainer = "session"
	installContainer = "install-runtime"
)

func podReady(pod *corev1.Pod) bool {
	ready := podCondition(pod, corev1.PodReady)
	return pod.Status.Phase == corev1.PodRunning && ready != nil && ready.Status == corev1.ConditionTrue
}

func podCondition(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// podStep names the step that a start is in, what it waits for, and since when.
func podStep(o observation) (reason, message string, since time.Time) {
	pod := o.pod
	switch {
	case pod == nil && o.old != nil:
		return v1alpha1.ReasonScheduling, "The pod of the attempt before is going away", since
	case pod == nil && attemptOf(o.conversation.Status) > firstAttempt(o.conversation.Status):
		return v1alpha1.ReasonRestarting, fmt.Sprintf("The pod was lost (%s); a new one takes its place",
			o.conversation.Status.LastRestart), since
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
	since = scheduled.LastTransitionTime.Time
	if c := sessionStatus(pod); ran(o.conversation.Status) && c != nil && c.State.Running != nil &&
		c.RestartCount == o.conversation.Status.PodRestarts {
		return v1alpha1.ReasonRestarting, "The session was ready and does not answer any more", time.Time{}
	}
	for _, s := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		if reason, message, at := containerStep(pod, s); reason != "" {
			if at.IsZero() {
				at = since
			}
			return reason, message, at
		}
	}
	return v1alpha1.ReasonPreparingWorkspace, "The node prepares the pod's volumes", since
}

// containerStep is the step that a container holds the start in; empty if it does not.
func containerStep(pod *corev1.Pod, s corev1.ContainerStatus) (reason, message string, since time.Time) {
	last := s.LastTerminationState.Terminated
	if failed := s.State.Terminated; failed != nil && failed.ExitCode != 0 {
		last = failed
	}
	ours := s.Name == sessionContainer || s.Name == installContainer
	switch waiting := s.State.Waiting; {
	case ours && waiting != nil && isImageProblem(waiting.Reason):
		return v1alpha1.ReasonPullingImage, fmt.Sprintf("Image %s: %s", imageOf(pod, s.Name), whyWaiting(imageOf(pod, s.Name),
			waiting)), since
	case last != nil && s.Name == installContainer && s.State.Running == nil:
		return v1alpha1.ReasonPreparingWorkspace, fmt.Sprintf("The runtime could not be put in: %s", causeOf(last)),
			last.FinishedAt.Time
	case last != nil && s.Name == sessionContainer:
		return v1alpha1.ReasonRestarting, fmt.Sprintf("The session's process ended with %s and is started again",
			endOf(last)), last.FinishedAt.Time
	case ours && waiting != nil:
		reason, message = waitingStep(pod, s.Name, waiting)
		return reason, message, since
	case s.Name == installContainer && s.State.Running != nil:
		return v1alpha1.ReasonPreparingWorkspace, "The runtime is put in", s.State.Running.StartedAt.Time
	case s.Name == sessionContainer && s.State.Running != nil:
		return v1alpha1.ReasonStartingRuntime, "The runtime clones the repository and connects the tools",
			s.State.Running.StartedAt.Time
	}
	return "", "", since // done, or somebody else's
}

// endOf a process is its status, and why it ended where somebody knows.
func endOf(t *corev1.ContainerStateTerminated) string {
	status := fmt.Sprintf("status %d", t.ExitCode)
	if cause := causeOf(t); cause != "exit "+status {
		return fmt.Sprintf("%s (%s)", status, cause)
	}
	return status
}

// waitingStep is what a container waits for that never ran.
func waitingStep(pod *corev1.Pod, container string, waiting *corev1.ContainerStateWaiting) (reason, message string) {
	switch {
	case isContainerProblem(waiting.Reason):
		return v1alpha1.ReasonStartingRuntime, fmt.Sprintf("The container %s cannot be started: %s", container,
			whyWaiting(imageOf(pod, container), waiting))
	case waiting.Reason == "PodInitializing" && !initialized(pod):
		return "", "" // an init container is what it waits for
	case sandboxReady(pod):
		return v1alpha1.ReasonPullingImage, fmt.Sprintf("Image %s is pulled or its container is made",
			imageOf(pod, container))
	}
	return "", ""
}

// isContainerProblem: reasons with which a kubelet says that it has the image and cannot make or
// start a container of it.
func isContainerProblem(reason string) bool {
	switch reason {
	case "CreateContainerError", "CreateContainerConfigError", "RunContainerError", "PreStartHookError",
		"PostStartHookError":
		return true
	}
	return false
}

// initialized: every init container is done. A kubelet then still says PodInitializing of the
// others for a while.
func initialized(pod *corev1.Pod) bool {
	return len(pod.Status.InitContainerStatuses) > 0 && !slices.ContainsFunc(pod.Status.InitContainerStatuses,
		func(s corev1.ContainerStatus) bool {
			return s.State.Terminated == nil || s.State.Terminated.ExitCode != 0
		})
}

// isImageProblem: reasons with which a kubelet says that it cannot get an image.
func isImageProblem(reason string) bool {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
		"RegistryUnavailable", "SignatureValidationFailed":
		return true
	}
	return false
}

// sandboxReady: volumes and network are there, so that a waiting container waits for its image.
func sandboxReady(pod *corev1.Pod) bool {
	c := podCondition(pod, corev1.PodReadyToStartContainers)
	return c != nil && c.Status == corev1.ConditionTrue
}

func imageOf(pod *corev1.Pod, container string) string {
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		if c.Name == container {
			return c.Image
		}
	}
	return ""
}
