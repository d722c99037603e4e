package cluster

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// UsersByKeyHash returns the UserSettings whose session key has this hash, from the cache. The
// caller must not modify them.
func (c *Cluster) UsersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	var list v1alpha1.UserSettingsList
	err := c.cache.List(ctx, &list, client.MatchingFields{indexKeyHash: hash}, client.UnsafeDisableDeepCopy)
	return list.Items, err
}

// UsersByOwner returns the UserSettings with this owner, from the cache. The caller must not modify
// them.
func (c *Cluster) UsersByOwner(ctx context.Context, username string) ([]v1alpha1.UserSettings, error) {
	var list v1alpha1.UserSettingsList
	err := c.cache.List(ctx, &list, client.MatchingFields{indexOwner: username}, client.UnsafeDisableDeepCopy)
	return list.Items, err
}

// Audience is the audience of Kubernetes tokens for the HTTP API.
const Audience = "parley"

// ReviewToken asks the API server which user a token belongs to. The username is empty if the token
// is not valid, or not issued for Audience.
func (c *Cluster) ReviewToken(ctx context.Context, token string) (username string, groups []string, err error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token,
		Audiences: []string{Audience}}}
	if err := c.live.Create(ctx, review); err != nil {
		return "", nil, err
	}
	// Check the audiences in the response, because an authenticator that ignores the requested
	// audiences also accepts tokens for other audiences.
	if !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, Audience) {
		return "", nil, nil
	}
	return review.Status.User.Username, review.Status.User.Groups, nil
}

// Settings reads settings from the API server.
func (c *Cluster) Settings(ctx context.Context, key types.NamespacedName) (*v1alpha1.UserSettings, error) {
	settings := &v1alpha1.UserSettings{}
	return settings, c.live.Get(ctx, key, settings)
}

// Class reads a SessionClass from the API server. A missing class has no limits.
func (c *Cluster) Class(ctx context.Context, name string) (*v1alpha1.SessionClassSpec, error) {
	class := &v1alpha1.SessionClass{}
	return &class.Spec, client.IgnoreNotFound(c.live.Get(ctx, types.NamespacedName{Name: name}, class))
}

// ApplyOptions are the options of ApplySettings.
type ApplyOptions struct{ DryRun, Force bool }

// ApplySettings applies a spec to a UserSettings object, and returns the new spec. It fails with a
// conflict if the object changed after the caller read it. Otherwise two clients could remove each
// other's fields.
func (c *Cluster) ApplySettings(ctx context.Context, over *v1alpha1.UserSettings, spec map[string]any,
	options ApplyOptions) (map[string]any, error) {
	var apply []client.ApplyOption
	if options.DryRun {
		apply = append(apply, client.DryRunAll)
	}
	if options.Force {
		apply = append(apply, client.ForceOwnership)
	}
	// The client decodes the response into this object. The object is unstructured, because the
	// list entries of a typed object would keep fields of the request that the response lacks.
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

// Annotate sets an annotation of a UserSettings object. It fails with a conflict if the object
// changed after the caller read it.
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

// WriteSecret creates or replaces a Secret. It retries because the operator may delete an unused
// Secret between Create and Update.
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

// CreateConfigMap creates a ConfigMap.
func (c *Cluster) CreateConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error {
	return c.live.Create(ctx, configMap)
}

// CreateConversation creates a conversation, and sets the argument to the object that the API
// server stored.
func (c *Cluster) CreateConversation(ctx context.Context, conversation *v1alpha1.Conversation) error {
	return c.cached.Create(ctx, conversation)
}

// Conversation reads a conversation from the API server.
func (c *Cluster) Conversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation := &v1alpha1.Conversation{}
	return conversation, c.live.Get(ctx, key, conversation)
}

// CachedConversation reads a conversation from the cache, without the fields that the function
// strip removes.
func (c *Cluster) CachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation := &v1alpha1.Conversation{}
	waiting, cancel := context.WithTimeout(ctx, cacheWait)
	defer cancel()
	err := c.cached.Get(waiting, key, conversation)
	if waiting.Err() != nil {
		err = c.cache.Get(ctx, key, conversation) // a stale object is better than none
	}
	return conversation, err
}

// ConversationsOf calls look() with the conversations of a user, from the cache. look
// must not modify the conversations, and must copy the parts that it needs later.
func (c *Cluster) ConversationsOf(ctx context.Context, user *v1alpha1.UserSettings,
	look func(all []v1alpha1.Conversation)) error {
	var one, all v1alpha1.ConversationList
	options := []client.ListOption{
		client.InNamespace(user.Namespace), client.MatchingFields{v1alpha1.IndexUserSettingsName: user.Name},
		client.UnsafeDisableDeepCopy,
	}
	waiting, cancel := context.WithTimeout(ctx, cacheWait)
	defer cancel()
	// This read waits until the facade's own writes are in the cache; its result is not used. After
	// a timeout, continue: a stale response is better than no response.
	if err := c.cached.List(waiting, &one, append(options, client.Limit(1))...); err != nil && waiting.Err() == nil {
		return err
	}
	if err := c.cache.List(ctx, &all, options...); err != nil {
		return err
	}
	own := 0
	for i := range all.Items {
		if all.Items[i].BelongsTo(user) {
			if own != i { // avoid most copies: a Conversation is large, and almost all belong to the user
				all.Items[own] = all.Items[i]
			}
			own++
		}
	}
	look(all.Items[:own])
	return nil
}

// PatchConversation applies a merge patch.
func (c *Cluster) PatchConversation(ctx context.Context, conversation *v1alpha1.Conversation, patch []byte) error {
	return c.cached.Patch(ctx, conversation, client.RawPatch(types.MergePatchType, patch))
}

// DeleteConversation deletes a conversation and its dependents. If the argument has a UID, it
// deletes only the object with this UID.
func (c *Cluster) DeleteConversation(ctx context.Context, conversation *v1alpha1.Conversation) error {
	options := []client.DeleteOption{client.PropagationPolicy(metav1.DeletePropagationBackground)}
	if conversation.UID != "" {
		options = append(options, client.Preconditions{UID: &conversation.UID})
	}
	// If the object is not in the cache, the cache may never receive its deletion. Without this
	// option, every later list would wait for that deletion.
	if err := c.cache.Get(ctx, client.ObjectKeyFromObject(conversation), &v1alpha1.Conversation{}); err != nil {
		options = append(options, client.DisableReadYourWritesConsistency)
	}
	return c.cached.Delete(ctx, conversation, options...)
}

// Agents returns the names of the agents in the catalogue. A UserSettings object may name one of
// these agents.
func (c *Cluster) Agents(ctx context.Context) ([]string, error) {
	catalogue, err := c.configMap(ctx, c.options.Agents)
	return slices.Sorted(maps.Keys(catalogue)), err
}

// Models lists the models with known prices that users of this agent can choose, as provider/model.
// Models that are available only through OpenAI's responses API are listed only for agents that use
// this API.
func (c *Cluster) Models(ctx context.Context, agent string) ([]string, error) {
	agents, err := c.configMap(ctx, c.options.Agents)
	if err != nil {
		return nil, err
	}
	var entry session.Agent
	_ = yaml.Unmarshal([]byte(agents[agent]), &entry) // ignore an invalid entry: no session can use it
	prices, err := c.configMap(ctx, c.options.Models)
	if err != nil {
		return nil, err
	}
	models, _ := session.ParseModels(prices)
	var names []string
	for name, model := range models {
		if model.API == session.APIResponses && !entry.Responses {
			continue
		}
		if !strings.Contains(name, "/") {
			provider := v1alpha1.ModelProvider(name)
			if provider == "" {
				continue // settings can use this model only with a base URL
			}
			name = provider + "/" + name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// configMap returns the data of a ConfigMap in the operator's namespace. The data is empty if the
// ConfigMap does not exist.
func (c *Cluster) configMap(ctx context.Context, name string) (map[string]string, error) {
	configMap := &corev1.ConfigMap{}
	err := c.live.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: name}, configMap)
	return configMap.Data, client.IgnoreNotFound(err)
}
