// Package slimcache provides cache transforms that drop the fields that the controllers never read.
package slimcache

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// Object drops managed fields and the last-applied annotation of kubectl. The cache holds only the
// metadata of Secrets and ConfigMaps, with labels and annotations only if Parley manages the
// object.
func Object(object any) (any, error) {
	o, ok := object.(metav1.Object)
	if !ok {
		return object, nil // a tombstone, or a list's bookmark
	}
	o.SetManagedFields(nil)
	labels := o.GetLabels()
	if _, metadataOnly := object.(*metav1.PartialObjectMetadata); metadataOnly &&
		labels[v1alpha1.LabelUserSettings] == "" && labels[v1alpha1.LabelConversation] == "" {
		o.SetLabels(nil)
		o.SetAnnotations(nil)
	}
	delete(o.GetAnnotations(), corev1.LastAppliedConfigAnnotation)
	return object, nil
}

// Secret keeps only the identity and the owner of a session's Secret, because each session has a
// Secret. If the manager sent a changed model to the session, it also keeps the model's revision.
func Secret(object any) (any, error) {
	if secret, ok := object.(*metav1.PartialObjectMetadata); ok {
		if owner := metav1.GetControllerOfNoCopy(secret); owner != nil && owner.Kind == "Conversation" {
			revision := secret.Annotations[v1alpha1.AnnotationModel]
			secret.Labels, secret.Annotations, secret.ManagedFields = nil, nil, nil
			if revision != "" {
				secret.Annotations = map[string]string{v1alpha1.AnnotationModel: revision}
			}
			return secret, nil
		}
	}
	return Object(object)
}

const (
	// MaxText is the number of bytes of each text of a Conversation in the cache. A start reads the
	// whole text.
	MaxText = 1024
	// annotationTruncated marks a Conversation with truncated texts. It exists only in the cache.
	annotationTruncated = "parley.dev/truncated"
)

// Truncated reports whether the cache truncated texts of a Conversation.
func Truncated(c *v1alpha1.Conversation) bool { return c.Annotations[annotationTruncated] != "" }

// Conversation truncates long texts and empties the elements of long lists. The list keeps its
// length, which shows the number of elements; an empty text is never a valid element.
func Conversation(object any) (any, error) {
	c, ok := object.(*v1alpha1.Conversation)
	if !ok {
		return Object(object)
	}
	if _, err := Object(c); err != nil {
		return nil, err
	}
	spec, truncated := &c.Spec, false
	for _, text := range []**string{&spec.InitialUserMsg, &spec.ConversationInstructions} {
		if *text != nil && len(**text) > MaxText {
			*text, truncated = ptr.To(strings.Clone(lifecycle.Truncate(**text, MaxText))), true
		}
	}
	truncated = emptyLong(spec.ImageURLs) || truncated
	truncated = emptyImages(spec.Images) || truncated
	if spec.MCPConfig != nil {
		for i := range spec.MCPConfig.StdioServers {
			truncated = emptyLong(spec.MCPConfig.StdioServers[i].Args) || truncated
		}
	}
	c.Status.Conditions = slices.Clone(c.Status.Conditions) // decoding leaves spare capacity
	if truncated {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationTruncated, "true")
	}
	return c, nil
}

// emptyLong empties the texts of a list of more than MaxText bytes, and reports whether it did.
func emptyLong(texts []string) bool {
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	if size <= MaxText {
		return false
	}
	clear(texts)
	return true
}

// emptyImages empties long URLs of images. References stay, because they are short and the session
// starts once their targets exist.
func emptyImages(images []v1alpha1.ConversationImage) bool {
	var urls []string
	for _, image := range images {
		urls = append(urls, ptr.Deref(image.URL, ""))
	}
	if !emptyLong(urls) {
		return false
	}
	for i := range images {
		if images[i].URL != nil {
			images[i].URL = new(string)
		}
	}
	return true
}

// podLabels are the pod labels that the controllers read.
var podLabels = []string{v1alpha1.LabelManagedBy, v1alpha1.LabelUserSettings, v1alpha1.LabelConversation,
	v1alpha1.LabelAttempt, v1alpha1.LabelSessionClass, v1alpha1.LabelWorkspace, v1alpha1.LabelModel,
	v1alpha1.LabelProtocol}

// Pod keeps the inputs of a session's status: the pod's owner, the images by container name, and
// parts of its labels and status. It copies these fields, because the spare capacity of decoded
// maps and slices costs about 1 KiB per pod.
func Pod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	labels := make(map[string]string, len(podLabels))
	for _, key := range podLabels {
		if value, found := pod.Labels[key]; found {
			labels[key] = value
		}
	}
	pod.ManagedFields, pod.Annotations, pod.Labels = nil, nil, labels
	pod.Spec = corev1.PodSpec{InitContainers: imagesOnly(pod.Spec.InitContainers),
		Containers: imagesOnly(pod.Spec.Containers)}
	status := corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, PodIP: pod.Status.PodIP,
		Message:               strings.Clone(lifecycle.EvictionMessage(pod)),
		InitContainerStatuses: statesOnly(pod.Status.InitContainerStatuses),
		ContainerStatuses:     statesOnly(pod.Status.ContainerStatuses)}
	status.Conditions = make([]corev1.PodCondition, 0, len(lifecycle.PodConditions))
	for _, condition := range pod.Status.Conditions {
		if slices.Contains(lifecycle.PodConditions, condition.Type) {
			status.Conditions = append(status.Conditions, condition)
		}
	}
	pod.Status = status
	return pod, nil
}

func imagesOnly(containers []corev1.Container) []corev1.Container {
	slim := make([]corev1.Container, 0, len(containers))
	for _, c := range containers {
		slim = append(slim, corev1.Container{Name: c.Name, Image: c.Image})
	}
	return slim
}

func statesOnly(containers []corev1.ContainerStatus) []corev1.ContainerStatus {
	slim := make([]corev1.ContainerStatus, 0, len(containers))
	for _, c := range containers {
		slim = append(slim, corev1.ContainerStatus{Name: c.Name, State: c.State,
			LastTerminationState: c.LastTerminationState, RestartCount: c.RestartCount})
	}
	return slim
}
