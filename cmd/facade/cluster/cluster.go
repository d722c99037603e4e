// Package cluster is Kubernetes as the facade uses it: what it reads, from a cache or live, what it
// writes, and what the API server's errors mean to a client.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
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

// FieldOwner owns what the facade writes.
const FieldOwner = "parley-facade"

// indexKeyHash finds settings by the hash of their session key.
const indexKeyHash = "status.sessionKeyHash"

// catchUp is how long a reader waits until the cache has what this facade wrote.
const catchUp = 2 * time.Second

// API is what the facade asks of Kubernetes. Cluster implements and documents it.
type API interface {
	UsersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error)
	Settings(ctx context.Context, key types.NamespacedName) (*v1alpha1.UserSettings, error)
	ApplySettings(ctx context.Context, over *v1alpha1.UserSettings, spec map[string]any, options ApplyOptions) (
		map[string]any, error)
	Annotate(ctx context.Context, over *v1alpha1.UserSettings, name, value string) error
	WriteSecret(ctx context.Context, secret *corev1.Secret) error
	CreateConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error
	CreateConversation(ctx context.Context, conversation *v1alpha1.Conversation) error
	Conversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error)
	CachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error)
	ConversationsOf(ctx context.Context, user types.NamespacedName, look func(all []v1alpha1.Conversation)) error
	PatchConversation(ctx context.Context, conversation *v1alpha1.Conversation, patch []byte) error
	DeleteConversation(ctx context.Context, conversation *v1alpha1.Conversation) error
	Agents(ctx context.Context) ([]string, error)
	Models(ctx context.Context) ([]string, error)
	Ready(ctx context.Context) error
}

// Cluster is Kubernetes as the facade uses it.
type Cluster struct {
	cache cache.Cache
	// live asks the API server.
	live client.Client
	// cached reads the cache, and waits there for what was written through it.
	cached client.Client
	probe  discovery.DiscoveryInterface
	// namespace is the operator's own.
	namespace string
	options   Options
}

// Options say what of the cluster is used.
type Options struct {
	// Namespaces are those of the users; none is all.
	Namespaces []string
	// Agents and Models are the ConfigMaps in the operator's namespace that list them.
	Agents, Models string
}

// New prepares to use the cluster, in which the operator has a namespace; Start fills the cache.
func New(ctx context.Context, cfg *clientrest.Config, namespace string, options Options) (*Cluster, error) {
	cfg = clientrest.CopyConfig(cfg)
	// The API server's priority and fairness governs; each user has a limit of their own in the
	// facade.
	cfg.QPS = -1
	// The webhook warns of keys that do not exist yet: they are written next.
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
		return nil, fmt.Errorf("make a connection: %w", err)
	}
	clientOptions := client.Options{HTTPClient: connection, Scheme: scheme, FieldOwner: FieldOwner}
	if clientOptions.Mapper, err = apiutil.NewDynamicRESTMapper(cfg, connection); err != nil {
		return nil, fmt.Errorf("find the kinds: %w", err)
	}
	live, err := client.New(cfg, clientOptions)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	// A client that created a conversation finds it in the list that it asks for next.
	clientOptions.Cache = &client.CacheOptions{Reader: objects, EnableReadYourWritesConsistency: ptr.To(true)}
	cached, err := client.New(cfg, clientOptions)
	if err != nil {
		return nil, fmt.Errorf("make a client over the cache: %w", err)
	}
	probe, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, connection)
	if err != nil {
		return nil, fmt.Errorf("make a client for probes: %w", err)
	}
	return &Cluster{cache: objects, live: live, cached: cached, probe: probe, namespace: namespace, options: options}, nil
}

// newCache holds the two kinds and nothing else, without what no answer shows. Its watches have a
// connection of their own, so that a burst of writes does not hold up their events; a dialer of its
// own keeps client-go from sharing one.
func newCache(ctx context.Context, cfg *clientrest.Config, scheme *runtime.Scheme, namespaces []string) (cache.Cache,
	error) {
	watched := map[string]cache.Config{} // none is all
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
		return nil, fmt.Errorf("make the cache: %w", err)
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

// maxTitle is how much of a first message is kept: of its first line a list shows less.
const maxTitle = 512

// strip drops what answers are not made of. Messages and images are the bulk of a conversation; of
// the first message enough is kept for a title.
func strip(object any) (any, error) {
	o, isObject := object.(client.Object)
	if !isObject {
		return object, nil
	}
	o.SetManagedFields(nil)
	if conversation, is := object.(*v1alpha1.Conversation); is {
		spec := &conversation.Spec
		spec.ImageURLs, spec.Images, spec.ConversationInstructions, spec.MCPConfig = nil, nil, nil, nil
		if spec.InitialUserMsg != nil {
			spec.InitialUserMsg = ptr.To(strings.Clone(beginning(*spec.InitialUserMsg)))
		}
	}
	return object, nil
}

// beginning is the first line of a message as far as it is kept.
func beginning(message string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	return strings.ToValidUTF8(line[:min(len(line), maxTitle)], "")
}

// Start fills the cache and keeps it up to date until the context ends.
func (c *Cluster) Start(ctx context.Context) error { return c.cache.Start(ctx) }

// Ready says why requests cannot be served now.
func (c *Cluster) Ready(ctx context.Context) error {
	if !c.cache.WaitForCacheSync(ctx) {
		return errors.New("the cache is not filled yet")
	}
	return c.probe.RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
}
