package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// silent is a cluster that answers nobody who asks for settings.
type silent struct{ stubCluster }

func (c *silent) Settings(ctx context.Context, _ types.NamespacedName) (*v1alpha1.UserSettings, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestWhoAsksWhoTheyAreIsAnsweredInTime(t *testing.T) {
	for _, call := range [][2]string{{http.MethodGet, "/api/session"}, {http.MethodPost, "/api/signin"}} {
		options := DefaultOptions()
		options.SigningKeyDir = signingKey(t)
		inBubbleWith(t, &silent{}, options, func(client *http.Client) {
			request, err := http.NewRequest(call[0], "http://facade"+call[1], strings.NewReader(`{"key": "`+stubKey+`"}`))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Origin", "http://facade")
			if call[0] == http.MethodGet {
				request.Header.Set(rest.KeyHeader, stubKey)
			}
			begun := time.Now()
			response, err := client.Do(request)
			if err != nil {
				t.Errorf("%s: after %s: %v", call[1], time.Since(begun), err)
				return
			}
			_ = response.Body.Close()
			if took := time.Since(begun); response.StatusCode != http.StatusServiceUnavailable || took > requestTimeout+time.Second {
				t.Errorf("%s: it is answered %d after %s", call[1], response.StatusCode, took)
			}
		})
	}
}

// unheard is a cluster whose answers are lost for a while.
type unheard struct {
	stubCluster
	deletions int
}

func (c *unheard) PatchConversation(context.Context, *v1alpha1.Conversation, []byte) error {
	return errors.New("the connection was lost")
}

func (c *unheard) DeleteConversation(context.Context, *v1alpha1.Conversation) error {
	if c.deletions++; c.deletions < 3 {
		return errors.New("the connection was lost")
	}
	return nil
}

// Its session may run although nobody was told its id.
func TestAConversationThatNobodyWasToldOfIsRemovedForSure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &unheard{}
		r := httptest.NewRequest(http.MethodPost, "/api/conversations", strings.NewReader(`{"mcp_config": {"stdio_servers": [{"name": "a", "command": "a", "env": {"KEY": "k"}}]}}`))
		r.Header.Set(rest.KeyHeader, stubKey)
		w := httptest.NewRecorder()
		handler(c).ServeHTTP(w, r)
		time.Sleep(time.Minute) // of the bubble's
		synctest.Wait()
		if w.Code != http.StatusServiceUnavailable || c.deletions != 3 {
			t.Errorf("it is answered %d, and %d deletions were tried", w.Code, c.deletions)
		}
	})
}
