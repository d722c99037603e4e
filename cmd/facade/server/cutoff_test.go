package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// large is an archive with an event of 4 MiB.
type large struct{ failing }

func (large) Events(_ context.Context, _ string, _, from int, visit func(int, json.RawMessage) bool) error {
	if from == 0 {
		visit(0, json.RawMessage(`"`+strings.Repeat("x", 4<<20)+`"`))
	}
	return nil
}

// Each byte from the archive costs CPU time. A user who reads large archived events again and again
// must therefore wait, as a user does who reads from a running session.
func TestAUserWhoReadsTooMuchFromTheArchiveHasToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := DefaultOptions()
		options.Archive = large{}
		facade := New(&stopped{}, options, prometheus.NewRegistry())
		read := func(times int) time.Duration {
			began := time.Now()
			for range times {
				request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/conversations/talk/events",
					http.NoBody)
				request.Header.Set(rest.KeyHeader, stubKey)
				response := httptest.NewRecorder()
				if facade.ServeHTTP(response, request); response.Code != http.StatusOK {
					t.Fatalf("the facade answers %d", response.Code)
				}
			}
			return time.Since(began)
		}
		if took := read(10); took > 0 {
			t.Errorf("40 MiB took %s", took)
		}
		if took := read(20); took < 10*time.Second {
			t.Errorf("80 more MiB took only %s", took)
		}
	})
}
