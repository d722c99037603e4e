package controllers

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

const (
	// pruneAfter is how long a managed Secret may stay unreferenced. The facade writes a Secret
	// first, and the reference to it later.
	pruneAfter = 5 * time.Minute
	// minSessionKey is the minimum length of a user's own session key. 128 bits in base64 have this
	// length. The status contains a hash of the key, and a shorter key could be guessed from its
	// hash.
	minSessionKey = 22
)

// sessionKey returns the key that the spec names, or creates a key.
func (r *userSettingsReconciler) sessionKey(ctx context.Context, settings *v1alpha1.UserSettings,
	secrets *secretReader) (lifecycle.SessionKey, error) {
	ref := v1alpha1.SecretReference{Path: field.NewPath("spec", "sessionKeyRef")}
	if settings.Spec.SessionKeyRef != nil {
		ref.Ref = *settings.Spec.SessionKeyRef
	} else {
		ref.Path = field.NewPath("status", "sessionKeyRef")
		ref.Ref = v1alpha1.SecretKeyRef{Name: v1alpha1.SessionKeySecretName(settings.Name), Key: v1alpha1.SessionKeySecretKey}
		err := r.ensureSessionKey(ctx, settings, secrets, ref.Ref.Name)
		if foreign := (*foreignError)(nil); errors.As(err, &foreign) {
			return lifecycle.SessionKey{Ref: ref.Ref, Blocker: blockerOf(err)}, nil
		}
		if err != nil {
			return lifecycle.SessionKey{}, err
		}
	}
	value, missing, err := secrets.value(ctx, ref)
	value = bytes.TrimSpace(value) // a key from a file may end with a newline, which an HTTP header cannot hold
	switch {
	case err != nil || missing != nil:
		return lifecycle.SessionKey{Ref: ref.Ref, Blocker: missing}, err
	case len(value) < minSessionKey:
		return lifecycle.SessionKey{Ref: ref.Ref, Blocker: &lifecycle.Blocker{Reason: v1alpha1.ReasonKeyTooShort,
			Message: fmt.Sprintf("%s: the key in Secret %s must have at least %d characters", ref.Path, ref.Ref.Name,
				minSessionKey)}}, nil
	}
	sum := sha256.Sum256(value)
	return lifecycle.SessionKey{Ref: ref.Ref, Hash: hex.EncodeToString(sum[:])}, nil
}

func (r *userSettingsReconciler) ensureSessionKey(ctx context.Context, settings *v1alpha1.UserSettings,
	secrets *secretReader, name string) error {
	secret, err := secrets.secret(ctx, name)
	if err != nil {
		return err
	}
	exists := secret.UID != ""
	switch {
	// The owner reference alone proves nothing, because the facade may write users' Secrets and
	// could forge it. But a ValidatingAdmissionPolicy forbids the facade to write Secrets of the
	// type SecretTypeSessionKey.
	case exists && (!owned(secret, settings) || secret.Type != v1alpha1.SecretTypeSessionKey):
		return &foreignError{kind: "Secret", name: name}
	case exists && len(secret.Data[v1alpha1.SessionKeySecretKey]) > 0:
		return nil
	case exists:
		// The Secret was emptied; recreating it creates a new key.
		if err := r.client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID,
			ResourceVersion: &secret.ResourceVersion}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	secrets.forget(name)
	// rand.Text returns 130 random bits, and the key should have 256.
	if err := r.client.Create(ctx, objects.SessionKeySecret(settings, rand.Text()+rand.Text())); err != nil {
		return fmt.Errorf("create Secret %s: %w", name, err)
	}
	return nil
}

// adoptAndPrune adopts the Secrets that the facade wrote for these settings, and prunes
// unreferenced Secrets. It returns the delay until the next Secret may be pruned.
func (r *userSettingsReconciler) adoptAndPrune(ctx context.Context, settings *v1alpha1.UserSettings) (time.Duration,
	error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := r.cache.List(ctx, list, client.InNamespace(settings.Namespace),
		client.MatchingFields{indexManagedFor: settings.Name}); err != nil {
		return 0, fmt.Errorf("list the managed Secrets: %w", err)
	}
	referenced := secretNames(settings.SecretReferences())
	var again time.Duration
	for i := range list.Items {
		secret := &list.Items[i]
		if secret.DeletionTimestamp != nil {
			continue
		}
		wanted := slices.Contains(referenced, secret.Name)
		if wanted && owned(secret, settings) {
			continue
		}
		if left := pruneAfter - sinceWritten(secret, r.clock.Now()); !wanted && left > 0 {
			if again == 0 || left < again {
				again = left
			}
			continue
		}
		if err := r.adoptOrPrune(ctx, settings, secret, wanted); err != nil {
			return 0, err
		}
	}
	return again, nil
}

// adoptOrPrune adopts or prunes one managed Secret. Any user may set the label of managed Secrets,
// so adoptOrPrune ignores a Secret that does not have the type SecretTypeUserKey. It also skips a
// Secret whose cached version is stale. The next event of the Secret leads to another try.
func (r *userSettingsReconciler) adoptOrPrune(ctx context.Context, settings *v1alpha1.UserSettings,
	seen *metav1.PartialObjectMetadata, wanted bool) error {
	if version, found := r.foreign.Get(seen.UID); found && version == seen.ResourceVersion {
		return nil
	}
	secret := &corev1.Secret{}
	if err := r.client.Get(ctx, client.ObjectKeyFromObject(seen), secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	controller := metav1.GetControllerOf(secret)
	if secret.Type != v1alpha1.SecretTypeUserKey || controller != nil && controller.UID != settings.UID {
		r.foreign.Add(secret.UID, secret.ResourceVersion)
		return nil
	}
	if secret.ResourceVersion != seen.ResourceVersion {
		return nil
	}
	var err error
	if wanted {
		adopted := secret.DeepCopy()
		adopted.OwnerReferences = append(adopted.OwnerReferences, objects.SettingsOwner(settings)...)
		err = r.client.Patch(ctx, adopted, client.MergeFromWithOptions(secret, client.MergeFromWithOptimisticLock{}))
	} else {
		err = r.client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion})
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("adopt or prune Secret %s: %w", secret.Name, err)
	}
	return nil
}
