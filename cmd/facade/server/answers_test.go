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

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

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
