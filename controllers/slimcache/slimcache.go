// Package slimcache bounds the memory of cached objects. Its transform drops the fields that the
// controllers never read, and truncates large fields. Users therefore cannot fill the manager's
// memory.
package slimcache

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// MaxText is the maximum number of bytes of one text in a cached spec. A spec with a longer text is
// truncated in the cache. The manager reads the complete spec when it starts the session.
const MaxText = 1024

const (
	// maxSpec is the maximum number of bytes of all texts in a spec. A larger spec is truncated.
	maxSpec = 2048
	// maxName is the maximum number of bytes of each text in a truncated spec. Names of Kubernetes
	// objects are not longer.
	maxName = 253
	// maxConversationSecrets and maxSettingsSecrets are the maximum numbers of Secrets that a
	// truncated spec names.
	maxConversationSecrets, maxSettingsSecrets = 16, 128
	// maxMessage is the maximum number of bytes of each text in a status. The manager does not
	// write longer texts.
	maxMessage = 2048
	// maxConditions is the number of conditions that the schema allows.
	maxConditions = 16
	// maxShared is the maximum number of bytes of the spec of a Service or NetworkPolicy. The
	// cache drops a larger spec. The cached object then never equals the object that the manager
	// wants, so the manager reads the stored object from the API server before it writes.
	maxShared     = 32 << 10
	maxContainers = 64
	// maxTermination is the kubelet's limit for the termination message of a container.
	maxTermination = 4096
)

// AnySecret replaces the names of all Secrets in a cached spec that refers to too many Secrets. A
// change of any Secret in the namespace then causes a reconcile of the object.
const AnySecret = "*"

// annotationTruncated marks an object with a truncated spec. It exists only in the cache.
const annotationTruncated = "parley.dev/truncated"

// Truncated reports whether the cache truncated the spec of an object.
func Truncated(o metav1.Object) bool { return o.GetAnnotations()[annotationTruncated] != "" }

// Transform bounds the size of an object, whatever its fields hold. It does not truncate the specs
// of SessionClasses, because only administrators write them.
func Transform(object any) (any, error) {
	o, ok := object.(metav1.Object)
	if !ok {
		return object, nil // a tombstone, or a list's bookmark
	}
	namespace, isMetadata := object.(*metav1.PartialObjectMetadata)
	if isMetadata && namespace.Kind == "Namespace" { // administrators write its labels
		*namespace = metav1.PartialObjectMetadata{TypeMeta: namespace.TypeMeta, ObjectMeta: metav1.ObjectMeta{
			Name: namespace.Name, UID: namespace.UID, ResourceVersion: namespace.ResourceVersion,
			Labels: namespace.Labels, DeletionTimestamp: namespace.DeletionTimestamp}}
		return object, nil
	}
	trimMetadata(o)
	switch o := object.(type) {
	case *v1alpha1.Conversation:
		trimConversation(o)
	case *v1alpha1.UserSettings:
		trimSettings(o)
	case *corev1.Pod:
		trimPod(o)
	case *metav1.PartialObjectMetadata:
		trimSessionSecret(o)
	case *corev1.PersistentVolumeClaim:
		o.Spec, o.Status = corev1.PersistentVolumeClaimSpec{}, corev1.PersistentVolumeClaimStatus{}
	case *corev1.Service:
		if o.Status = (corev1.ServiceStatus{}); o.Spec.Size() > maxShared {
			o.Spec = corev1.ServiceSpec{}
		}
	case *networkingv1.NetworkPolicy:
		if o.Spec.Size() > maxShared {
			o.Spec = networkingv1.NetworkPolicySpec{}
		}
	case *storagev1.StorageClass:
		*o = storagev1.StorageClass{TypeMeta: o.TypeMeta, ObjectMeta: o.ObjectMeta}
	}
	return object, nil
}

// trimSessionSecret removes most metadata of a session's Secret. Each session has a Secret, so this
// saves much memory. The identity, the owner, the number of the attempt, the model revision and the
// name of the claimed warm pod stay.
func trimSessionSecret(secret *metav1.PartialObjectMetadata) {
	if owner := metav1.GetControllerOfNoCopy(secret); owner == nil || owner.Kind != "Conversation" {
		return
	}
	secret.Labels = pick([]string{v1alpha1.LabelAttempt}, secret.Labels, maxName)
	secret.Annotations = pick([]string{v1alpha1.AnnotationModel, v1alpha1.AnnotationPod}, secret.Annotations, maxName)
}

// trimConversation truncates a large spec. It keeps the references to ConfigMaps, because the
// session may wait for them.
func trimConversation(c *v1alpha1.Conversation) {
	if isLarge(&c.Spec) {
		if c.Spec.MCPConfig != nil {
			c.Spec.MCPConfig = secretsOnly(c.SecretReferences(), maxConversationSecrets)
		}
		truncate(&c.Spec, maxName)
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationTruncated, "true")
	}
	c.Status.Conditions = trimConditions(c.Status.Conditions)
	truncate(&c.Status, maxMessage)
	for i := range c.Status.Conditions {
		if condition := &c.Status.Conditions[i]; condition.Message == c.Status.Message {
			condition.Message = c.Status.Message // both fields then share one string in memory
		}
	}
}

// trimSettings truncates a large spec. It drops secretsStore and replaces mcpConfig. The new
// mcpConfig contains only references to the Secrets that the complete spec uses.
func trimSettings(settings *v1alpha1.UserSettings) {
	if spec := &settings.Spec; isLarge(spec) {
		spec.MCPConfig = secretsOnly(settings.SecretReferences(), maxSettingsSecrets)
		spec.SecretsStore = nil
		truncate(spec, maxName)
		metav1.SetMetaDataAnnotation(&settings.ObjectMeta, annotationTruncated, "true")
	}
	settings.Status.Conditions = trimConditions(settings.Status.Conditions)
	truncate(&settings.Status, maxMessage)
}

// secretsOnly returns a small replacement for an MCPConfig. It has one tool server for each Secret
// in refs, so that the cached spec still names these Secrets. If the number of Secrets exceeds the
// limit, the replacement has only one tool server, which refers to AnySecret.
func secretsOnly(refs []v1alpha1.SecretReference, limit int) *v1alpha1.MCPConfig {
	names := sets.New[string]()
	for _, ref := range refs {
		names.Insert(ref.Ref.Name)
	}
	if names.Len() > limit {
		names = sets.New(AnySecret)
	}
	config := &v1alpha1.MCPConfig{}
	for _, name := range sets.List(names) {
		config.SHTTPServers = append(config.SHTTPServers,
			v1alpha1.MCPRemoteServer{APIKeyRef: &v1alpha1.SecretKeyRef{Name: name}})
	}
	return config
}

// trimConditions truncates the conditions. It copies them, because a decoded list has spare
// capacity that wastes memory.
func trimConditions(conditions []metav1.Condition) []metav1.Condition {
	conditions = slices.Clone(conditions[:min(len(conditions), maxConditions)])
	for i := range conditions {
		message := conditions[i].Message
		truncate(&conditions[i], maxName)
		conditions[i].Message = shorten(message, maxMessage)
	}
	return conditions
}

// trimPod keeps the inputs of a session's status: the images of waiting containers, the name of the
// workspace's PersistentVolumeClaim, and parts of the pod's status. It copies these fields, because
// the spare capacity of decoded maps and slices costs about 1 KiB per pod.
func trimPod(pod *corev1.Pod) {
	pod.Spec = corev1.PodSpec{
		InitContainers: imagesOfWaiting(pod.Spec.InitContainers, pod.Status.InitContainerStatuses),
		Containers:     imagesOfWaiting(pod.Spec.Containers, pod.Status.ContainerStatuses),
		Volumes:        workspaceClaim(pod.Spec.Volumes)}
	truncate(&pod.Spec, MaxText)
	status := corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, PodIP: pod.Status.PodIP,
		Message:    lifecycle.EvictionMessage(pod),
		Conditions: make([]corev1.PodCondition, 0, len(lifecycle.PodConditions))}
	for _, wanted := range lifecycle.PodConditions {
		isWanted := func(c corev1.PodCondition) bool { return c.Type == wanted }
		if i := slices.IndexFunc(pod.Status.Conditions, isWanted); i >= 0 {
			status.Conditions = append(status.Conditions, pod.Status.Conditions[i])
		}
	}
	truncate(&status, maxMessage)
	status.InitContainerStatuses = statesOnly(pod.Status.InitContainerStatuses)
	status.ContainerStatuses = statesOnly(pod.Status.ContainerStatuses)
	pod.Status = status
}

// workspaceClaim returns the volume of the session's files, if it is a PersistentVolumeClaim.
func workspaceClaim(volumes []corev1.Volume) []corev1.Volume {
	for _, v := range volumes {
		if claim := v.PersistentVolumeClaim; v.Name == lifecycle.WorkspaceVolume && claim != nil {
			return []corev1.Volume{{Name: v.Name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.ClaimName}}}}
		}
	}
	return nil
}

// ofSession reports whether a container runs Parley's programs and is not an injected sidecar.
func ofSession(container string) bool {
	return container == lifecycle.SessionContainer || container == lifecycle.InstallContainer
}

// imagesOfWaiting returns the names and images of the session's waiting containers. It drops all
// other containers, because the Conversation's status never shows their images, and each container
// takes half a KiB of memory.
func imagesOfWaiting(containers []corev1.Container, statuses []corev1.ContainerStatus) (slim []corev1.Container) {
	for _, c := range containers {
		waits := func(s corev1.ContainerStatus) bool { return s.Name == c.Name && s.State.Waiting != nil }
		if ofSession(c.Name) && slices.ContainsFunc(statuses, waits) {
			slim = append(slim, corev1.Container{Name: c.Name, Image: c.Image})
		}
	}
	return slim
}

// statesOnly returns the states of containers. It truncates the texts of sidecars more than the
// texts of the session's own containers.
func statesOnly(containers []corev1.ContainerStatus) []corev1.ContainerStatus {
	slim := make([]corev1.ContainerStatus, 0, min(len(containers), maxContainers))
	for _, c := range containers {
		repeated := func(other corev1.ContainerStatus) bool { return other.Name == c.Name }
		if len(slim) == maxContainers || slices.ContainsFunc(slim, repeated) {
			continue
		}
		status := corev1.ContainerStatus{Name: c.Name, State: c.State, LastTerminationState: c.LastTerminationState,
			RestartCount: c.RestartCount}
		limit := maxTermination
		if !ofSession(c.Name) {
			limit = maxName
		}
		truncate(&status, limit)
		slim = append(slim, status)
	}
	return slim
}

func isLarge(spec any) bool {
	total, longest := measure(reflect.ValueOf(spec))
	return total > maxSpec || longest > MaxText
}

func truncate(object any, n int) { truncateTexts(reflect.ValueOf(object), n) }
