package controllers

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// +kubebuilder:rbac:groups="",namespace=parley-system,resources=secrets,resourceNames=parley-session-signing,verbs=update

// archiveTokenLife is how long a session may hand over what it leaves. Its Secret may serve it
// through many restarts, and all that it can do with the token is to add to its own archive.
const archiveTokenLife = 5 * 366 * 24 * time.Hour

// signingKey is the key that the facade's tokens are signed with. It is made once; a session that
// starts finds it or, if it is first, makes it.
type signingKey struct {
	client   client.Client // past the cache, for Secrets
	metadata client.Reader // the cache, for metadata of Secrets
	name     client.ObjectKey
	held     held[parsedKey]
}

// parsedKey is a key, or why the one that is there cannot be used.
type parsedKey struct {
	key ed25519.PrivateKey
	err error
}

func newSigningKey(c client.Client, metadata client.Reader, namespace, secret string) *signingKey {
	return &signingKey{client: c, metadata: metadata, name: client.ObjectKey{Namespace: namespace, Name: secret}}
}

// setup has the key made when the manager starts, for the facade, and again when somebody deletes
// it.
func (s *signingKey) setup(mgr ctrl.Manager) error {
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

// Reconcile makes the key if there is none.
func (s *signingKey) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	_, unusable, err := s.key(ctx)
	if unusable != nil {
		ctrl.LoggerFrom(ctx).Info(unusable.message)
	}
	return reconcile.Result{}, err
}

// key that tokens are signed with, or why there is none that could be used.
func (s *signingKey) key(ctx context.Context) (ed25519.PrivateKey, *problem, error) {
	parsed, err := s.held.get(ctx, s.metadata, corev1.SchemeGroupVersion.WithKind("Secret"), s.name, func() (client.Object,
		parsedKey, error) {
		secret, err := s.ensure(ctx)
		if err != nil {
			return nil, parsedKey{}, err
		}
		key, unusable := session.ParseSigningKey(secret.Data[session.SigningPrivateKey])
		return secret, parsedKey{key, unusable}, nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("keep Secret %s: %w", s.name.Name, err)
	}
	if err := parsed.err; err != nil {
		return nil, &problem{v1alpha1.ReasonSigningKeyUnfit, fmt.Sprintf("Secret %s in %s, key %s: %v", s.name.Name,
			s.name.Namespace, session.SigningPrivateKey, err)}, nil
	}
	return parsed.key, nil, nil
}

// ensure reads the Secret, and fills it if it is empty or not there. Of two who do so at once one
// writes: the other's write is refused, and it reads again. A key that is there is never replaced.
func (s *signingKey) ensure(ctx context.Context) (*corev1.Secret, error) {
	const tries = 5
	for try := 1; ; try++ {
		secret := &corev1.Secret{}
		err := s.client.Get(ctx, s.name, secret)
		if err == nil && len(secret.Data[session.SigningPrivateKey]) > 0 {
			return secret, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		missing := err != nil
		if secret.Data, err = session.NewSigningKey(); err != nil {
			return nil, err
		}
		if missing {
			secret.ObjectMeta = metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name}
			err = s.client.Create(ctx, secret)
		} else {
			err = s.client.Update(ctx, secret) // as it was read, or not at all
		}
		lostRace := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || !missing && apierrors.IsNotFound(err)
		if !lostRace || try == tries {
			return secret, err
		}
	}
}
