package controllers

import (
	"context"
	"crypto/ed25519"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// +kubebuilder:rbac:groups="",namespace=parley-system,resources=secrets,resourceNames=parley-session-signing,verbs=update

// signingKeyReconciler maintains the key that signs the facade's tokens. It creates the key once.
type signingKeyReconciler struct {
	client client.Client // reads Secrets past the cache
	name   client.ObjectKey
}

// setup requests the key when the manager starts, and after a deletion of the key's Secret.
func (s *signingKeyReconciler) setup(mgr ctrl.Manager) error {
	atStart := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(reconcile.Request{NamespacedName: s.name})
		return nil
	})
	itself := predicate.NewPredicateFuncs(func(o client.Object) bool { return client.ObjectKeyFromObject(o) == s.name })
	return ctrl.NewControllerManagedBy(mgr).
		Named("signing-key").
		WatchesRawSource(atStart).
		WatchesMetadata(&corev1.Secret{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(itself)).
		Complete(s)
}

// Reconcile creates the key if it does not exist.
func (s *signingKeyReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	secret, err := s.ensure(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("ensure Secret %s: %w", s.name.Name, err)
	}
	if _, err := session.ParseSigningKey(secret.Data[session.SigningPrivateKey]); err != nil {
		ctrl.LoggerFrom(ctx).Info("The signing key is invalid", "secret", s.name, "reason", err.Error())
	}
	return reconcile.Result{}, nil
}

// signingKey returns the key that signs tokens, and the manager's secret for snapshots and Secrets of
// sessions, or a blocker if the existing key is invalid.
func (g *gatherer) signingKey(ctx context.Context) (key ed25519.PrivateKey, snapshots []byte,
	blocker *lifecycle.Blocker, err error) {
	name := g.options.signingKey()
	secret, err := operatorObject(ctx, g, "Secret", name.Name, &corev1.Secret{},
		func(s *corev1.Secret) *corev1.Secret { return s })
	if err != nil {
		return nil, nil, nil, err
	}
	if len(secret.Data[session.SigningPrivateKey]) == 0 {
		return nil, nil, nil, fmt.Errorf("the signing key in Secret %s does not exist yet", name.Name)
	}
	key, err = session.ParseSigningKey(secret.Data[session.SigningPrivateKey])
	if err != nil {
		return nil, nil, &lifecycle.Blocker{Reason: v1alpha1.ReasonSigningKeyUnfit, Message: fmt.Sprintf(
			"Secret %s in %s, key %s: %v", name.Name, name.Namespace, session.SigningPrivateKey, err)}, nil
	}
	snapshots = secret.Data[session.SnapshotSecret]
	if len(snapshots) == 0 && !ptr.Deref(secret.Immutable, false) {
		return nil, nil, nil, fmt.Errorf("the manager's key in Secret %s does not exist yet", name.Name)
	}
	return key, snapshots, nil, nil
}

// ensure reads the Secret, and adds the values that it lacks. It never replaces an existing value:
// if two managers write at once, one is refused and reads the other's values in its retry.
func (s *signingKeyReconciler) ensure(ctx context.Context) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := s.client.Get(ctx, s.name, secret)
	hasKey, hasSnapshots := len(secret.Data[session.SigningPrivateKey]) > 0, len(secret.Data[session.SnapshotSecret]) > 0
	if client.IgnoreNotFound(err) != nil || hasKey && (hasSnapshots || ptr.Deref(secret.Immutable, false)) {
		return secret, err
	}
	missing := err != nil
	if !hasKey {
		data, err := session.NewSigningKey()
		if err != nil {
			return nil, err
		}
		data[session.SnapshotSecret] = secret.Data[session.SnapshotSecret]
		secret.Data = data
	}
	if !hasSnapshots {
		secret.Data[session.SnapshotSecret] = session.NewSnapshotSecret()
	}
	if missing {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name}
		return secret, s.client.Create(ctx, secret)
	}
	return secret, s.client.Update(ctx, secret) // fails if the Secret changed since the read
}
