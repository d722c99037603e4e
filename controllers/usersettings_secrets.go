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
)

const (
	// pruneAfter is how long a kept Secret may be unreferenced. The facade writes it first and
	// refers to it second.
	pruneAfter = 5 * time.Minute
	// minSessionKey is the shortest session key that a user may bring: 128 bits in base64. Its hash
	// is in the status, where a shorter one could be searched for.
	minSessionKey = 22
)

// sessionKey is what is published of a user's session key.
type sessionKey struct {
	ref     v1alpha1.SecretKeyRef
	hash    string
	problem *problem
}

// sessionKey finds the key that the spec names, or else keeps one.
func (r *userSettingsReconciler) sessionKey(ctx context.Context, settings *v1alpha1.UserSettings) (sessionKey, error) {
	ref := v1alpha1.SecretReference{Path: field.NewPath("spec", "sessionKeyRef")}
	if settings.Spec.SessionKeyRef != nil {
		ref.Ref = *settings.Spec.SessionKeyRef
	} else {
		ref.Path = field.NewPath("status", "sessionKeyRef")
		ref.Ref = v1alpha1.SecretKeyRef{Name: v1alpha1.SessionKeySecretName(settings.Name), Key: v1alpha1.SessionKeySecretKey}
		err := r.keepSessionKey(ctx, settings, ref.Ref.Name)
		if foreign := (*foreignError)(nil); errors.As(err, &foreign) {
			return sessionKey{ref: ref.Ref, problem: &problem{v1alpha1.ReasonForeignObject, foreign.Error()}}, nil
		}
		if err != nil {
			return sessionKey{}, err
		}
	}
	value, missing, err := newResolver(r.client, settings.Namespace).value(ctx, ref)
	value = bytes.TrimSpace(value) // a header cannot carry the newline that a file ends in
	switch {
	case err != nil || missing != nil:
		return sessionKey{ref: ref.Ref, problem: missing}, err
	case len(value) < minSessionKey:
		return sessionKey{ref: ref.Ref, problem: &problem{v1alpha1.ReasonKeyTooShort,
				fmt.Sprintf("%s: the key in Secret %s must have at least %d characters", ref.Path, ref.Ref.Name, minSessionKey)}},
			nil
	}
	sum := sha256.Sum256(value)
	return sessionKey{ref: ref.Ref, hash: hex.EncodeToString(sum[:])}, nil
}

// keepSessionKey makes the Secret with a user's session key if it is not there.
func (r *userSettingsReconciler) keepSessionKey(ctx context.Context, settings *v1alpha1.UserSettings,
	name string) error {
	secret := &corev1.Secret{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: settings.Namespace, Name: name}, secret)
	switch {
	// Who keeps users' keys can write an owner into one, but not this type.
	case err == nil && (!owned(secret, settings) || secret.Type != v1alpha1.SecretTypeSessionKey):
		return &foreignError{kind: "Secret", name: name}
	case err == nil && len(secret.Data[v1alpha1.SessionKeySecretKey]) > 0:
		return nil
	case err == nil:
		// Somebody emptied it: a new Secret is a new key.
		if err := r.client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID,
			ResourceVersion: &secret.ResourceVersion}); client.IgnoreNotFound(err) != nil {
			return err
		}
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read Secret %s: %w", name, err)
	}
	if err := r.client.Create(ctx, buildSessionKeySecret(settings, rand.Text()+rand.Text())); err != nil {
		return fmt.Errorf("create Secret %s: %w", name, err)
	}
	return nil
}

// buildSessionKeySecret is the Secret of a user's session key. rand.Text has 130 bits; two of them
// have the 256 asked for.
func buildSessionKeySecret(settings *v1alpha1.UserSettings, key string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: settings.Namespace,
			Name:      v1alpha1.SessionKeySecretName(settings.Name),
			Labels: map[string]string{
				v1alpha1.LabelManagedBy:    v1alpha1.ManagedBy,
				v1alpha1.LabelUserSettings: settings.Name,
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(settings,
				v1alpha1.SchemeGroupVersion.WithKind("UserSettings"))},
		},
		Type: v1alpha1.SecretTypeSessionKey,
		Data: map[string][]byte{v1alpha1.SessionKeySecretKey: []byte(key)},
	}
}

// keepSecrets adopts the Secrets that the facade wrote for these settings and prunes those that
// nothing refers to any more. It says when it must look again.
func (r *userSettingsReconciler) keepSecrets(ctx context.Context, settings *v1alpha1.UserSettings) (time.Duration,
	error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := r.cache.List(ctx, list, client.InNamespace(settings.Namespace),
		client.MatchingFields{indexKeptFor: settings.Name}); err != nil {
		return 0, fmt.Errorf("list the kept Secrets: %w", err)
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

// adoptOrPrune changes one kept Secret. A label alone proves nothing, so its type is read first:
// anybody may label a Secret of their own, but only a user's key may be adopted or removed. A
// Secret that changed since it was seen is left to its next event.
func (r *userSettingsReconciler) adoptOrPrune(ctx context.Context, settings *v1alpha1.UserSettings,
	seen *metav1.PartialObjectMetadata, wanted bool) error {
	secret := &corev1.Secret{}
	if err := r.client.Get(ctx, client.ObjectKeyFromObject(seen), secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	controller := metav1.GetControllerOf(secret)
	if secret.Type != v1alpha1.SecretTypeUserKey || controller != nil && controller.UID != settings.UID ||
		secret.ResourceVersion != seen.ResourceVersion {
		return nil
	}
	var err error
	if wanted {
		adopted := secret.DeepCopy()
		adopted.OwnerReferences = append(adopted.OwnerReferences, *metav1.NewControllerRef(settings,
			v1alpha1.SchemeGroupVersion.WithKind("UserSettings")))
		err = r.client.Patch(ctx, adopted, client.MergeFromWithOptions(secret, client.MergeFromWithOptimisticLock{}))
	} else {
		err = r.client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion})
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep Secret %s: %w", secret.Name, err)
	}
	return nil
}
