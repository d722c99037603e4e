// Package controllers reconciles UserSettings and Conversations.
package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/slimcache"
)

// FieldOwner is the field owner of the manager's writes.
const FieldOwner = "parley-manager"

// reconcileTimeout limits one reconcile, so that a hanging call cannot block a worker for ever.
const reconcileTimeout = time.Minute

// Options are the operator's settings for the objects that it creates.
type Options struct {
	// Namespace is the operator's own namespace; its pods may reach the sessions.
	Namespace string
	// SigningSecret, AgentsConfigMap and ModelsConfigMap are objects in the operator's namespace.
	// Empty means the default name.
	SigningSecret, AgentsConfigMap, ModelsConfigMap string
	// RuntimeImage is the container image that contains the runtime. Sessions without a container
	// image of their own run in it.
	RuntimeImage string
	// SearchMCPURL is the URL of the web search tool server; empty if there is none.
	SearchMCPURL string
	// ArchiveURL is the URL of the archive; empty disables the archive. ArchiveCertificate makes
	// the manager create the archive's certificate.
	ArchiveURL         string
	ArchiveCertificate bool
	// EgressAllow lists private CIDRs that sessions may reach.
	EgressAllow []string
	// Namespaces are the namespaces that the manager is limited to. Empty means all namespaces.
	Namespaces []string
	// SessionPort is the port of sessions; 0 means session.Port.
	SessionPort int
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
}

func (o Options) signingKey() client.ObjectKey {
	return client.ObjectKey{Namespace: o.Namespace, Name: o.SigningSecret}
}

func (o Options) sessionPort() int { return cmp.Or(o.SessionPort, session.Port) }

// archiveHost returns the host in the archive's certificate, or "" if the manager does not create
// this certificate.
func (o Options) archiveHost() string {
	address, err := url.Parse(o.ArchiveURL)
	if err != nil || !o.ArchiveCertificate {
		return ""
	}
	return address.Hostname()
}

// NewScheme returns a scheme with all kinds that Parley reads and writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(clientscheme.AddToScheme, v1alpha1.AddToScheme)
	return scheme, builder.AddToScheme(scheme)
}

// ManagerOptions returns the options of the controller-runtime manager, such as its cache and its
// client. scope limits the namespaces that the manager sees.
func ManagerOptions(scheme *runtime.Scheme, workers int, scope Scope) ctrl.Options {
	return ctrl.Options{
		Scheme:   scheme,
		Logger:   withoutBodies(ctrl.Log),
		Cache:    cacheOptions(scope),
		NewCache: newCache,
		Client: client.Options{
			FieldOwner: FieldOwner,
			// Read Secrets and ConfigMaps from the API server, because the cache contains only
			// their metadata.
			Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}},
		},
		Controller: config.Controller{
			MaxConcurrentReconciles: workers,
			ReconciliationTimeout:   reconcileTimeout,
		},
	}
}

// Scope is the set of namespaces that the operator reconciles. If Namespaces is empty, the operator
// reconciles all namespaces.
type Scope struct {
	// Operator is the operator's own namespace. The manager reads its own objects there, and
	// reconciles sessions there only if Namespaces lists it.
	Operator   string
	Namespaces []string
}

// namespaceConfigs returns a cache configuration for each namespace in the two lists. If the first
// list is empty, it returns nil: the cache then covers the whole cluster.
func namespaceConfigs(namespaces []string, more ...string) map[string]cache.Config {
	if len(namespaces) == 0 {
		return nil
	}
	configs := make(map[string]cache.Config, len(namespaces)+len(more))
	for _, namespace := range slices.Concat(namespaces, more) {
		configs[namespace] = cache.Config{}
	}
	return configs
}

// cacheOptions selects the objects in the cache. A label selects the objects that Parley creates. A
// session may wait for a Secret or ConfigMap that a user creates, without this label. The cache
// therefore contains the metadata of all Secrets and ConfigMaps, with three exceptions that are
// numerous in most clusters: Helm releases, service account tokens and kube-root-ca.crt.
func cacheOptions(scope Scope) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy})}
	return cache.Options{
		DefaultTransform:  slimcache.Transform,
		DefaultNamespaces: namespaceConfigs(scope.Namespaces),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   ours,
			&corev1.Service{}:               ours,
			&corev1.PersistentVolumeClaim{}: ours,
			&networkingv1.NetworkPolicy{}:   ours,
			&corev1.Secret{}: {
				Namespaces: namespaceConfigs(scope.Namespaces, scope.Operator),
				Field: fields.AndSelectors(
					fields.OneTermNotEqualSelector("type", "helm.sh/release.v1"),
					fields.OneTermNotEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)),
				),
			},
			&corev1.ConfigMap{}: {
				Namespaces: namespaceConfigs(scope.Namespaces, scope.Operator),
				Field:      fields.OneTermNotEqualSelector("metadata.name", "kube-root-ca.crt"),
			},
		},
	}
}

// newCache gives watches their own connection. client-go shares a connection between clients with
// the same configuration, so newCache configures a separate dialer. On a shared HTTP/2 connection,
// bursts of writes would delay the events of watches.
func newCache(cfg *rest.Config, options cache.Options) (cache.Cache, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the connection for watches: %w", err)
	}
	options.HTTPClient = httpClient
	return cache.New(cfg, options)
}

// SetupWithManager adds the controllers to the manager.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	options.SigningSecret = cmp.Or(options.SigningSecret, session.SigningSecret)
	options.AgentsConfigMap = cmp.Or(options.AgentsConfigMap, v1alpha1.AgentCatalogueName)
	options.ModelsConfigMap = cmp.Or(options.ModelsConfigMap, v1alpha1.ModelsName)
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	c, live, recorder := mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("parley")
	conversations := newConversationReconciler(ctx, c, live, mgr.GetCache(), recorder, options)
	for name, controller := range map[string]interface{ setup(ctrl.Manager) error }{
		"UserSettings": newUserSettingsReconciler(c, mgr.GetCache(), live, options.Clock, recorder),
		"signing key": &signingKeyReconciler{client: c, name: options.signingKey(), clock: options.Clock,
			archiveHost: options.archiveHost()},
		"Conversation": conversations,
		"model":        newModelReconciler(&conversations.gatherer, c),
		"namespace":    &namespaceReconciler{client: c, namespaces: conversations.namespaces, warm: conversations.warm},
		"warm pool":    newWarmPoolReconciler(conversations),
	} {
		if err := controller.setup(mgr); err != nil {
			return fmt.Errorf("set up the %s controller: %w", name, err)
		}
	}
	return nil
}
