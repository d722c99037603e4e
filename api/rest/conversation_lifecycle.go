package rest

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func (s *server) getConversation(ctx context.Context, u *user, r request) answer {
	c, refused := s.own(ctx, u, r.PathValue("id"), s.cluster.cachedConversation)
	if refused != nil && refused.code == http.StatusNotFound {
		// Another facade may have created it a moment ago.
		c, refused = s.own(ctx, u, r.PathValue("id"), s.cluster.conversation)
	}
	if refused != nil {
		return *refused
	}
	return ok(conversationView(c))
}

// own finds a conversation of the user. One of somebody else is answered like one that is not there.
func (s *server) own(ctx context.Context, u *user, id string, find func(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error)) (*v1alpha1.Conversation, *answer) {
	if !conversationName.MatchString(id) {
		return nil, &noConversation
	}
	c, err := find(ctx, types.NamespacedName{Namespace: u.namespace, Name: id})
	switch {
	case apierrors.IsNotFound(err) || err == nil && c.Spec.UserSettingsName != u.name:
		return nil, &noConversation
	case err != nil:
		refused := failed(ctx, err, nil)
		return nil, &refused
	}
	return c, nil
}

func (s *server) deleteConversation(ctx context.Context, u *user, r request) answer {
	c, refused := s.own(ctx, u, r.PathValue("id"), s.cluster.conversation)
	if refused != nil {
		return *refused
	}
	err := s.cluster.deleteConversation(ctx, c)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // gone, or another one by now
		return noConversation
	case err != nil:
		return failed(ctx, err, nil)
	}
	return ok(response(c, v1alpha1.StateStopped))
}

func (s *server) stopConversation(ctx context.Context, u *user, r request) answer {
	return s.setLifecycle(ctx, u, r, func(*v1alpha1.Conversation) (map[string]any, v1alpha1.ConversationState) {
		return map[string]any{"suspend": true}, v1alpha1.StateStopped
	})
}

func (s *server) startConversation(ctx context.Context, u *user, r request) answer {
	return s.setLifecycle(ctx, u, r, func(c *v1alpha1.Conversation) (map[string]any, v1alpha1.ConversationState) {
		spec := map[string]any{"suspend": false}
		switch {
		case stateOf(c) != v1alpha1.StateStopped && !c.Spec.Suspend:
			return nil, stateOf(c) // it is under way
		case c.Status.Reason != v1alpha1.ReasonSuspended && stateOf(c) == v1alpha1.StateStopped:
			// It ended by itself; each other time starts it once more, unless it is in the future. Times have whole seconds.
			at := metav1.NewTime(s.now().Truncate(time.Second))
			for at.Equal(c.Spec.RestartAt) || at.Equal(c.Status.RestartedAt) {
				at = metav1.NewTime(at.Add(-time.Second))
			}
			spec["restartAt"] = at
		}
		return spec, v1alpha1.StateStarting
	})
}

// setLifecycle changes how a conversation lives. The UID keeps the change from another one that took the name meanwhile.
func (s *server) setLifecycle(ctx context.Context, u *user, r request, change func(*v1alpha1.Conversation) (map[string]any, v1alpha1.ConversationState)) answer {
	c, refused := s.own(ctx, u, r.PathValue("id"), s.cluster.conversation)
	if refused != nil {
		return *refused
	}
	spec, state := change(c)
	if spec == nil {
		return ok(response(c, state))
	}
	err := s.patch(ctx, c, map[string]any{"metadata": map[string]any{"uid": c.UID}, "spec": spec})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return noConversation
	case err != nil:
		return failed(ctx, err, nil)
	}
	return ok(response(c, state))
}
