// Package conversations creates, shows, stops, starts and deletes conversations.
package conversations

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Service manages the conversations of all users.
type Service struct {
	Cluster cluster.API
	// deletions is the number of deletions that abandonUnknown is running in the background.
	deletions atomic.Int64
}

var (
	notFound = answer.Refuse(http.StatusNotFound, "Conversation not found")
	// idTaken reveals nothing about the existing conversation, because it may belong to another
	// user.
	idTaken = answer.Refuse(http.StatusConflict, "A different conversation with this ID exists: "+
		"choose another ID. If the conversation is yours, send only the ID to join it")
)

// own finds a conversation of the user. It returns "not found" for conversations of other users.
func own(ctx context.Context, u *auth.User, id string, find func(context.Context,
	types.NamespacedName) (*v1alpha1.Conversation, error)) (*v1alpha1.Conversation, error) {
	if !rest.ConversationID.MatchString(id) {
		return nil, notFound
	}
	c, err := find(ctx, types.NamespacedName{Namespace: u.Namespace, Name: id})
	switch {
	case apierrors.IsNotFound(err) || err == nil && !c.BelongsTo(u.Settings):
		return nil, notFound
	case err != nil:
		return nil, cluster.Refusal(ctx, err, nil)
	}
	return c, nil
}

// Find reads a conversation of the user from the cache, or from the API server if the cache lacks
// it.
func (s *Service) Find(ctx context.Context, u *auth.User, id string) (*v1alpha1.Conversation, error) {
	c, err := own(ctx, u, id, s.Cluster.CachedConversation)
	if errors.Is(err, notFound) {
		// Ask the API server, because the cache may still lack a conversation that another facade
		// has just created.
		c, err = s.Read(ctx, u, id)
	}
	return c, err
}

// Read reads a conversation of the user from the API server.
func (s *Service) Read(ctx context.Context, u *auth.User, id string) (*v1alpha1.Conversation, error) {
	return own(ctx, u, id, s.Cluster.Conversation)
}

// Get returns a conversation. For an unknown conversation it returns null, as OpenHands does.
func (s *Service) Get(ctx context.Context, u *auth.User, id string) (any, error) {
	c, err := s.Find(ctx, u, id)
	switch {
	case errors.Is(err, notFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return view(c), nil
}

// Delete deletes a conversation and its dependents. It returns false for an unknown conversation,
// as OpenHands does.
func (s *Service) Delete(ctx context.Context, u *auth.User, id string) (any, error) {
	_, err := s.change(ctx, u, id, s.Cluster.DeleteConversation)
	if errors.Is(err, notFound) {
		return false, nil
	}
	return true, err
}

// SetTitle changes the title of a conversation.
func (s *Service) SetTitle(ctx context.Context, u *auth.User, id string, body []byte) (any, error) {
	title, details := rest.DecodeTitle(body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	_, err := s.change(ctx, u, id, func(ctx context.Context, c *v1alpha1.Conversation) error {
		return s.patch(ctx, c, map[string]any{"metadata": map[string]any{"uid": c.UID,
			"annotations": map[string]any{v1alpha1.AnnotationTitle: title}}})
	})
	if errors.Is(err, notFound) {
		return nil, &answer.Refusal{Code: http.StatusNotFound, Body: map[string]string{
			"status": "error", "message": "Conversation not found", "msg_id": "CONVERSATION$NOT_FOUND",
		}}
	}
	return true, err
}

// change reads a conversation of the user and calls do() with it. It returns "not found"
// if the conversation is deleted or recreated after the read.
func (s *Service) change(ctx context.Context, u *auth.User, id string,
	do func(context.Context, *v1alpha1.Conversation) error) (*v1alpha1.Conversation, error) {
	c, err := s.Read(ctx, u, id)
	if err != nil {
		return nil, err
	}
	return c, ChangeRefusal(ctx, do(ctx, c))
}

// ChangeRefusal returns the response to the error of a change.
func ChangeRefusal(ctx context.Context, err error) error {
	refusal, refused := errors.AsType[*answer.Refusal](err)
	switch {
	case err == nil:
		return nil
	case refused:
		return refusal
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return notFound
	}
	return cluster.Refusal(ctx, err, nil)
}

// Stop stops a conversation and keeps its workspace. The response contains the previous state.
func (s *Service) Stop(ctx context.Context, u *auth.User, id string) (any, error) {
	before, message := v1alpha1.StateStopped, "Conversation was not running"
	stopped, err := s.setLifecycle(ctx, u, id, func(c *v1alpha1.Conversation) (map[string]any,
		v1alpha1.ConversationState) {
		if before = stateOf(c); before != v1alpha1.StateStopped {
			message = "Conversation stopped successfully"
		}
		return map[string]any{cluster.SuspendField: true}, before
	})
	if stopped != nil {
		stopped.Message = &message
	}
	return stopped, err
}

// Start starts a conversation that was stopped or has ended.
func (s *Service) Start(ctx context.Context, u *auth.User, id string) (any, error) {
	return s.setLifecycle(ctx, u, id, func(c *v1alpha1.Conversation) (map[string]any, v1alpha1.ConversationState) {
		if stateOf(c) != v1alpha1.StateStopped && !c.Spec.Suspend {
			return nil, stateOf(c) // the conversation is starting or running
		}
		return startSpec(c), v1alpha1.StateStarting
	})
}

// startSpec returns the fields of the spec that start a stopped conversation.
func startSpec(c *v1alpha1.Conversation) map[string]any {
	spec := map[string]any{cluster.SuspendField: false}
	if c.Status.Reason != v1alpha1.ReasonSuspended && stateOf(c) == v1alpha1.StateStopped {
		spec[cluster.RestartField] = c.NextRestart(time.Now()) // the session ended for a reason other than suspend
	}
	return spec
}

func (s *Service) setLifecycle(ctx context.Context, u *auth.User, id string, change func(*v1alpha1.Conversation) (
	map[string]any, v1alpha1.ConversationState)) (*rest.ConversationResponse, error) {
	var state v1alpha1.ConversationState
	c, err := s.change(ctx, u, id, func(ctx context.Context, c *v1alpha1.Conversation) error {
		var spec map[string]any
		if spec, state = change(c); spec == nil {
			return nil
		}
		return s.patchSpec(ctx, c, map[string]any{"uid": c.UID}, spec)
	})
	if err != nil {
		return nil, err
	}
	return response(c, state), nil
}

// patchSpec patches fields of the spec. It refuses to change a field that a GitOps tool would
// change back. The patch fails if its metadata does not match, for example after the conversation
// was recreated (its UID changed).
func (s *Service) patchSpec(ctx context.Context, c *v1alpha1.Conversation, metadata, spec map[string]any) error {
	for field, value := range spec {
		if manager := c.GitOpsManager(field); manager != "" && (field != cluster.SuspendField || c.Spec.Suspend != value) {
			return answer.Refuse(http.StatusConflict, manager+" manages the field spec."+field+
				" of this conversation: change the field at its source")
		}
	}
	return s.patch(ctx, c, map[string]any{"metadata": metadata, "spec": spec})
}

func (s *Service) patch(ctx context.Context, c *v1alpha1.Conversation, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return s.Cluster.PatchConversation(ctx, c, data)
}

func response(c *v1alpha1.Conversation, state v1alpha1.ConversationState) *rest.ConversationResponse {
	return &rest.ConversationResponse{Status: "ok", ConversationID: c.Name, ConversationStatus: string(state)}
}

// stateOf returns STARTING until the operator has seen a new or restarted conversation. A client
// that reads STOPPED right after a start would give up.
func stateOf(c *v1alpha1.Conversation) v1alpha1.ConversationState {
	if c.Status.State == "" || c.Status.State == v1alpha1.StateStopped && startsAgain(c) {
		return v1alpha1.StateStarting
	}
	return c.Status.State
}

// startsAgain reports whether a restart was requested and the operator has not seen the request
// yet.
func startsAgain(c *v1alpha1.Conversation) bool {
	if c.Spec.Suspend || c.Status.ObservedGeneration >= c.Generation {
		return false
	}
	at := c.Spec.RestartAt
	return c.Status.Reason == v1alpha1.ReasonSuspended || at != nil && !at.Equal(c.Status.RestartedAt) &&
		!at.After(time.Now())
}
