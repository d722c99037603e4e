// Package cluster reads and writes the facade's Kubernetes objects, cached or live, and translates
// the API server's errors for clients.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// FieldOwner is the field manager of the facade's writes.
const FieldOwner = "parley-facade"

const indexKeyHash = "status.sessionKeyHash"

const indexOwner = "spec.owner.username"

// cacheWait limits the wait until the facade's own writes appear in the cache.
const cacheWait = 2 * time.Second

// API is the set of operations on Kubernetes objects that the facade needs. The methods of Cluster
// document them.
type API interface {
	UsersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error)
	UsersByOwner(ctx context.Context, username string) ([]v1alpha1.UserSettings, error)
	ReviewToken(ctx context.Context, token string) (username string, groups []string, err error)
	Settings(ctx context.Context, key types.NamespacedName) (*v1alpha1.UserSettings, error)
	ApplySettings(ctx context.Context, over *v1alpha1.UserSettings, spec map[string]any, options ApplyOptions) (
		map[string]any, error)
	Annotate(ctx context.Context, over *v1alpha1.UserSettings, name, value string) error
	WriteSecret(ctx context.Context, secret *corev1.Secret) error
	CreateConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error
	CreateConversation(ctx context.Context, conversation *v1alpha1.Conversation) error
	Conversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error)
	CachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error)
	WatchConversation(key types.NamespacedName) (changed <-chan struct{}, stop func())
	ConversationsOf(ctx context.Context, user *v1alpha1.UserSettings, look func(all []v1alpha1.Conversation)) error
	PatchConversation(ctx context.Context, conversation *v1alpha1.Conversation, patch []byte) error
	DeleteConversation(ctx context.Context, conversation *v1alpha1.Conversation) error
	Class(ctx context.Context, name string) (*v1alpha1.SessionClassSpec, error)
	Agents(ctx context.Context) ([]string, error)
	Models(ctx context.Context, agent string) ([]string, error)
	Ready(ctx context.Context) error
}

// Cluster implements API.
type Cluster struct {
	cache cache.Cache
	// live reads from the API server.
	live client.Client
	// cached reads the cache. A read first waits until the earlier writes of this client are in the
	// cache.
	cached    client.Client
	probe     discovery.DiscoveryInterface
	namespace string
	options   Options
	watchers  watchers
}

// Options selects the objects that the facade uses.
type Options struct {
	// Namespaces are the namespaces of users; an empty list means all namespaces.
	Namespaces []string
	// Agents and Models are the ConfigMaps in the operator's namespace that list agents and models.
	Agents, Models string
}

// New connects to the cluster. The cache is empty until Start() is called.
func New(ctx context.Context, cfg *clientrest.Config, namespace string, options Options) (*Cluster, error) {
	cfg = clientrest.CopyConfig(cfg)
	// Disable the client-side rate limit: the API server protects itself with API Priority and
	// Fairness, and the facade limits each user.
	cfg.QPS = -1
	// Do not log the webhook's warnings. Many of them say that a Secret or a ConfigMap does not
	// exist yet, and the facade creates this object with one of its next requests.
	cfg.WarningHandler = clientrest.NoWarnings{}
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(clientscheme.AddToScheme, v1alpha1.AddToScheme)
	if err := builder.AddToScheme(scheme); err != nil {
		return nil, err
	}
	objects, err := newCache(ctx, cfg, scheme, options.Namespaces)
	if err != nil {
		return nil, err
	}
	connection, err := clientrest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create an HTTP client: %w", err)
	}
	clientOptions := client.Options{HTTPClient: connection, Scheme: scheme, FieldOwner: FieldOwner}
	if clientOptions.Mapper, err = apiutil.NewDynamicRESTMapper(cfg, connection); err != nil {
		return nil, fmt.Errorf("create a REST mapper: %w", err)
	}
	live, err := client.New(cfg, clientOptions)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	// A list must contain a conversation that the HTTP client created just before.
	clientOptions.Cache = &client.CacheOptions{Reader: objects, EnableReadYourWritesConsistency: ptr.To(true)}
	cached, err := client.New(cfg, clientOptions)
	if err != nil {
		return nil, fmt.Errorf("create a cached client: %w", err)
	}
	probe, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, connection)
	if err != nil {
		return nil, fmt.Errorf("create a discovery client: %w", err)
	}
	c := &Cluster{cache: objects, live: live, cached: cached, probe: probe, namespace: namespace, options: options}
	return c, c.watchers.follow(ctx, objects)
}

// newCache caches UserSettings and Conversations, without the fields that no response uses. The
// cache has its own dialer. Otherwise it would share a connection with the other clients, and a
// burst of writes would delay watch events.
func newCache(ctx context.Context, cfg *clientrest.Config, scheme *runtime.Scheme, namespaces []string) (cache.Cache,
	error) {
	watched := map[string]cache.Config{} // empty means all
	for _, namespace := range namespaces {
		watched[namespace] = cache.Config{}
	}
	cfg = clientrest.CopyConfig(cfg)
	cfg.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	objects, err := cache.New(cfg, cache.Options{
		Scheme:                      scheme,
		DefaultTransform:            strip,
		DefaultNamespaces:           watched,
		ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.Conversation{}: {}, &v1alpha1.UserSettings{}: {},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create the cache: %w", err)
	}
	for _, index := range []struct {
		object  client.Object
		field   string
		extract client.IndexerFunc
	}{
		{&v1alpha1.UserSettings{}, indexKeyHash, func(o client.Object) []string {
			if hash := o.(*v1alpha1.UserSettings).Status.SessionKeyHash; hash != "" {
				return []string{hash}
			}
			return nil
		}},
		{&v1alpha1.UserSettings{}, indexOwner, func(o client.Object) []string {
			if owner := o.(*v1alpha1.UserSettings).Spec.Owner; owner != nil {
				return []string{owner.Username}
			}
			return nil
		}},
		{&v1alpha1.Conversation{}, v1alpha1.IndexUserSettingsName, func(o client.Object) []string {
			return []string{o.(*v1alpha1.Conversation).Spec.UserSettingsName}
		}},
	} {
		if err := objects.IndexField(ctx, index.object, index.field, index.extract); err != nil {
			return nil, fmt.Errorf("index %T: %w", index.object, err)
		}
	}
	return objects, nil
}

// Start fills the cache and keeps it up to date until the context ends.
func (c *Cluster) Start(ctx context.Context) error { return c.cache.Start(ctx) }

// Ready returns the reason why requests cannot be served now, or nil.
func (c *Cluster) Ready(ctx context.Context) error {
	if !c.cache.WaitForCacheSync(ctx) {
		return errors.New("the informer cache is not synced yet")
	}
	return c.probe.RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
}
