package server

import (
	"context"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
)

const adaName = "oidc:ada"

// owned is a stub of a cluster with one UserSettings object, which a person owns. The field
// reviewed is the ServiceAccount's user name that ReviewToken returns for every token.
type owned struct {
	stubCluster
	mu       sync.Mutex
	owner    string
	group    *string
	uid      types.UID
	reviewed string
	ended    string
	// recorded is the owner in the conversation's status.
	recorded string
}

func (c *owned) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *owned) UsersByOwner(_ context.Context, username string) ([]v1alpha1.UserSettings, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if username != c.owner {
		return nil, nil
	}
	return c.theSettings(), nil
}

func (c *owned) UsersByKeyHash(context.Context, string) ([]v1alpha1.UserSettings, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.theSettings(), nil
}

func (c *owned) theSettings() []v1alpha1.UserSettings {
	settings := *stubSettings()
	settings.UID, settings.Spec.Owner = c.uid, &v1alpha1.SettingsOwner{Username: c.owner, Group: c.group}
	settings.Annotations = map[string]string{v1alpha1.AnnotationEndedSignIns: c.ended}
	return []v1alpha1.UserSettings{settings}
}

func (c *owned) ReviewToken(context.Context, string) (string, []string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reviewed, nil, nil
}

func (c *owned) CachedConversation(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation := &v1alpha1.Conversation{}
	conversation.Spec.UserSettingsName, conversation.Status.Owner = "ada", c.recorded
	return conversation, nil
}

// A stream of a person ends when the person loses access, and for no other reason.
func TestStreamsOfAPersonEndWhenTheirAccessEnds(t *testing.T) {
	group := "oidc:red"
	person := auth.Credential{Method: auth.ByCookie, Username: adaName, Groups: []string{group}, ID: "sign-in"}
	expiring, key := person, auth.CredentialOf(stubKey)
	const account = "system:serviceaccount:team:pipeline"
	for name, c := range map[string]struct {
		credential auth.Credential
		change     func(*owned)
		ends       bool
		within     time.Duration
	}{
		"nothing happens":              {credential: person, change: func(*owned) {}},
		"the owner changes":            {credential: person, change: func(c *owned) { c.owner = "oidc:bob" }, ends: true},
		"the owner changes, for a key": {credential: key, change: func(c *owned) { c.owner = "oidc:bob" }, ends: true},
		"nothing happens, for a key":   {credential: key, change: func(*owned) {}},
		"the settings are recreated":   {credential: person, change: func(c *owned) { c.uid = "2" }, ends: true},
		"the group of the settings":    {credential: person, change: func(c *owned) { c.group = new(string) }, ends: true},
		"the sign-in is revoked":       {credential: person, change: func(c *owned) { c.ended = "sign-in:9" }, ends: true},
		"another sign-in is revoked":   {credential: person, change: func(c *owned) { c.ended = "other:9" }},
		"the credential expires":       {credential: expiring, change: func(*owned) {}, ends: true, within: 7 * time.Second},
		"the token is no longer valid": {change: func(c *owned) { c.reviewed = "" }, ends: true},
		"the token is still valid":     {change: func(*owned) {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := &owned{owner: adaName, group: &group, uid: "1", reviewed: account}
				s := New(cluster, DefaultOptions(), prometheus.NewRegistry()).server
				credential := c.credential
				if c.within > 0 {
					credential.Expires = time.Now().Add(c.within - time.Second)
				}
				if credential.Method == "" {
					cluster.owner, cluster.group = account, nil
					var err error
					if credential, err = s.tokens.Credential(t.Context(), "a.b.c", ""); err != nil {
						t.Fatal(err)
					}
				}
				cluster.recorded = cluster.owner
				u, err := auth.Authenticate(t.Context(), cluster, credential)
				if err != nil {
					t.Fatal(err)
				}
				talk := &v1alpha1.Conversation{}
				talk.Name = "talk"
				ctx, release := s.following(httptest.NewRequest("GET", "/", nil), u, credential, talk)
				defer release()
				time.Sleep(time.Millisecond) // fake time of the bubble
				cluster.set(func() { c.change(cluster) })
				wait := 2*checkEvery + time.Second
				if c.within > 0 {
					wait = c.within
				}
				time.Sleep(wait) // fake time of the bubble
				synctest.Wait()
				if ended := ctx.Err() != nil; ended != c.ends {
					t.Errorf("the stream ended: %v", ended)
				}
			})
		})
	}
}
