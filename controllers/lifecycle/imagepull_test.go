package lifecycle

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestTheStatusShowsTheReasonOfAWaitingContainerButNotItsMessage(t *testing.T) {
	for reason, want := range map[string]string{
		"ErrImagePull":              "Image example.com/base:1: ErrImagePull",
		"ImagePullBackOff":          "Image example.com/base:1: ImagePullBackOff",
		"InvalidImageName":          "Image example.com/base:1: InvalidImageName",
		"ErrImageNeverPull":         "Image example.com/base:1: ErrImageNeverPull",
		"ImageInspectError":         "Image example.com/base:1: ImageInspectError",
		"RegistryUnavailable":       "Image example.com/base:1: RegistryUnavailable",
		"SignatureValidationFailed": "Image example.com/base:1: SignatureValidationFailed",

		"CreateContainerError":       "Container session cannot start: CreateContainerError",
		"CreateContainerConfigError": "Container session cannot start: CreateContainerConfigError",
		"RunContainerError":          "Container session cannot start: RunContainerError",
	} {
		for _, message := range []string{"", "hunter2: 401 unauthorized",
			"back-off 10s pulling https://ada:hunter2@r.example.com"} {
			pod := podOf(makeConversation("ns", "c")).Sandboxed().Waiting(SessionContainer, reason)
			pod.Status.ContainerStatuses[0].State.Waiting.Message = message
			_, got, _ := containerStep(pod.Pod, pod.Status.ContainerStatuses[0])
			if got != want {
				t.Errorf("%s with the message %q is shown as %q, want %q", reason, message, got, want)
			}
		}
	}
}

func TestAnImageIsShownAsTheUserNamedIt(t *testing.T) {
	for _, image := range []string{"denied", "denied:401", "example.com:401/a", "example.com/a@sha256:0f"} {
		pod := podOf(makeConversation("ns", "c")).Sandboxed().Waiting(SessionContainer, "ErrImagePull")
		pod.Spec.Containers = []corev1.Container{{Name: SessionContainer, Image: image}}
		_, got, _ := containerStep(pod.Pod, pod.Status.ContainerStatuses[0])
		if !strings.HasPrefix(got, "Image "+image+": ") {
			t.Errorf("%s is shown as %q", image, got)
		}
	}
}
