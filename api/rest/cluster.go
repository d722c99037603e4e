package rest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	ac "github.com/parley-dev/parley/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// cluster is what the handlers need of Kubernetes.
type cluster interface {
	// usersByKeyHash are the settings whose session key has this hash, from the cache.
	usersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error)
	settings(ctx context.Context, key types.NamespacedName) (*v1alpha1.UserSettings, error)
	applySettings(ctx context.Context, config *ac.UserSettingsApplyConfiguration, options applyOptions) (*v1alpha1.UserSettings, error)
	writeSecret(ctx context.Context, secret *corev1.Secret) error
	createConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error

	// createConversation fills in what the API server made of it.
	createConversation(ctx context.Context, conversation *v1alpha1.Conversation, dryRun bool) error
	conversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error)
	// cachedConversation lacks what the cache does not keep.
	cachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error)
	// conversationsOf are those of a user, from the cache. They must not be changed.
	conversationsOf(ctx context.Context, user types.NamespacedName) ([]v1alpha1.Conversation, error)
	patchConversation(ctx context.Context, conversation *v1alpha1.Conversation, patch []byte) error
	deleteConversation(ctx context.Context, conversation *v1alpha1.Conversation) error

	// ready says why requests cannot be served now.
	ready(ctx context.Context) error
}

type applyOptions struct{ dryRun, force bool }

// indexKeyHash finds settings by the hash of their session key.
const indexKeyHash = "status.sessionKeyHash"

// catchUp is how long a reader waits until the cache has what this facade wrote.
const catchUp = 2 * time.Second

// Cluster is Kubernetes as the facade uses it.
type Cluster struct {
	cache cache.Cache
	// live asks the API server.
	live client.Client
	// cached reads the cache, and waits there for what was written through it.
	cached client.Client
	probe  discovery.DiscoveryInterface
}

var _ cluster = &Cluster{}

// NewCluster prepares to use the cluster; Start fills the cache.
func NewCluster(ctx context.Context, cfg *clientrest.Config) (*Cluster, error) {
	cfg = clientrest.CopyConfig(cfg)
	// The API server's priority and fairness governs; each user has a limit of their own in the facade.
	cfg.QPS = -1
	// The webhook warns of keys that do not exist yet: they are written next.
	cfg.WarningHandler = clientrest.NoWarnings{}
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(clientscheme.AddToScheme, v1alpha1.AddToScheme)
	if err := builder.AddToScheme(scheme); err != nil {
		return nil, err
	}
	objects, err := newCache(ctx, cfg, scheme)
	if err != nil {
		return nil, err
	}
	connection, err := clientrest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a connection: %w", err)
	}
	options := client.Options{HTTPClient: connection, Scheme: scheme, FieldOwner: FieldOwner}
	if options.Mapper, err = apiutil.NewDynamicRESTMapper(cfg, connection); err != nil {
		return nil, fmt.Errorf("find the kinds: %w", err)
	}
	live, err := client.New(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	// A client that created a conversation finds it in the list that it asks for next.
	options.Cache = &client.CacheOptions{Reader: objects, EnableReadYourWritesConsistency: ptr.To(true)}
	cached, err := client.New(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("make a client over the cache: %w", err)
	}
	probe, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, connection)
	if err != nil {
		return nil, fmt.Errorf("make a client for probes: %w", err)
	}
	return &Cluster{cache: objects, live: live, cached: cached, probe: probe}, nil
}

// newCache holds the two kinds and nothing else, without what no answer shows. Its watches have a connection of their own,
// so that a burst of writes does not hold up their events; a dialer of its own keeps client-go from sharing one.
func newCache(ctx context.Context, cfg *clientrest.Config, scheme *runtime.Scheme) (cache.Cache, error) {
	cfg = clientrest.CopyConfig(cfg)
	cfg.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	objects, err := cache.New(cfg, cache.Options{
		Scheme:                      scheme,
		DefaultTransform:            strip,
		ReaderFailOnMissingInformer: true,
		ByObject:                    map[client.Object]cache.ByObject{&v1alpha1.UserSettings{}: {}, &v1alpha1.Conversation{}: {}},
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

// strip drops what answers are not made of. Messages and images are the bulk of a conversation; of the first message
// enough is kept for a title.
func strip(object any) (any, error) {
	o, isObject := object.(client.Object)
	if !isObject {
		return object, nil
	}
	o.SetManagedFields(nil)
	if conversation, is := object.(*v1alpha1.Conversation); is {
		spec := &conversation.Spec
		spec.ImageURLs, spec.ConversationInstructions, spec.MCPConfig = nil, nil, nil
		if spec.InitialUserMsg != nil {
			spec.InitialUserMsg = ptr.To(strings.Clone(title(*spec.InitialUserMsg)))
		}
	}
	return object, nil
}

// Start fills the cache and keeps it up to date until the context ends.
func (c *Cluster) Start(ctx context.Context) error { return c.cache.Start(ctx) }

func (c *Cluster) ready(ctx context.Context) error {
	if !c.cache.WaitForCacheSync(ctx) {
		return errors.New("the cache is not filled yet")
	}
	return c.probe.RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
}

func (c *Cluster) usersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	var list v1alpha1.UserSettingsList
	err := c.cache.List(ctx, &list, client.MatchingFields{indexKeyHash: hash}, client.UnsafeDisableDeepCopy)
	return list.Items, err
}

func (c *Cluster) settings(ctx context.Context, key types.NamespacedName) (*v1alpha1.UserSettings, error) {
	settings := &v1alpha1.UserSettings{}
	return settings, c.live.Get(ctx, key, settings)
}

func (c *Cluster) applySettings(ctx context.Context, config *ac.UserSettingsApplyConfiguration, options applyOptions) (*v1alpha1.UserSettings, error) {
	var apply []client.ApplyOption
	if options.dryRun {
		apply = append(apply, client.DryRunAll)
	}
	if options.force {
		apply = append(apply, client.ForceOwnership)
	}
	// The client decodes the answer into what it sent. In a typed configuration an entry of a list would keep what the one
	// that stood in its place had.
	sent := &unstructured.Unstructured{}
	if err := convert(config, &sent.Object); err != nil {
		return nil, err
	}
	if err := c.live.Apply(ctx, client.ApplyConfigurationFromUnstructured(sent), apply...); err != nil {
		return nil, err
	}
	settings := &v1alpha1.UserSettings{}
	return settings, convert(sent.Object, settings)
}

// writeSecret creates a Secret or replaces it. Between the two the operator may have pruned it.
func (c *Cluster) writeSecret(ctx context.Context, secret *corev1.Secret) (err error) {
	for range 3 {
		err = c.live.Create(ctx, secret.DeepCopy())
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		err = c.live.Update(ctx, secret.DeepCopy())
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	return err
}

func (c *Cluster) createConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error {
	return c.live.Create(ctx, configMap)
}

func (c *Cluster) createConversation(ctx context.Context, conversation *v1alpha1.Conversation, dryRun bool) error {
	if dryRun {
		return c.live.Create(ctx, conversation, client.DryRunAll)
	}
	return c.cached.Create(ctx, conversation)
}

func (c *Cluster) conversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation := &v1alpha1.Conversation{}
	return conversation, c.live.Get(ctx, key, conversation)
}

func (c *Cluster) cachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation := &v1alpha1.Conversation{}
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	err := c.cached.Get(waiting, key, conversation)
	if waiting.Err() != nil {
		err = c.cache.Get(ctx, key, conversation) // an old answer is better than none
	}
	return conversation, err
}

func (c *Cluster) conversationsOf(ctx context.Context, user types.NamespacedName) ([]v1alpha1.Conversation, error) {
	var list v1alpha1.ConversationList
	options := []client.ListOption{
		client.InNamespace(user.Namespace), client.MatchingFields{v1alpha1.IndexUserSettingsName: user.Name}, client.UnsafeDisableDeepCopy,
	}
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	err := c.cached.List(waiting, &list, options...)
	if waiting.Err() != nil {
		err = c.cache.List(ctx, &list, options...) // an old answer is better than none
	}
	return list.Items, err
}

func (c *Cluster) patchConversation(ctx context.Context, conversation *v1alpha1.Conversation, patch []byte) error {
	return c.cached.Patch(ctx, conversation, client.RawPatch(types.MergePatchType, patch))
}

func (c *Cluster) deleteConversation(ctx context.Context, conversation *v1alpha1.Conversation) error {
	options := []client.DeleteOption{client.Preconditions{UID: &conversation.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground)}
	// Of what the cache does not have it may never see the deletion, for which every list would wait.
	if err := c.cache.Get(ctx, client.ObjectKeyFromObject(conversation), &v1alpha1.Conversation{}); err != nil {
		options = append(options, client.DisableReadYourWritesConsistency)
	}
	return c.cached.Delete(ctx, conversation, options...)
}
