package objects

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const annotationMAC = "parley.dev/mac"

// secretMAC returns the MAC of a Secret. For a session's Secret, the MAC covers the Conversation's
// UID, the attempt, the hash of the inputs, the revision of the model, the claim of a warm pod, and
// the data. It does not cover other labels and annotations, which may change. For a warm pod's
// Secret, the MAC covers the data, and the UID, the class and the template of the pod. The length
// of each part is written before the part, so that different lists of parts never result in the
// same bytes.
func secretMAC(key []byte, owner types.UID, secret *corev1.Secret) ([]byte, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "parley session secret "+string(owner), sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive the key of the session's Secret: %w", err)
	}
	mac := hmac.New(sha256.New, derived)
	write := func(part []byte) {
		fmt.Fprintf(mac, "%d:", len(part))
		mac.Write(part)
	}
	write([]byte(secret.Labels[v1alpha1.LabelAttempt]))
	write([]byte(secret.Annotations[AnnotationInputs]))
	write([]byte(secret.Labels[v1alpha1.LabelModel]))
	// Write the claim only if there is one. Secrets without a claim thus keep the MAC that earlier
	// versions computed.
	if claim := secret.Annotations[v1alpha1.AnnotationPod]; claim != "" {
		write([]byte(v1alpha1.AnnotationPod))
		write([]byte(claim))
	}
	for _, name := range slices.Sorted(maps.Keys(secret.Data)) {
		write([]byte(name))
		write(secret.Data[name])
	}
	return mac.Sum(nil), nil
}

// sign computes the MAC of a Secret with the first key, and adds the MAC to the Secret. If there is
// no first key, the Secret stays unsigned. The owner of the Secret is a Conversation or a warm pod.
func sign(secret *corev1.Secret, owner types.UID, keys ...[]byte) error {
	if len(keys) == 0 || len(keys[0]) == 0 {
		return nil
	}
	mac, err := secretMAC(keys[0], owner, secret)
	if err == nil {
		secret.Annotations[annotationMAC] = base64.StdEncoding.EncodeToString(mac)
	}
	return err
}

// Signed reports whether a session's Secret has a MAC, valid or not.
func Signed(secret *corev1.Secret) bool { return secret.Annotations[annotationMAC] != "" }

// Authentic reports whether a manager with one of these keys created the Secret for its owner, a
// Conversation or a warm pod.
func Authentic(secret *corev1.Secret, owner types.UID, keys ...[]byte) bool {
	given, err := base64.StdEncoding.DecodeString(secret.Annotations[annotationMAC])
	return err == nil && slices.ContainsFunc(keys, func(key []byte) bool {
		want, err := secretMAC(key, owner, secret)
		return err == nil && len(key) > 0 && hmac.Equal(given, want)
	})
}
