package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

// downloadAddress is an address that only this test uses.
const downloadAddress = "127.31.4.13"

// downloading is a cluster with one running conversation.
type downloading struct{ stopped }

func (c *downloading) CachedConversation(ctx context.Context, of types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation, err := c.stopped.CachedConversation(ctx, of)
	conversation.Status.State, conversation.Status.PodIP = v1alpha1.StateRunning, downloadAddress
	return conversation, err
}

// A session with an image of the user may send its workspace as fast as the network allows.
func TestADownloadWaitsIfItsUserReadsTooMuch(t *testing.T) {
	t.Parallel()
	sessionAt(t, downloadAddress, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	options := DefaultOptions()
	options.SigningKeyDir = signingKey(t)
	facade := New(&downloading{}, options, prometheus.NewRegistry())
	download := func() (complete bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		defer func() {
			if err, _ := recover().(error); err != nil && !errors.Is(err, http.ErrAbortHandler) {
				panic(err)
			}
		}()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/conversations/talk/zip-directory", http.NoBody)
		r.Header.Set(rest.KeyHeader, stubKey)
		response := httptest.NewRecorder()
		facade.ServeHTTP(response, r)
		return response.Code == http.StatusOK && response.Body.Len() == 1<<20
	}
	if !download() {
		t.Error("the first download is not complete")
	}
	reads := facade.server.budget.Hold(string(stubSettings().UID), limits.Responses)
	for range 3 {
		reads.Charge(64 << 20)
	}
	if download() {
		t.Error("a user who has read too much can still download")
	}
}
