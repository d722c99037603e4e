package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// sessionAddress is a loopback address that no other test uses. All sessions have the same port, so
// each test needs its own address.
const sessionAddress = "127.31.4.1"

// hosted is a cluster with one user, who has a running conversation and a token of a git host.
type hosted struct {
	stubCluster
	// dropped is closed when the garbage collector frees the list that ConversationsOf created.
	dropped chan struct{}
}

func (c *hosted) UsersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	users, err := c.stubCluster.UsersByKeyHash(ctx, hash)
	for i := range users {
		users[i].Spec.SecretsStore = &v1alpha1.SecretsStore{ProviderTokens: []v1alpha1.ProviderToken{{}}}
	}
	return users, err
}

func (c *hosted) ConversationsOf(_ context.Context, _ *v1alpha1.UserSettings,
	look func([]v1alpha1.Conversation)) error {
	all := make([]v1alpha1.Conversation, 10)
	runtime.AddCleanup(&all[0], func(dropped chan struct{}) { close(dropped) }, c.dropped)
	running := &all[5]
	running.UID, running.Spec.Repository = "u", ptr.To("ada/engine")
	running.Status.State, running.Status.PodIP = v1alpha1.StateRunning, sessionAddress
	look(all)
	return nil
}

func TestTheMemoryOfConversationListsIsFreedBeforeASlowSessionAnswers(t *testing.T) {
	t.Parallel()
	cluster := &hosted{dropped: make(chan struct{})}
	listener, err := net.Listen("tcp", net.JoinHostPort(sessionAddress, strconv.Itoa(session.Port)))
	if err != nil {
		t.Fatal(err)
	}
	answering := &httptest.Server{Listener: listener,
		Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for {
				runtime.GC()
				select {
				case <-cluster.dropped:
					fmt.Fprint(w, "[]")
					return
				case <-r.Context().Done():
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})}}
	answering.Start()
	t.Cleanup(answering.Close)
	b := newBrowser(t, cluster, DefaultOptions())
	b.key = stubKey
	b.wants(http.StatusOK, http.MethodGet, "/api/user/repositories", "")
}
