package rest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// maxIdempotencyKey is the longest Idempotency-Key; a UUID has 36 characters.
const maxIdempotencyKey = 255

func (s *server) postConversation(ctx context.Context, u *user, r request) answer {
	fields, details := decodeBody(r.body)
	if len(details) > 0 {
		return invalidRequest(details)
	}
	check := func(fields map[string]json.RawMessage) []Detail {
		request, details := decodeConversation(fields)
		if len(details) > 0 {
			return details
		}
		err := s.cluster.createConversation(ctx, buildConversation(u, newID(), request, s.now()), true)
		if err == nil {
			return nil
		}
		return detailsOf(failed(ctx, err, nil))
	}
	request, details := decodeConversation(fields)
	if len(details) > 0 {
		return invalidRequest(allDetails(fields, details, check))
	}
	if refused := s.settingsSuffice(ctx, u); refused != nil {
		return *refused
	}
	idempotencyKey := r.Header.Get("Idempotency-Key")
	if len(idempotencyKey) > maxIdempotencyKey {
		return invalidRequest([]Detail{{"string_too_long", location{"header", "idempotency-key"}, "String should have at most 255 characters"}})
	}
	name, chosen := conversationID(u, request, idempotencyKey)
	result := s.createConversation(ctx, u, request, name, chosen)
	if result.code == http.StatusUnprocessableEntity {
		return invalidRequest(allDetails(fields, detailsOf(result), check))
	}
	return result
}

// conversationID is the name of the conversation, and whether the client can name it again: it gave the id, or a key
// from which the id follows.
func conversationID(u *user, r *ConversationRequest, idempotencyKey string) (name string, chosen bool) {
	switch {
	case r.ConversationID != nil:
		return *r.ConversationID, true
	case idempotencyKey != "":
		sum := sha256.Sum256([]byte(strings.Join([]string{u.namespace, u.name, idempotencyKey}, "\x00")))
		return hex.EncodeToString(sum[:16]), true
	}
	return newID(), false
}

// keyless are model providers that authenticate by other means than a key, or run on the user's own machines.
var keyless = []string{"bedrock/", "hosted_vllm/", "llamafile/", "lm_studio/", "ollama/", "ollama_chat/", "sagemaker/", "vertex_ai/", "vertex_ai_beta/", "vllm/", "xinference/"}

// settingsSuffice says what a session would lack. The cache may be behind what the client stored a moment ago, so only what the
// API server confirms is refused.
func (s *server) settingsSuffice(ctx context.Context, u *user) *answer {
	if lacking(u.settings) == nil {
		return nil
	}
	live, err := s.cluster.settings(ctx, u.key())
	switch {
	case apierrors.IsNotFound(err):
		return &unauthorized
	case err != nil:
		refused := failed(ctx, err, nil)
		return &refused
	}
	return lacking(live)
}

func lacking(settings *v1alpha1.UserSettings) *answer {
	var refused answer
	switch {
	case nothingStored(settings):
		refused = complaint("CONFIGURATION$SETTINGS_NOT_FOUND", "Settings not found: store them with POST /api/settings first")
	case needsKey(&settings.Spec) && settings.Spec.LLMAPIKeyRef == nil:
		refused = complaint("STATUS$ERROR_LLM_AUTHENTICATION", "The model needs a key: store llm_api_key with POST /api/settings")
	default:
		return nil
	}
	return &refused
}

func needsKey(spec *v1alpha1.UserSettingsSpec) bool {
	// With an address of its own, only the user can tell.
	if spec.LLMModel == nil || spec.LLMBaseURL != nil {
		return false
	}
	for _, provider := range keyless {
		if strings.HasPrefix(*spec.LLMModel, provider) {
			return false
		}
	}
	return true
}

// createConversation creates the conversation before its keys and replay, which it then owns: it starts when they are there,
// and whatever is left half done goes away with it or is completed by the client's next try.
func (s *server) createConversation(ctx context.Context, u *user, r *ConversationRequest, name string, chosen bool) answer {
	wanted := buildConversation(u, name, r, s.now())
	if r.MCPConfig != nil && len(conversationKeys(name).ofTools(r.MCPConfig)) > maxKeys {
		return invalidRequest([]Detail{{"too_long", location{"body", "mcp_config"}, "A request may bring at most 256 keys"}})
	}
	created := wanted.DeepCopy()
	err := s.cluster.createConversation(ctx, created, false)
	switch {
	case apierrors.IsAlreadyExists(err):
		return s.joinConversation(ctx, r, wanted)
	case len(secretsInTheWay(err, nil)) > 0:
		return refusal(http.StatusConflict, secretsInTheWay(err, nil))
	case err != nil:
		return failed(ctx, err, nil)
	}
	if refused := s.complete(ctx, created, r); refused != nil {
		if !chosen || refused.code < http.StatusInternalServerError {
			s.abandon(ctx, created)
		}
		return *refused
	}
	return ok(response(created, v1alpha1.StateStarting))
}

// joinConversation answers a request for a conversation that exists.
func (s *server) joinConversation(ctx context.Context, r *ConversationRequest, wanted *v1alpha1.Conversation) answer {
	stored, err := s.cluster.conversation(ctx, types.NamespacedName{Namespace: wanted.Namespace, Name: wanted.Name})
	switch {
	case apierrors.IsNotFound(err):
		return unavailable() // deleted this moment: the next try creates it
	case err != nil:
		return failed(ctx, err, nil)
	case stored.Spec.UserSettingsName != wanted.Spec.UserSettingsName || stored.DeletionTimestamp != nil:
		return idTaken
	case saysOnlyWhich(wanted):
		return ok(response(stored, stateOf(stored)))
	case !sameRequest(stored, wanted):
		return idTaken
	}
	if stored.Annotations[annotationIncomplete] != "" {
		if refused := s.complete(ctx, stored, r); refused != nil {
			return *refused
		}
	}
	return ok(response(stored, stateOf(stored)))
}

// complete writes the keys and the replay of a conversation, and then takes its mark away.
func (s *server) complete(ctx context.Context, c *v1alpha1.Conversation, r *ConversationRequest) *answer {
	if !hasParts(c) {
		return nil
	}
	if r.MCPConfig != nil {
		for _, key := range conversationKeys(c.Name).ofTools(r.MCPConfig) {
			secret := buildKeySecret(key, c, "Conversation", v1alpha1.LabelConversation, s.now())
			if refused := s.writeSecret(ctx, secret); refused != nil {
				return refused
			}
		}
	}
	if c.Spec.ReplayJSONRef != nil && r.ReplayJSON != nil {
		// One that exists has the same content, for its name is made of that.
		err := s.cluster.createConfigMap(ctx, buildReplay(*c.Spec.ReplayJSONRef, *r.ReplayJSON, c, s.now()))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			refused := failed(ctx, err, nil)
			return &refused
		}
	}
	patch := map[string]any{
		"metadata": map[string]any{"uid": c.UID, "annotations": map[string]any{annotationIncomplete: nil}},
		"spec":     map[string]any{"ttlAfterStopped": nil},
	}
	if err := s.patch(ctx, c, patch); err != nil {
		refused := failed(ctx, err, nil)
		return &refused
	}
	return nil
}

// abandon removes a conversation that nobody will ask for again. If that fails too, it goes when its time is over.
func (s *server) abandon(ctx context.Context, c *v1alpha1.Conversation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = s.cluster.deleteConversation(ctx, c)
}

func (s *server) patch(ctx context.Context, c *v1alpha1.Conversation, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return s.cluster.patchConversation(ctx, c, data)
}

func response(c *v1alpha1.Conversation, state v1alpha1.ConversationState) ConversationResponse {
	return ConversationResponse{Status: "ok", ConversationID: c.Name, ConversationStatus: string(state)}
}

// stateOf is STARTING until the operator has seen the conversation.
func stateOf(c *v1alpha1.Conversation) v1alpha1.ConversationState {
	if c.Status.State == "" {
		return v1alpha1.StateStarting
	}
	return c.Status.State
}
