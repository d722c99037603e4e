// Package controllers keeps the objects behind UserSettings and Conversations.
package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net"
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

// FieldOwner owns what the manager writes.
const FieldOwner = "parley-manager"

// reconcileTimeout bounds one reconcile, so that a hanging call cannot hold a worker for ever.
const reconcileTimeout = time.Minute

// Options of the operator that shape what it makes.
type Options struct {
	// Namespace the operator runs in; its pods may reach the sessions.
	Namespace string
	// SigningSecret, AgentsConfigMap and ModelsConfigMap are what the operator reads in its own
	// namespace; they have their usual names where these are empty.
	SigningSecret, AgentsConfigMap, ModelsConfigMap string
	// RuntimeImage holds the runtime; sessions run in it where the settings name no image.
	RuntimeImage string
	// SearchMCPURL is the tool server that searches the web with the user's key; empty if there is
	// none.
	SearchMCPURL string
	// ArchiveURL is where sessions hand over what they leave; empty where nothing is kept.
	ArchiveURL string
	// EgressAllow lists CIDRs that sessions may reach although they are private.
	EgressAllow []string
	// Clock is the real one where it is nil.
	Clock clock.PassiveClock
}

func (o Options) signingKey() client.ObjectKey {
	return client.ObjectKey{Namespace: o.Namespace, Name: o.SigningSecret}
}

// NewScheme knows all kinds that Parley reads and writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(clientscheme.AddToScheme, v1alpha1.AddToScheme)
	return scheme, builder.AddToScheme(scheme)
}

// ManagerOptions are what the controllers need of a manager: what it caches, and how it talks to
// the API server. It sees the namespaces that scope names, or all.
func ManagerOptions(scheme *runtime.Scheme, workers int, scope Scope) ctrl.Options {
	return ctrl.Options{
		Scheme:   scheme,
		Logger:   withoutBodies(ctrl.Log),
		Cache:    cacheOptions(scope),
		NewCache: newCache,
		Client: client.Options{
			FieldOwner: FieldOwner,
			// Values of Secrets, replays and images are read when a session starts, and not kept.
			Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}},
		},
		Controller: config.Controller{
			MaxConcurrentReconciles: workers,
			ReconciliationTimeout:   reconcileTimeout,
		},
	}
}

// Scope is where the operator works. Without any namespaces it works in all of them.
type Scope struct {
	// Operator is the namespace that it runs in. There it reads what is its own, and works only if
	// that is listed too.
	Operator   string
	Namespaces []string
}

// caches are the settings of a cache of these namespaces and more; nil for all of them.
func caches(namespaces []string, more ...string) map[string]cache.Config {
	if len(namespaces) == 0 {
		return nil
	}
	configs := make(map[string]cache.Config, len(namespaces)+len(more))
	for _, namespace := range slices.Concat(namespaces, more) {
		configs[namespace] = cache.Config{}
	}
	return configs
}

// cacheOptions hold what the controllers watch: sessions' own objects by their label, and of
// Secrets and ConfigMaps only the metadata, since a session must start when one that it waits for
// arrives, and nothing marks that one beforehand. Helm's releases and tokens, the bulk of most
// clusters' Secrets, are left out.
func cacheOptions(scope Scope) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy})}
	pods := ours
	pods.Transform = slimcache.Pod
	return cache.Options{
		DefaultTransform:  slimcache.Object,
		DefaultNamespaces: caches(scope.Namespaces),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.Conversation{}:        {Transform: slimcache.Conversation},
			&corev1.Pod{}:                   pods,
			&corev1.Service{}:               ours,
			&corev1.PersistentVolumeClaim{}: ours,
			&networkingv1.NetworkPolicy{}:   ours,
			&corev1.Secret{}: {
				Transform: slimcache.Secret, Namespaces: caches(scope.Namespaces, scope.Operator),
				Field: fields.AndSelectors(
					fields.OneTermNotEqualSelector("type", "helm.sh/release.v1"),
					fields.OneTermNotEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)),
				),
			},
			&corev1.ConfigMap{}: {
				Namespaces: caches(scope.Namespaces, scope.Operator),
				Field:      fields.OneTermNotEqualSelector("metadata.name", "kube-root-ca.crt"),
			},
		},
	}
}

// newCache gives watches a connection of their own. On a shared HTTP/2 connection they compete with
// a burst of writes for its streams, and events come late. A dialer of its own keeps client-go from
// sharing one.
func newCache(cfg *rest.Config, options cache.Options) (cache.Cache, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a connection for watches: %w", err)
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
	conversations := newConversationReconciler(c, live, mgr.GetCache(), recorder, options)
	for name, controller := range map[string]interface{ setup(ctrl.Manager) error }{
		"UserSettings": &userSettingsReconciler{client: c, cache: mgr.GetCache(), clock: options.Clock, recorder: recorder},
		"signing key":  &signingKeyReconciler{client: c, name: options.signingKey()},
		"Conversation": conversations,
		"namespace":    &namespaceReconciler{client: c, namespaces: conversations.namespaces},
	} {
		if err := controller.setup(mgr); err != nil {
			return fmt.Errorf("set up the %s controller: %w", name, err)
		}
	}
	return nil
}
