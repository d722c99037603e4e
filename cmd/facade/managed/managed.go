// Package managed writes the objects that hold parts of HTTP requests: users' keys in Secrets, and
// replays and images in ConfigMaps.
package managed

import (
	"context"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Key is a key to store, with the name of its Secret.
type Key struct{ Secret, Value string }

// Ref returns a reference to the key.
func (k Key) Ref() *v1alpha1.SecretKeyRef {
	return &v1alpha1.SecretKeyRef{Name: k.Secret, Key: v1alpha1.ManagedSecretKey}
}

// maxKeys is the maximum number of keys in one request. Each key needs a Secret.
const maxKeys = 256

// TooMany refuses a request with more than maxKeys keys.
func TooMany(keys []Key, loc ...any) error {
	if len(keys) <= maxKeys {
		return nil
	}
	return answer.Invalid(rest.Detail{Type: "too_long", Loc: loc, Msg: "A request may have at most " +
		strconv.Itoa(maxKeys) + " keys"})
}

// Write writes the keys of an owner without reading the existing keys.
func Write(ctx context.Context, c cluster.API, keys []Key, owner metav1.Object, now time.Time) error {
	for _, key := range keys {
		err := c.WriteSecret(ctx, &corev1.Secret{
			ObjectMeta: metaOf(key.Secret, owner, now),
			Type:       v1alpha1.SecretTypeUserKey,
			Data:       map[string][]byte{v1alpha1.ManagedSecretKey: []byte(key.Value)},
		})
		switch {
		case apierrors.IsInvalid(err) || cluster.IsForbidden(err):
			return answer.Refuse(http.StatusConflict, "The Secret "+key.Secret+" cannot be written: a policy forbids it, or "+
				"the name belongs to a Secret that is not a user's key")
		case err != nil:
			return cluster.Refusal(ctx, err, nil)
		}
	}
	return nil
}

// ConfigMap returns an empty ConfigMap of a conversation for a replay or an image.
func ConfigMap(name string, owner *v1alpha1.Conversation, now time.Time) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metaOf(name, owner, now), Immutable: ptr.To(true)}
}

// metaOf sets the owner at creation, so that the operator need not adopt the object. It does not
// set blockOwnerDeletion, which needs permission on the owner's finalizers.
func metaOf(name string, owner metav1.Object, now time.Time) metav1.ObjectMeta {
	kind, label := "UserSettings", v1alpha1.LabelUserSettings
	if _, isConversation := owner.(*v1alpha1.Conversation); isConversation {
		kind, label = "Conversation", v1alpha1.LabelConversation
	}
	return metav1.ObjectMeta{
		Namespace: owner.GetNamespace(),
		Name:      name,
		Labels: map[string]string{
			v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
			label:                   owner.GetName(),
		},
		Annotations: map[string]string{v1alpha1.AnnotationWrittenAt: now.UTC().Format(time.RFC3339)},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.SchemeGroupVersion.String(),
			Kind:       kind,
			Name:       owner.GetName(),
			UID:        owner.GetUID(),
			Controller: ptr.To(true),
		}},
	}
}
