package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,verbs=list;watch
// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=parley-webhook,verbs=update
// +kubebuilder:rbac:groups="",namespace=parley-system,resources=secrets,resourceNames=parley-webhook-cert,verbs=update

// webhookOptions contains the webhook's address and the source of its certificate.
type webhookOptions struct {
	address, certDir, secret, service, configuration, extraDNSName string
	rotate                                                         bool
}

// certificate is the webhook's certificate. It watches the Secret that the rotator or cert-manager
// writes, and keeps the key only in memory. It does not read the Secret from a mounted volume,
// because the volume would contain a new certificate only about a minute later.
type certificate struct {
	options webhookOptions
	secret  types.NamespacedName
	mgr     ctrl.Manager
	current atomic.Pointer[tls.Certificate]
	// trusted is closed when the webhook has a certificate and, if the certificate is self-signed,
	// the API server trusts it.
	trusted chan struct{}
}

func newCertificate(namespace string, o webhookOptions) *certificate {
	return &certificate{
		options: o,
		secret:  types.NamespacedName{Namespace: namespace, Name: o.secret},
		trusted: make(chan struct{}),
	}
}

// serve makes a server use the newest certificate.
func (c *certificate) serve(config *tls.Config) {
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if cert := c.current.Load(); cert != nil {
			return cert, nil
		}
		return nil, errors.New("the webhook has no certificate yet")
	}
}

// addTo makes the manager watch the Secret of the certificate and, if options.rotate is set, create
// and renew the certificate.
func (c *certificate) addTo(mgr ctrl.Manager) error {
	c.mgr = mgr
	if err := os.MkdirAll(c.options.certDir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the webhook's certificate: %w", err)
	}
	if err := mgr.Add(c); err != nil || !c.options.rotate {
		return err
	}
	host := c.options.service + "." + c.secret.Namespace + ".svc"
	names := []string{host + ".cluster.local"}
	if c.options.extraDNSName != "" {
		names = append(names, c.options.extraDNSName)
	}
	return rotator.AddRotator(sparing{mgr}, &rotator.CertRotator{
		SecretKey:      c.secret,
		CertDir:        c.options.certDir,
		CAName:         "parley-webhook",
		CAOrganization: "parley",
		DNSName:        host,
		ExtraDNSNames:  names,
		IsReady:        c.trusted,
		Webhooks:       []rotator.WebhookInfo{{Name: c.options.configuration, Type: rotator.Validating}},
		FieldOwner:     "parley-webhook-cert",
		// Every replica serves the webhook, not only the leader.
		RequireLeaderElection: false,
	})
}

// NeedLeaderElection returns false because every replica serves the webhook.
func (*certificate) NeedLeaderElection() bool { return false }

// Start watches the Secret until the manager stops.
func (c *certificate) Start(ctx context.Context) error {
	secrets, err := cache.New(c.mgr.GetConfig(), cache.Options{
		Scheme: c.mgr.GetScheme(),
		Mapper: c.mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{c.secret.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name",
				c.secret.Name)}},
		}},
	})
	if err != nil {
		return fmt.Errorf("watch the webhook's certificate: %w", err)
	}
	informer, err := secrets.GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the webhook's certificate: %w", err)
	}
	load := func(object any) {
		if err := c.load(object.(*corev1.Secret)); err != nil {
			ctrl.Log.Error(err, "Cannot load the webhook's certificate", "secret", c.secret)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    load,
		UpdateFunc: func(_, object any) { load(object) },
	}); err != nil {
		return fmt.Errorf("watch the webhook's certificate: %w", err)
	}
	return secrets.Start(ctx)
}

func (c *certificate) load(secret *corev1.Secret) error {
	public, private := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(public) == 0 || len(private) == 0 {
		return nil // not yet filled by the rotator or cert-manager
	}
	pair, err := tls.X509KeyPair(public, private)
	if err != nil {
		return err
	}
	first := c.current.Swap(&pair) == nil
	if !c.options.rotate {
		if first {
			close(c.trusted)
		}
		return nil
	}
	// The rotator closes c.trusted only after this file exists and the webhook's configuration
	// contains the CA.
	return os.WriteFile(filepath.Join(c.options.certDir, corev1.TLSCertKey), public, 0o600)
}

// sparing is a manager whose client skips an update that changes nothing. The rotator writes the CA
// into the webhook's configuration at each start, even if the CA is unchanged.
type sparing struct{ ctrl.Manager }

func (m sparing) GetClient() client.Client { return sparingClient{m.Manager.GetClient()} }

type sparingClient struct{ client.Client }

// Update skips an object that equals the stored object. It reads the stored object with a list,
// because the manager has no permission to get it. A concurrent change still causes a conflict.
func (c sparingClient) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	wanted, is := object.(*unstructured.Unstructured)
	if !is {
		return c.Client.Update(ctx, object, options...)
	}
	present := &unstructured.UnstructuredList{}
	present.SetGroupVersionKind(wanted.GroupVersionKind())
	err := c.List(ctx, present, client.InNamespace(wanted.GetNamespace()),
		client.MatchingFields{"metadata.name": wanted.GetName()})
	if err == nil && len(present.Items) == 1 && equality.Semantic.DeepEqual(present.Items[0].Object, wanted.Object) {
		return nil
	}
	return c.Client.Update(ctx, object, options...)
}
