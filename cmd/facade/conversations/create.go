package conversations

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/managed"
	"github.com/parley-dev/parley/cmd/facade/settings"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Post creates the conversation of a request, or joins it if it exists. If the body is invalid, the
// error lists all problems of the body. Otherwise, the error may list the problems that the API
// server found.
func (s *Service) Post(ctx context.Context, u *auth.User, body []byte, idempotencyKey string) (any, error) {
	request, details := rest.DecodeConversation(body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	if err := s.checkSettings(ctx, u, request.LLMModel); err != nil {
		return nil, err
	}
	if len(idempotencyKey) > session.MaxIdempotencyKey {
		return nil, answer.Invalid(rest.LongKey)
	}
	name, chosen := conversationID(u, request, idempotencyKey)
	return s.create(ctx, u, request, name, chosen)
}

// conversationID returns the name of the conversation. If the client sent an ID or an idempotency
// key, chosen is true, and a repeated request gets the same name.
func conversationID(u *auth.User, r *rest.ConversationRequest, idempotencyKey string) (name string, chosen bool) {
	switch {
	case r.ConversationID != nil:
		return *r.ConversationID, true
	case idempotencyKey != "":
		sum := sha256.Sum256([]byte(strings.Join([]string{u.Namespace, u.Name, idempotencyKey}, "\x00")))
		return hex.EncodeToString(sum[:16]), true
	}
	return newID(), false
}

// checkSettings checks that the user's settings are complete for a conversation with this model. If
// model is nil, the conversation uses the model in the settings. If the cached settings inherit
// values or seem incomplete, checkSettings reads the settings from the API server, because the
// cache may lack the client's latest write.
func (s *Service) checkSettings(ctx context.Context, u *auth.User, model *string) error {
	if u.Settings.Spec.InheritFrom == nil && settings.CheckComplete(u.Settings, model) == nil {
		return nil
	}
	live, err := settings.Live(ctx, s.Cluster, u)
	if err == nil {
		live, err = settings.Effective(ctx, s.Cluster, live)
	}
	if err != nil {
		return err
	}
	return settings.CheckComplete(live, model)
}

// create creates the conversation before its keys, replay and images, because the conversation owns
// these objects. The session starts when all of them exist. If the creation of one fails, the
// facade deletes the conversation, or keeps it so that a retry of the client creates the missing
// objects. The TTL deletes a conversation that stays incomplete, with its objects.
func (s *Service) create(ctx context.Context, u *auth.User, r *rest.ConversationRequest, name string,
	chosen bool) (any, error) {
	wanted, keys := build(u, name, r, time.Now())
	if err := managed.TooMany(keys, "body", "mcp_config"); err != nil {
		return nil, err
	}
	created := wanted.DeepCopy()
	if err := s.Cluster.CreateConversation(ctx, created); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return s.join(ctx, u, r, wanted, keys)
		}
		// The conversation may have been created despite the error. If the client did not choose an
		// ID, its retry would create a second conversation, so delete the first conversation.
		if !chosen && !cluster.IsRejected(err) {
			s.abandonUnknown(ctx, wanted)
		}
		if details := cluster.SecretConflicts(err, nil); len(details) > 0 {
			return nil, answer.Refuse(http.StatusConflict, details)
		}
		return nil, cluster.Refusal(ctx, err, nil)
	}
	if err := s.complete(ctx, created, r, keys); err != nil {
		// Delete the conversation if a part of it was rejected. Also delete it if the client chose no ID,
		// because its session may run although the client got an error. Otherwise keep it: a retry with
		// the same ID completes it. abandonUnknown deletes in the background, or returns false if too
		// many such deletions are running.
		rejected := answer.CodeOf(err) < http.StatusInternalServerError
		if rejected || !chosen && !s.abandonUnknown(ctx, created) {
			_ = s.abandon(ctx, created)
		}
		return nil, err
	}
	return response(created, v1alpha1.StateStarting), nil
}

func (s *Service) join(ctx context.Context, u *auth.User, r *rest.ConversationRequest, wanted *v1alpha1.Conversation,
	keys []managed.Key) (any, error) {
	stored, err := s.Cluster.Conversation(ctx, types.NamespacedName{Namespace: wanted.Namespace, Name: wanted.Name})
	switch {
	case apierrors.IsNotFound(err):
		return nil, answer.Unavailable // just deleted: a retry creates it
	case err != nil:
		return nil, cluster.Refusal(ctx, err, nil)
	case !stored.BelongsTo(u.Settings) || stored.DeletionTimestamp != nil:
		return nil, idTaken
	case hasOnlyID(wanted):
		return response(stored, stateOf(stored)), nil
	case !sameRequest(stored, wanted):
		return nil, idTaken
	}
	if stored.Annotations[v1alpha1.AnnotationIncomplete] != "" {
		if err := s.complete(ctx, stored, r, keys); err != nil {
			return nil, err
		}
	}
	return response(stored, stateOf(stored)), nil
}

// complete writes the keys, the replay and the images of a conversation, then removes the
// annotation that marks the conversation as incomplete.
func (s *Service) complete(ctx context.Context, c *v1alpha1.Conversation, r *rest.ConversationRequest,
	keys []managed.Key) error {
	if !hasParts(c) {
		return nil
	}
	if err := managed.Write(ctx, s.Cluster, keys, c, time.Now()); err != nil {
		return err
	}
	for _, configMap := range configMaps(c, r, time.Now()) {
		// An existing ConfigMap has the same content, because its name contains a hash of the
		// content.
		if err := s.Cluster.CreateConfigMap(ctx, configMap); err != nil && !apierrors.IsAlreadyExists(err) {
			return cluster.Refusal(ctx, err, nil)
		}
	}
	patch := map[string]any{
		"metadata": map[string]any{"uid": c.UID, "annotations": map[string]any{v1alpha1.AnnotationIncomplete: nil}},
		"spec":     map[string]any{"ttlAfterStopped": nil},
	}
	if err := s.patch(ctx, c, patch); err != nil {
		return cluster.Refusal(ctx, err, nil)
	}
	return nil
}

// configMaps returns ConfigMaps for the replay and the images of a request. Replays and images are
// too large for the Conversation.
func configMaps(c *v1alpha1.Conversation, r *rest.ConversationRequest, now time.Time) (list []*corev1.ConfigMap) {
	if ref := c.Spec.ReplayJSONRef; ref != nil && r.ReplayJSON != nil {
		replay := managed.ConfigMap(ref.Name, c, now)
		replay.Data = map[string]string{ref.Key: *r.ReplayJSON}
		list = append(list, replay)
	}
	for i, image := range c.Spec.Images {
		if ref := image.ConfigMapKeyRef; ref != nil {
			image := managed.ConfigMap(ref.Name, c, now)
			image.BinaryData = map[string][]byte{ref.Key: r.ImageURLs[i].Data}
			list = append(list, image)
		}
	}
	return list
}
