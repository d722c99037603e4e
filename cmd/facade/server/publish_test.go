package server

import (
	"context"
	"io"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// publisherAddress is an address that only this test uses.
const publisherAddress = "127.31.4.12"

// publishing is a cluster with one running conversation.
type publishing struct{ stopped }

func (c *publishing) CachedConversation(ctx context.Context, of types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation, err := c.stopped.CachedConversation(ctx, of)
	conversation.Status.State, conversation.Status.PodIP = v1alpha1.StateRunning, publisherAddress
	return conversation, err
}

func TestPublishRequestsReachTheSession(t *testing.T) {
	t.Parallel()
	const body = `{"title":"Fix it"}`
	sessionAt(t, publisherAddress, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || string(text) != body || r.Header.Get(session.TokenHeader) == "" {
			t.Errorf("the session gets %s %s %s", r.Method, r.URL, text)
		}
		if r.URL.Path == session.PushPath {
			w.WriteHeader(http.StatusFailedDependency)
			_, _ = io.WriteString(w, `{"detail":"the session has no repository, or no token for its git host"}`)
			return
		}
		_, _ = io.WriteString(w, `{"running":false,"url":"https://git.example.com/acme/site/pulls/1"}`)
	})
	b := newBrowser(t, &publishing{}, DefaultOptions())
	b.key = stubKey
	b.wants(http.StatusOK, http.MethodPost, "/api/conversations/talk/git/pull-request", body)
	b.wants(http.StatusFailedDependency, http.MethodPost, "/api/conversations/talk/git/push", body)
	b.key = ""
	b.wants(http.StatusUnauthorized, http.MethodPost, "/api/conversations/talk/git/push", body)
	stoppedSession := newBrowser(t, &stopped{}, DefaultOptions())
	stoppedSession.key = stubKey
	stoppedSession.wants(http.StatusConflict, http.MethodPost, "/api/conversations/talk/git/push", body)
}
