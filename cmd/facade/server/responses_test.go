package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// refusing is a cluster that refuses all settings with an error about one field.
type refusing struct {
	stubCluster
	field *field.Path
}

func (c *refusing) ApplySettings(context.Context, *v1alpha1.UserSettings, map[string]any,
	cluster.ApplyOptions) (map[string]any, error) {
	return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "UserSettings"}, "ada", field.ErrorList{field.Invalid(c.field,
		"it", "should match '^a$'")})
}

func complaints(t *testing.T, w *httptest.ResponseRecorder) (list []string) {
	t.Helper()
	var told rest.Invalid
	if err := json.Unmarshal(w.Body.Bytes(), &told); err != nil || w.Code != http.StatusUnprocessableEntity {
		t.Errorf("the answer is %d %s", w.Code, w.Body)
	}
	for _, detail := range told.Detail {
		list = append(list, strings.Trim(fmt.Sprint(detail.Loc), "[]"))
	}
	return list
}

func TestErrorsNameTheInvalidFieldOfTheRequest(t *testing.T) {
	secrets := field.NewPath("spec", "secretsStore")
	secret, token := secrets.Child("customSecrets").Index(0), secrets.Child("providerTokens").Index(0)
	for _, c := range []struct {
		path, body string
		wrong      *field.Path
		want       string
	}{
		{"/api/secrets", `{"name": "not a name", "value": "v"}`, secret.Child("name"), "body name"},
		{"/api/secrets", `{"name": "NAME", "value": "v"}`, secret.Child("name"), "body name"},
		{"/api/secrets", `{"name": "NAME", "value": "v", "description": "d"}`, secret.Child("description"),
			"body description"},
		{"/api/secrets", `{"name": "NAME", "value": "v"}`, secrets.Child("customSecrets"), "body"},
		{"/api/add-git-providers", `{"provider_tokens": {"github": {"token": "t", "host": "!"}}}`, token.Child("host"),
			"body provider_tokens github host"},
	} {
		r := httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body))
		r.Header.Set(rest.KeyHeader, stubKey)
		w := httptest.NewRecorder()
		handler(&refusing{field: c.wrong}).ServeHTTP(w, r)
		if got := complaints(t, w); len(got) == 0 || got[0] != c.want {
			t.Errorf("%s %s: errors at %q, want %s", c.path, c.body, got, c.want)
		}
	}
}

func TestTheReverseParameterAcceptsEverySpellingOfABoolean(t *testing.T) {
	options := DefaultOptions()
	options.Archive = &stubArchive{sizes: []int{1, 1}}
	handler := New(&stopped{}, options, prometheus.NewRegistry())
	for said, want := range map[string]string{
		"": "0", "true": "1", "True": "1", "1": "1", "yes": "1", "ON": "1", "t": "1", "y": "1", "false": "0", "False": "0",
		"0": "0", "no": "0", "off": "0", "f": "0", "n": "0",
		"2": "query reverse", "maybe": "query reverse",
	} {
		r := httptest.NewRequest(http.MethodGet, "/api/conversations/talk/events?limit=1&reverse="+said, http.NoBody)
		r.Header.Set(rest.KeyHeader, stubKey)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if len(want) > 1 {
			if got := strings.Join(complaints(t, w), ", "); got != want {
				t.Errorf("%q: errors at %s", said, got)
			}
			continue
		}
		if !strings.HasPrefix(w.Body.String(), `{"events":[{"id":`+want+`,`) {
			t.Errorf("%q: the answer is %d %s", said, w.Code, w.Body)
		}
	}
}

// silent is a cluster in which reads of settings never end.
type silent struct{ stubCluster }

func (c *silent) Settings(ctx context.Context, _ types.NamespacedName) (*v1alpha1.UserSettings, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestSessionAndSignInRequestsTimeOut(t *testing.T) {
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
			if took := time.Since(begun); response.StatusCode != http.StatusServiceUnavailable ||
				took > requestTimeout+time.Second {
				t.Errorf("%s: the answer is %d after %s", call[1], response.StatusCode, took)
			}
		})
	}
}

// lossyCluster executes requests, but loses the responses of the API server.
type lossyCluster struct {
	stubCluster
	deletions int
}

func (c *lossyCluster) PatchConversation(context.Context, *v1alpha1.Conversation, []byte) error {
	return errors.New("the connection was lost")
}

func (c *lossyCluster) DeleteConversation(context.Context, *v1alpha1.Conversation) error {
	if c.deletions++; c.deletions < 3 {
		return errors.New("the connection was lost")
	}
	return nil
}

// The facade creates a conversation, but cannot complete it. The client gets an error and never
// receives the ID, so the facade must delete the conversation.
func TestAConversationIsDeletedIfItsClientGetsNoConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &lossyCluster{}
		r := httptest.NewRequest(http.MethodPost, "/api/conversations", strings.NewReader(`{"mcp_config": `+
			`{"stdio_servers": [{"name": "a", "command": "a", "env": {"KEY": "k"}}]}}`))
		r.Header.Set(rest.KeyHeader, stubKey)
		w := httptest.NewRecorder()
		handler(c).ServeHTTP(w, r)
		time.Sleep(time.Minute) // fake time of the bubble
		synctest.Wait()
		if w.Code != http.StatusServiceUnavailable || c.deletions != 3 {
			t.Errorf("the answer is %d after %d deletions", w.Code, c.deletions)
		}
	})
}
