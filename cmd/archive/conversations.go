package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const indexUID = "metadata.uid"

// conversations finds the owners of existing Conversations.
type conversations struct {
	cache cache.Cache
	probe discovery.DiscoveryInterface
}

// newConversations watches the Conversations of some namespaces; an empty list means all
// namespaces.
func newConversations(ctx context.Context, cfg *rest.Config, namespaces []string) (*conversations, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	options := cache.Options{Scheme: scheme, ReaderFailOnMissingInformer: true, DefaultTransform: strip,
		ByObject:          map[client.Object]cache.ByObject{&v1alpha1.Conversation{}: {}},
		DefaultNamespaces: map[string]cache.Config{}}
	for _, namespace := range namespaces {
		options.DefaultNamespaces[namespace] = cache.Config{}
	}
	watched, err := cache.New(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("create the cache: %w", err)
	}
	byUID := func(o client.Object) []string { return []string{string(o.GetUID())} }
	if err := watched.IndexField(ctx, &v1alpha1.Conversation{}, indexUID, byUID); err != nil {
		return nil, fmt.Errorf("index the Conversations: %w", err)
	}
	probe, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a discovery client: %w", err)
	}
	return &conversations{cache: watched, probe: probe}, nil
}

// strip keeps only the identity, the owner, the attempt and the state of a Conversation.
func strip(object any) (any, error) {
	full, isConversation := object.(*v1alpha1.Conversation)
	if !isConversation {
		return object, nil
	}
	slim := &v1alpha1.Conversation{TypeMeta: full.TypeMeta}
	slim.Name, slim.Namespace, slim.UID, slim.ResourceVersion = full.Name, full.Namespace, full.UID, full.ResourceVersion
	slim.Spec.UserSettingsName = full.Spec.UserSettingsName
	slim.Status.State, slim.Status.Reason, slim.Status.Attempt = full.Status.State, full.Status.Reason, full.Status.Attempt
	if full.Status.ReportsNoPod() {
		slim.Status.Conditions = noPod
	}
	return slim, nil
}

// ready returns an error until the cache is filled, and while the API server does not answer.
func (c *conversations) ready(ctx context.Context) error {
	if !c.cache.WaitForCacheSync(ctx) {
		return errors.New("the informer cache is not synced yet")
	}
	return c.probe.RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
}

// OwnerOf returns the namespace and name of a Conversation's UserSettings, or "" for an unknown
// Conversation.
func (c *conversations) OwnerOf(ctx context.Context, uid string) (string, error) {
	found, err := c.find(ctx, uid)
	if found == nil {
		return "", err
	}
	return found.Namespace + "/" + found.Spec.UserSettingsName, nil
}

func (c *conversations) find(ctx context.Context, uid string) (*v1alpha1.Conversation, error) {
	var list v1alpha1.ConversationList
	if err := c.cache.List(ctx, &list, client.MatchingFields{indexUID: uid}, client.UnsafeDisableDeepCopy,
		client.Limit(1)); err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}

// NameOf returns the namespace and name of a Conversation, or "" for an unknown Conversation.
func (c *conversations) NameOf(ctx context.Context, uid string) (string, error) {
	found, err := c.find(ctx, uid)
	if found == nil {
		return "", err
	}
	return found.Namespace + "/" + found.Name, nil
}

func (c *conversations) onDeletion(ctx context.Context, do func(uid string)) error {
	informer, err := c.cache.GetInformer(ctx, &v1alpha1.Conversation{})
	if err != nil {
		return err
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		if unknown, is := object.(toolscache.DeletedFinalStateUnknown); is {
			object = unknown.Obj
		}
		if conversation, is := object.(*v1alpha1.Conversation); is {
			do(string(conversation.UID))
		}
	}})
	return err
}
