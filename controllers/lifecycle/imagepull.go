package lifecycle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// imageProblems are the reasons of a kubelet that cannot get an image. The status shows the reason and
// never the kubelet's message: that repeats answers from an address that a user may have chosen, and
// differs from one try to the next.
var imageProblems = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
	"ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}

// imageOf is the image of a container.
func imageOf(pod *corev1.Pod, container string) string {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == container {
			return c.Image
		}
	}
	return ""
}
