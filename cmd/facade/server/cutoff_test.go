package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// stopped is a cluster with one finished conversation.
type stopped struct{ stubCluster }

func (c *stopped) CachedConversation(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation := &v1alpha1.Conversation{}
	conversation.Namespace, conversation.Name, conversation.UID = "default", "talk", "u"
	conversation.Spec.UserSettingsName, conversation.Status.State = "ada", v1alpha1.StateStopped
	return conversation, nil
}

// failing is an archive that fails after some events.
type failing struct{ after int }

func (f failing) Events(_ context.Context, _ string, _, from int, visit func(int, json.RawMessage) bool) error {
	for id := from; id < f.after; id++ {
		if !visit(id, json.RawMessage(`{"id":0}`)) {
			return nil
		}
	}
	return errors.New("the disk is gone")
}

func (f failing) Position(context.Context, string) (session.ArchivePosition, error) {
	return session.ArchivePosition{}, errors.New("the disk is gone")
}

func (f failing) Ending(context.Context, string) (*session.Ending, error) {
	return nil, errors.New("the disk is gone")
}

// A truncated response must not look complete. If the archive fails before the first byte of the
// response, the client gets the error.
func TestATruncatedResponseIsVisiblyIncomplete(t *testing.T) {
	for _, path := range []string{"/trajectory", "/trajectory?earlier=1", "/events/stream"} {
		for _, after := range []int{0, 3} {
			options := DefaultOptions()
			options.Archive = failing{after}
			server := httptest.NewUnstartedServer(New(&stopped{}, options, prometheus.NewRegistry()))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.Start()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/conversations/talk"+path,
				http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set(rest.KeyHeader, stubKey)
			response, err := http.DefaultClient.Do(request)
			code := 0
			if err == nil {
				code = response.StatusCode
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			switch {
			case after == 0 && (code != http.StatusServiceUnavailable || err != nil):
				t.Errorf("%s: before the first byte the answer is %d, %v", path, code, err)
			case after > 0 && err == nil:
				t.Errorf("%s: a truncated answer looks complete, with status %d", path, code)
			}
			server.Close()
		}
	}
}
