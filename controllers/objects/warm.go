package objects

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	sessionVolume = "session"
	// maxWarmClass is the maximum length of the class name in the name of a warm pod. The name of
	// the pod is also its hostname, which has at most 63 characters.
	maxWarmClass = 63 - len("warm--") - warmSuffix
	warmSuffix   = 10
)

// sessionOnly are the labels of a session's pod that a warm pod gets only when a session adopts it.
var sessionOnly = []string{v1alpha1.LabelManagedBy, v1alpha1.LabelComponent, v1alpha1.LabelConversation,
	v1alpha1.LabelUserSettings, v1alpha1.LabelAttempt, v1alpha1.LabelModel, v1alpha1.LabelProtocol}

// template returns a pod without the parts that differ between sessions. A warm pod fits a session
// if their templates are equal.
func template(pod *corev1.Pod) *corev1.Pod {
	common := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(pod.Labels), Annotations: pod.Annotations},
		Spec: *pod.Spec.DeepCopy()}
	for _, label := range sessionOnly {
		delete(common.Labels, label)
	}
	spec := &common.Spec
	spec.Hostname = ""
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == sessionVolume })
	for i := range spec.Volumes {
		if claim := spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			claim.ClaimName = ""
		}
	}
	main := &spec.Containers[0]
	main.VolumeMounts = slices.DeleteFunc(main.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == sessionVolume
	})
	main.Env = slices.DeleteFunc(main.Env, func(e corev1.EnvVar) bool { return isSessionVariable(e.Name) })
	main.Command = slices.DeleteFunc(main.Command, isSessionVariable)
	return common
}

// isSessionVariable reports whether a variable is different for each session. A warm pod gets the
// value with its session.
func isSessionVariable(name string) bool {
	return name == session.DocumentDigestVariable || name == attemptVariable || name == ranAttemptVariable ||
		strings.HasPrefix(name, session.SecretVariables)
}

// TemplateHash returns a hash of the template of a pod: image, resources, security, volumes,
// placement and proxies. The hash also depends on the key that signs the Secrets of warm pods, so
// that warm pods are replaced after a change of the key.
func TemplateHash(pod *corev1.Pod, key []byte) (string, error) {
	text, err := json.Marshal(template(pod))
	if err != nil {
		return "", fmt.Errorf("encode the template of a pod: %w", err)
	}
	derived, err := hkdf.Key(sha256.New, key, nil, "parley warm pod", sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive the key of the template: %w", err)
	}
	mac := hmac.New(sha256.New, derived)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil)[:8]), nil
}

// WarmPods builds the warm pods of a class in a namespace.
type WarmPods struct {
	Namespace string
	Owner     *v1alpha1.SessionClass
	// Hash is the TemplateHash of the pods.
	Hash     string
	template *corev1.Pod
	volume   *v1alpha1.Workspace
}

// NewWarmPods returns the builder of warm pods for sessions with this kind of workspace. The hash
// of the pods depends on the key, which signs their Secrets.
func NewWarmPods(namespace string, owner *v1alpha1.SessionClass, workspace v1alpha1.WorkspaceKind,
	runtimeImage string, key []byte) (*WarmPods, error) {
	class := Class{Name: owner.Name, Spec: owner.Spec}
	cold := Pod(&v1alpha1.Conversation{}, &Start{Settings: &v1alpha1.UserSettingsSpec{}, Class: class,
		Workspace: workspace, Secret: &corev1.Secret{}}, runtimeImage)
	hash, err := TemplateHash(cold, key)
	return &WarmPods{Namespace: namespace, Owner: owner, Hash: hash, template: template(cold),
		volume: class.Workspace(nil, workspace)}, err
}

// Pod returns a new warm pod. It has no session and no secret of a user.
func (w *WarmPods) Pod() *corev1.Pod {
	pod := w.template.DeepCopy()
	class := strings.TrimRight(w.Owner.Name[:min(len(w.Owner.Name), maxWarmClass)], "-")
	pod.Namespace, pod.Name = w.Namespace, "warm-"+class+"-"+strings.ToLower(rand.Text()[:warmSuffix])
	maps.Copy(pod.Labels, sessionSelector())
	pod.Labels[v1alpha1.LabelProtocol], pod.Labels[v1alpha1.LabelWarm] = v1alpha1.ProtocolHTTP, w.Hash
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(w.Owner,
		v1alpha1.SchemeGroupVersion.WithKind("SessionClass"))}
	pod.OwnerReferences[0].BlockOwnerDeletion = nil // true would require the right to set finalizers on the class
	pod.Spec.Hostname = pod.Name
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			claim.ClaimName = pod.Name
		}
	}
	main := &pod.Spec.Containers[0]
	main.Env = append(main.Env, secretVariables(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
		Data: map[string][]byte{session.BindKeyFile: nil}})...)
	return pod
}

// Secret returns the Secret of a warm pod. The pod's container cannot start without it. The Secret
// contains a new random key, with which the manager later encrypts a session's data for this pod.
// The parameter keys contains the manager's own keys; the first of them signs the Secret.
func (w *WarmPods) Secret(pod *corev1.Pod, keys ...[]byte) (*corev1.Secret, error) {
	key := make([]byte, session.BindKeySize)
	_, _ = rand.Read(key) // never fails
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: sessionSelector(),
			OwnerReferences: ownedByPod(pod), Annotations: map[string]string{}},
		Type:      v1alpha1.SecretTypeWarm,
		Immutable: ptr.To(true),
		Data:      map[string][]byte{session.BindKeyFile: []byte(base64.StdEncoding.EncodeToString(key))},
	}
	return secret, sign(secret, signedPod(pod), keys...)
}

// signedPod identifies a warm pod in the MAC of the pod's Secret. Other users may change the pod's
// labels for the class and the template. The result therefore contains these labels: after such a
// change, the MAC is invalid.
func signedPod(pod *corev1.Pod) types.UID {
	return types.UID(string(pod.UID) + "/" + pod.Labels[v1alpha1.LabelSessionClass] + "/" + pod.Labels[v1alpha1.LabelWarm])
}

// BindKey returns the key in the Secret of a warm pod. It returns nil if the manager did not create
// the Secret for this pod. It also returns nil if the pod's class label or template label has changed.
func BindKey(secret *corev1.Secret, pod *corev1.Pod, keys ...[]byte) []byte {
	if secret.Type != v1alpha1.SecretTypeWarm || !Authentic(secret, signedPod(pod), keys...) {
		return nil
	}
	key, err := base64.StdEncoding.DecodeString(string(secret.Data[session.BindKeyFile]))
	if err != nil {
		return nil
	}
	return key
}

// HasVolume reports whether the class provides volumes.
func (w *WarmPods) HasVolume() bool { return w.volume != nil }

// Volume returns the PersistentVolumeClaim of a warm pod; nil if the class provides no volume.
func (w *WarmPods) Volume(pod *corev1.Pod) (*corev1.PersistentVolumeClaim, error) {
	if !w.HasVolume() {
		return nil, nil
	}
	return volumeClaim(metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: sessionSelector(),
		OwnerReferences: ownedByPod(pod)}, w.volume)
}

// ownedByPod returns an owner reference, so that an object is deleted with its pod.
func ownedByPod(pod *corev1.Pod) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		Controller: ptr.To(true)}}
}

// Claim is a session's claim of a warm pod.
type Claim struct {
	Name string
	UID  types.UID
}

// ClaimIn returns the claim in the annotations of a session's Secret; nil without a claim.
func ClaimIn(annotations map[string]string) *Claim {
	name, uid, isClaim := strings.Cut(annotations[v1alpha1.AnnotationPod], "/")
	if !isClaim {
		return nil
	}
	return &Claim{name, types.UID(uid)}
}

// AddClaim records in a session's new Secret that the session claims a warm pod. It signs the
// Secret again, with the first of the manager's keys.
func AddClaim(secret *corev1.Secret, conversation types.UID, claim Claim, keys ...[]byte) error {
	secret.Annotations[v1alpha1.AnnotationPod] = claim.Name + "/" + string(claim.UID)
	return sign(secret, conversation, keys...)
}

// RemoveClaim removes the claim from a session's new Secret. It signs the Secret again, with the
// first of the manager's keys.
func RemoveClaim(secret *corev1.Secret, conversation types.UID, keys ...[]byte) error {
	delete(secret.Annotations, v1alpha1.AnnotationPod)
	return sign(secret, conversation, keys...)
}

// AdoptedLabels returns the labels that a warm pod gets when the session adopts it.
func AdoptedLabels(c *v1alpha1.Conversation, secret *corev1.Secret) map[string]string {
	labels := attemptLabels(c)
	addSecretLabels(labels, secret)
	return labels
}

// AdoptedVolumeLabels returns the labels for the volume of a warm pod that the session adopts.
func AdoptedVolumeLabels(c *v1alpha1.Conversation) map[string]string { return sessionLabels(c) }

// SessionOwner returns the owner reference to a Conversation.
func SessionOwner(c *v1alpha1.Conversation) []metav1.OwnerReference { return sessionOwner(c) }
