package cluster

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// UsersByKeyHash are the settings whose session key has this hash, from the cache. They must not be
// changed.
func (c *Cluster) UsersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	var list v1alpha1.UserSettingsList
	err := c.cache.List(ctx, &list, client.MatchingFields{indexKeyHash: hash}, client.UnsafeDisableDeepCopy)
	return list.Items, err
}

// Settings as the API server has them.
func (c *Cluster) Settings(ctx context.Context, key types.NamespacedName) (*v1alpha1.UserSettings, error) {
	settings := &v1alpha1.UserSettings{}
	return settings, c.live.Get(ctx, key, settings)
}

// ApplyOptions of ApplySettings.
type ApplyOptions struct{ DryRun, Force bool }

// ApplySettings applies a spec over settings as they were read, and returns the spec that came of
// it. Who has changed them since makes it fail with a conflict: two clients at once would take one
// another's fields away.
func (c *Cluster) ApplySettings(ctx context.Context, over *v1alpha1.UserSettings, spec map[string]any,
	options ApplyOptions) (map[string]any, error) {
	var apply []client.ApplyOption
	if options.DryRun {
		apply = append(apply, client.DryRunAll)
	}
	if options.Force {
		apply = append(apply, client.ForceOwnership)
	}
	// The client decodes the answer into what it is given. In a typed configuration an entry of a
	// list would keep what the one that stood in its place had.
	settings := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{
			"namespace": over.Namespace, "name": over.Name, "resourceVersion": over.ResourceVersion,
			"annotations": map[string]any{v1alpha1.AnnotationSettingsStored: "true"},
		},
		"spec": runtime.DeepCopyJSON(spec),
	}}
	settings.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("UserSettings"))
	if err := c.live.Apply(ctx, client.ApplyConfigurationFromUnstructured(settings), apply...); err != nil {
		return nil, err
	}
	result, _, err := unstructured.NestedMap(settings.Object, "spec")
	return result, err
}

// Annotate settings as they were read. Who has changed them since makes it fail with a conflict.
func (c *Cluster) Annotate(ctx context.Context, over *v1alpha1.UserSettings, name, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": over.ResourceVersion, "uid": over.UID, "annotations": map[string]string{name: value},
	}})
	if err != nil {
		return err
	}
	return c.live.Patch(ctx, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: over.Namespace,
		Name: over.Name}}, client.RawPatch(types.MergePatchType, patch))
}

// WriteSecret creates a Secret or replaces it. Between the two the operator may have pruned it.
func (c *Cluster) WriteSecret(ctx context.Context, secret *corev1.Secret) (err error) {
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

// CreateConfigMap creates one that is not there yet.
func (c *Cluster) CreateConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error {
	return c.live.Create(ctx, configMap)
}

// CreateConversation fills in what the API server made of it.
func (c *Cluster) CreateConversation(ctx context.Context, conversation *v1alpha1.Conversation) error {
	return c.cached.Create(ctx, conversation)
}

// Conversation as the API server has it.
func (c *Cluster) Conversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation := &v1alpha1.Conversation{}
	return conversation, c.live.Get(ctx, key, conversation)
}

// CachedConversation lacks what the cache does not keep.
func (c *Cluster) CachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation := &v1alpha1.Conversation{}
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	err := c.cached.Get(waiting, key, conversation)
	if waiting.Err() != nil {
		err = c.cache.Get(ctx, key, conversation) // an old answer is better than none
	}
	return conversation, err
}

// ConversationsOf lets those of a user be looked at, from the cache. They must not be changed, and
// what is kept of them must be copied.
func (c *Cluster) ConversationsOf(ctx context.Context, user types.NamespacedName,
	look func(all []v1alpha1.Conversation)) error {
	var one, all v1alpha1.ConversationList
	options := []client.ListOption{
		client.InNamespace(user.Namespace), client.MatchingFields{v1alpha1.IndexUserSettingsName: user.Name},
		client.UnsafeDisableDeepCopy,
	}
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	// Where what was written does not show in time, an old answer is better than none.
	if err := c.cached.List(waiting, &one, append(options, client.Limit(1))...); err != nil && waiting.Err() == nil {
		return err
	}
	if err := c.cache.List(ctx, &all, options...); err != nil {
		return err
	}
	look(all.Items)
	return nil
}

// PatchConversation with a merge patch.
func (c *Cluster) PatchConversation(ctx context.Context, conversation *v1alpha1.Conversation, patch []byte) error {
	return c.cached.Patch(ctx, conversation, client.RawPatch(types.MergePatchType, patch))
}

// DeleteConversation deletes this very one, with all that belongs to it. Without a UID it is
// whichever has the name.
func (c *Cluster) DeleteConversation(ctx context.Context, conversation *v1alpha1.Conversation) error {
	options := []client.DeleteOption{client.PropagationPolicy(metav1.DeletePropagationBackground)}
	if conversation.UID != "" {
		options = append(options, client.Preconditions{UID: &conversation.UID})
	}
	// Of what the cache does not have it may never see the deletion, for which every list would
	// wait.
	if err := c.cache.Get(ctx, client.ObjectKeyFromObject(conversation), &v1alpha1.Conversation{}); err != nil {
		options = append(options, client.DisableReadYourWritesConsistency)
	}
	return c.cached.Delete(ctx, conversation, options...)
}

// Agents that settings may name: the keys of the catalogue.
func (c *Cluster) Agents(ctx context.Context) ([]string, error) {
	catalogue, err := c.configMap(ctx, c.options.Agents)
	return slices.Sorted(maps.Keys(catalogue)), err
}

// Models whose prices are known.
func (c *Cluster) Models(ctx context.Context) ([]string, error) {
	prices, err := c.configMap(ctx, c.options.Models)
	if err != nil {
		return nil, err
	}
	models, _ := session.ParseModels(prices)
	return slices.Sorted(maps.Keys(models)), nil
}

// configMap of the operator's own namespace; empty where there is none.
func (c *Cluster) configMap(ctx context.Context, name string) (map[string]string, error) {
	configMap := &corev1.ConfigMap{}
	err := c.live.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: name}, configMap)
	return configMap.Data, client.IgnoreNotFound(err)
}
