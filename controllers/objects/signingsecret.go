package objects

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
)

// CompleteSigningSecret adds the keys that the signing Secret lacks. It rotates a key if an
// annotation requests this. It also renews the certificate of the authority and, if archiveHost is
// set, the certificate of the archive. It reports whether the Secret changed. An immutable Secret
// with a signing key stays as it is.
func CompleteSigningSecret(secret *corev1.Secret, archiveHost string, now time.Time) (changed bool, err error) {
	hasKey := len(secret.Data[session.SigningPrivateKey]) > 0
	if hasKey && ptr.Deref(secret.Immutable, false) {
		return false, nil
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if !hasKey {
		changed = true
		if err := session.AddSigningKey(secret.Data); err != nil {
			return false, err
		}
	}
	if len(secret.Data[session.SnapshotSecret]) == 0 {
		changed = true
		secret.Data[session.SnapshotSecret] = session.NewSnapshotSecret()
	}
	for _, rotation := range []struct {
		request, done string
		rotate        func(data map[string][]byte) error
	}{
		{session.AnnotationRotateSigningKey, session.AnnotationRotatedSigningKey, session.AddSigningKey},
		{session.AnnotationRotateSnapshotSecret, session.AnnotationRotatedSnapshotSecret, rotateSnapshotSecret},
		{session.AnnotationRotateAuthority, session.AnnotationRotatedAuthority, func(data map[string][]byte) error {
			return rotateAuthority(data, now)
		}},
	} {
		requested := secret.Annotations[rotation.request]
		if requested == "" || requested == secret.Annotations[rotation.done] {
			continue
		}
		changed = true
		if err := rotation.rotate(secret.Data); err != nil {
			return false, err
		}
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, rotation.done, requested)
	}
	renewed, err := completeCertificates(secret.Data, archiveHost, now)
	return changed || renewed, err
}

// rotateSnapshotSecret replaces the secret from which snapshot keys are derived. It keeps the
// replaced secret for existing snapshots.
func rotateSnapshotSecret(data map[string][]byte) error {
	data[session.PreviousSnapshotSecret] = data[session.SnapshotSecret]
	data[session.SnapshotSecret] = session.NewSnapshotSecret()
	return nil
}
