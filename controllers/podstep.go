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

// endOfPod is when the session's container ended, and what it said.
func endOfPod(pod *corev1.Pod) (time.Time, string) {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == sessionContainer && c.State.Terminated != nil {
			return c.State.Terminated.FinishedAt.Time, c.State.Terminated.Message
		}
	}
	return pod.CreationTimestamp.Time, ""
}

// podLost: the pod is gone, or cannot come back: evicted, its node gone, or removed by somebody. A pod that ended
// of its own accord is lost too once the session is asked to start again.
func podLost(pod *corev1.Pod) bool {
	return pod == nil || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// silent: the session's process runs that was ready before. One that was started since, in the same pod or in another that
// took its place, was not. Both times are cut to seconds, so that a process may be ready in the second that it started in.
func silent(o observation) bool {
	ran := o.conversation.Status.RunningTime
	return ran != nil && !podLost(o.pod) && slices.ContainsFunc(o.pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == sessionContainer && s.State.Running != nil && !s.State.Running.StartedAt.After(ran.Time)
	})
}

// podStep names the step that a start is in, what it waits for, and since when.
func podStep(o observation) (reason, message string, since time.Time) {
	pod := o.pod
	if podLost(pod) {
		if o.conversation.Status.RunningTime == nil || o.conversation.Status.StopTime != nil {
			return v1alpha1.ReasonScheduling, "A pod is being made", startOf(o)
		}
		message := "The pod was lost; a new one takes its place"
		if pod != nil && pod.Status.Reason != "" {
			message = fmt.Sprintf("The pod was lost (%s); a new one takes its place", pod.Status.Reason)
		}
		return v1alpha1.ReasonRestarting, message, startOf(o)
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
	if silent(o) {
		return v1alpha1.ReasonRestarting, "The session was ready and does not answer any more", startOf(o)
	}
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
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
	waiting, last := s.State.Waiting, s.LastTerminationState.Terminated
	switch {
	case waiting != nil && isImageProblem(waiting.Reason):
		return v1alpha1.ReasonPullingImage, fmt.Sprintf("Image %s: %s", imageOf(pod, s.Name), waiting.Reason), since
	case last != nil && s.Name == sessionContainer:
		return v1alpha1.ReasonRestarting, fmt.Sprintf("The session's process ended with status %d (%s) and is started again", last.ExitCode, last.Reason), last.FinishedAt.Time
	case waiting != nil && waiting.Reason == "PodInitializing" && !initialized(pod):
		return "", "", since // an init container is what it waits for
	case waiting != nil && sandboxReady(pod):
		return v1alpha1.ReasonPullingImage, fmt.Sprintf("Image %s is pulled or its container is made", imageOf(pod, s.Name)), since
	case s.Name == installContainer && s.State.Running != nil:
		return v1alpha1.ReasonPreparingWorkspace, "The runtime is put in", s.State.Running.StartedAt.Time
	case s.Name == installContainer && s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
		return v1alpha1.ReasonPreparingWorkspace, fmt.Sprintf("The runtime could not be put in: status %d", s.State.Terminated.ExitCode), s.State.Terminated.FinishedAt.Time
	case s.Name == sessionContainer && s.State.Running != nil:
		return v1alpha1.ReasonStartingRuntime, "The runtime clones the repository and connects the tools", s.State.Running.StartedAt.Time
	}
	return "", "", since
}

// initialized: every init container is done. A kubelet then still says PodInitializing of the others for a while.
func initialized(pod *corev1.Pod) bool {
	return len(pod.Status.InitContainerStatuses) > 0 && !slices.ContainsFunc(pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Terminated == nil || s.State.Terminated.ExitCode != 0
	})
}

// isImageProblem: reasons with which a kubelet says that it cannot get an image. Its messages may hold a registry's
// answer, so they are not passed on.
func isImageProblem(reason string) bool {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
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
