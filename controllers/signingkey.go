package controllers

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
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
	"github.com/parley-dev/parley/controllers/objects"
)

// +kubebuilder:rbac:groups="",namespace=parley-system,resources=secrets,resourceNames=parley-session-signing,verbs=update

// signingKeyReconciler maintains the keys of tokens, snapshots and certificates. It creates missing
// keys, rotates keys on request, and renews certificates.
type signingKeyReconciler struct {
	client client.Client // reads Secrets directly, without a cache
	name   client.ObjectKey
	clock  clock.PassiveClock
	// archiveHost is the host in the archive's certificate; empty if the manager does not create
	// the certificate.
	archiveHost string
}

// renewInterval is the interval at which certificates are checked and, if they expire soon,
// renewed.
const renewInterval = 12 * time.Hour

// setup requests a reconcile when the manager starts, and after each change of the signing Secret.
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

// Reconcile creates the keys that the signing Secret lacks, rotates keys if an annotation requests
// that, and renews certificates.
func (s *signingKeyReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	secret, err := s.ensure(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("ensure Secret %s: %w", s.name.Name, err)
	}
	if _, err := session.ParseSigningKeys(secret.Data[session.SigningPrivateKey]); err != nil {
		ctrl.LoggerFrom(ctx).Info("The signing key is invalid", "secret", s.name, "reason", err.Error())
	}
	return reconcile.Result{RequeueAfter: renewInterval}, nil
}

type signingKeys struct {
	// tokens are the keys that sign tokens. The current key is first, and the previous key may
	// follow.
	tokens []ed25519.PrivateKey
	// snapshots and previousSnapshots are secrets that only the manager has; both may be empty. The
	// keys of snapshots and the keys of the MACs of session Secrets are derived from these secrets.
	snapshots, previousSnapshots []byte
	// authority signs certificates. authorities are the certificates that clients trust, as PEM.
	authority   *objects.Authority
	authorities []byte
	// immutable is set if the Secret is immutable, so that no key can be added.
	immutable bool
	// invalid is the reason why a key cannot be used, if any.
	invalid string
}

func parseSigningKeys(secret *corev1.Secret) signingKeys {
	keys := signingKeys{snapshots: secret.Data[session.SnapshotSecret],
		previousSnapshots: secret.Data[session.PreviousSnapshotSecret],
		authorities:       secret.Data[session.AuthorityCertificates], immutable: ptr.Deref(secret.Immutable, false)}
	var err error
	if keys.authority, err = objects.ParseAuthority(secret.Data); err != nil {
		keys.invalid = err.Error()
	}
	if text := secret.Data[session.SigningPrivateKey]; len(text) > 0 {
		if keys.tokens, err = session.ParseSigningKeys(text); err != nil {
			keys.invalid = fmt.Sprintf("key %s: %v", session.SigningPrivateKey, err)
		}
	}
	return keys
}

// signingKeys returns the keys in the signing Secret, or a blocker if the signing key is invalid.
func (g *gatherer) signingKeys(ctx context.Context) (signingKeys, *lifecycle.Blocker, error) {
	name := g.options.signingKey()
	keys, err := operatorObject(ctx, g, "Secret", name.Name, &corev1.Secret{}, parseSigningKeys)
	switch {
	case err != nil:
		return keys, nil, err
	case keys.invalid != "":
		return keys, &lifecycle.Blocker{Reason: v1alpha1.ReasonSigningKeyUnfit, Message: fmt.Sprintf(
			"Secret %s in namespace %s, %s", name.Name, name.Namespace, keys.invalid)}, nil
	case len(keys.tokens) == 0 || len(keys.snapshots) == 0 && !keys.immutable:
		return keys, nil, fmt.Errorf("the signing key in Secret %s does not exist yet", name.Name)
	case keys.authority == nil && (g.options.ArchiveCertificate || !keys.immutable):
		return keys, nil, fmt.Errorf("the certificate authority in Secret %s does not exist yet", name.Name)
	}
	return keys, nil, nil
}

// dialArchive connects to the archive over TLS. If the manager creates the archive's certificate,
// dialArchive trusts only the manager's own authority.
func (g *gatherer) dialArchive(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: archiveDialTimeout}, Config: &tls.Config{
		MinVersion: tls.VersionTLS12}}
	if g.options.ArchiveCertificate {
		keys, _, err := g.signingKeys(ctx)
		if err != nil {
			return nil, err
		}
		dialer.Config.RootCAs = x509.NewCertPool()
		dialer.Config.RootCAs.AppendCertsFromPEM(keys.authorities)
	}
	return dialer.DialContext(ctx, network, address)
}

// ensure reads the Secret, adds the values that it lacks, and rotates keys on request. It never
// drops a current value: if two managers write at the same time, the API server refuses the second
// write. The second manager then retries with the values of the first manager.
func (s *signingKeyReconciler) ensure(ctx context.Context) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := s.client.Get(ctx, s.name, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return secret, err
	}
	changed, err := objects.CompleteSigningSecret(secret, s.archiveHost, s.clock.Now())
	switch {
	case err != nil || !changed:
		return secret, err
	case missing:
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name}
		return secret, s.client.Create(ctx, secret)
	}
	return secret, s.client.Update(ctx, secret) // fails if the Secret changed since the read
}
