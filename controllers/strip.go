package controllers

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// stripMetadata drops what the controllers never read from an object on its way into the cache. A
// Secret or ConfigMap keeps its identity, owner and, where Parley keeps it, the labels and
// annotations that say so.
func stripMetadata(object any) (any, error) {
	o, ok := object.(client.Object)
	if !ok {
		return object, nil // a tombstone, or a list's bookmark
	}
	o.SetManagedFields(nil)
	if _, metadataOnly := object.(*metav1.PartialObjectMetadata); metadataOnly &&
		o.GetLabels()[v1alpha1.LabelUserSettings] == "" &&
		o.GetLabels()[v1alpha1.LabelConversation] == "" {
		o.SetLabels(nil)
		o.SetAnnotations(nil)
		return o, nil
	}
	if annotations := o.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		delete(annotations, corev1.LastAppliedConfigAnnotation)
	}
	shareMetadata(o)
	return o, nil
}

// stripSecret keeps of a session's Secret whose it is, and no more: there are as many as there are
// sessions.
func stripSecret(object any) (any, error) {
	if secret, ok := object.(*metav1.PartialObjectMetadata); ok {
		if owner := metav1.GetControllerOfNoCopy(secret); owner != nil && owner.Kind == "Conversation" {
			secret.Labels, secret.Annotations = nil, nil
		}
	}
	return stripMetadata(object)
}

const (
	// maxCachedText is how much of a Conversation's texts is kept in the cache; nothing but a start
	// needs more of them.
	maxCachedText = 1024
	// annotationCut marks a cached Conversation of which more texts are to be had from the API
	// server. It stands in the cache only.
	annotationCut = "parley.dev/cut"
)

// stripConversation cuts long texts off. Of each that there is something stays, which says that it
// is there.
func stripConversation(object any) (any, error) {
	c, ok := object.(*v1alpha1.Conversation)
	if !ok {
		return stripMetadata(object)
	}
	if _, err := stripMetadata(c); err != nil {
		return nil, err
	}
	shareConversation(&c.Status)
	spec, cutOff := &c.Spec, false
	for _, text := range []**string{&spec.InitialUserMsg, &spec.ConversationInstructions} {
		if *text != nil && len(**text) > maxCachedText {
			*text, cutOff = ptr.To(strings.Clone(cut(**text, maxCachedText))), true
		}
	}
	if size := textSize(spec.ImageURLs); size > maxCachedText {
		spec.ImageURLs, cutOff = []string{"cut"}, true
	}
	cutOff = cutImages(spec.Images) || cutOff
	if spec.MCPConfig != nil {
		for i := range spec.MCPConfig.StdioServers {
			if server := &spec.MCPConfig.StdioServers[i]; textSize(server.Args) > maxCachedText {
				server.Args, cutOff = []string{"cut"}, true
			}
		}
	}
	if cutOff {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[annotationCut] = "true"
	}
	return c, nil
}

// cutImages cuts the URLs off. References stay: the session starts when what they name is there,
// and they are short.
func cutImages(images []v1alpha1.ConversationImage) (cutOff bool) {
	var urls []string
	for _, image := range images {
		urls = append(urls, ptr.Deref(image.URL, ""))
	}
	if textSize(urls) <= maxCachedText {
		return false
	}
	for i := range images {
		if images[i].URL != nil {
			images[i].URL = ptr.To("cut")
		}
	}
	return true
}

func textSize(texts []string) (size int) {
	for _, text := range texts {
		size += len(text)
	}
	return size
}

// stripPod keeps of a session's pod what the status is derived from: who it belongs to, the images
// by container name, and its status.
func stripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	pod.ManagedFields = nil
	pod.Annotations = nil
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, InitContainers: withImages(pod.Spec.InitContainers),
		Containers: withImages(pod.Spec.Containers)}
	shareMetadata(pod)
	shareStatus(&pod.Status)
	return pod, nil
}

// withImages keeps names and images. Sessions of the same images have the same memory: what is
// empty of a container takes more than all else that is kept of a pod.
func withImages(containers []corev1.Container) []corev1.Container {
	kept := make([]corev1.Container, 0, len(containers))
	var key strings.Builder
	for _, c := range containers {
		kept = append(kept, corev1.Container{Name: sharedText(c.Name), Image: sharedText(c.Image)})
		key.WriteString(c.Name + " " + c.Image + " ")
	}
	return shared.containers.of(key.String(), func(string) []corev1.Container { return kept })
}

// owned says whether the object is controlled by the owner. A UID is checked, not a name: an owner
// that was deleted and made again is another one.
func owned(object, owner metav1.Object) bool {
	return metav1.IsControlledBy(object, owner)
}

// notOurs is why an object that has the name of one that we need, and is not ours, is in the way.
func notOurs(kind string, object client.Object, c *v1alpha1.Conversation) error {
	controller := metav1.GetControllerOf(object)
	leaving := object.GetDeletionTimestamp() != nil || controller != nil && controller.Kind == "Conversation" &&
		controller.Name == c.Name
	if leaving {
		return &leavingError{kind: kind, name: object.GetName()}
	}
	return &foreignError{kind: kind, name: object.GetName()}
}

// leavingError says that an object of an earlier Conversation of this name has yet to go.
type leavingError struct{ kind, name string }

func (e *leavingError) Error() string {
	return fmt.Sprintf("%s %s of an earlier Conversation of this name is going away", e.kind, e.name)
}

// foreignError says that an object which is not ours has the name of one that we need.
type foreignError struct{ kind, name string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s %s exists and does not belong to this object: remove it or choose another name", e.kind, e.name)
}
