package lifecycle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// imageProblems are the kubelet's reasons for a failed image pull. The status shows only the
// reason. The kubelet's message quotes responses from an address that a user may have chosen, and
// changes with every try.
var imageProblems = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
	"ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}

func imageOf(pod *corev1.Pod, container string) string {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == container {
			return c.Image
		}
	}
	return ""
}
