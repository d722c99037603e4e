package server

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// sessionAddress is a loopback address that no other test uses. All sessions have the same port, so
// each test needs its own address.
const sessionAddress = "127.31.4.1"

// hosted is a cluster with one user, who has running conversations and a token of a git host.
type hosted struct {
	stubCluster
	running int
	address string
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
	for i := range c.running {
		running := &all[5+i]
		running.UID, running.Spec.Repository = types.UID(fmt.Sprint("u", i)), ptr.To("ada/engine")
		running.Spec.GitProvider = ptr.To([]v1alpha1.GitProvider{v1alpha1.GitHub, v1alpha1.GitHub, v1alpha1.GitLab}[i])
		running.Status.State, running.Status.PodIP = v1alpha1.StateRunning, c.address
	}
	look(all)
	return nil
}

func TestAGitHostThatLimitsTheRateIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	const address = "127.31.4.14"
	cluster := &hosted{dropped: make(chan struct{}), running: 3, address: address}
	asked := atomic.Int32{}
	sessionAt(t, address, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"detail":"the git host limits the rate of requests"}`)
	})
	b := newBrowser(t, cluster, DefaultOptions())
	b.key = stubKey
	header := b.wants(http.StatusTooManyRequests, http.MethodGet, "/api/user/repositories", "")
	if asked.Load() != 2 || header.Get("Retry-After") == "" {
		t.Errorf("%d sessions asked their hosts, Retry-After is %q", asked.Load(), header.Get("Retry-After"))
	}
}

func TestTheMemoryOfConversationListsIsFreedBeforeASlowSessionAnswers(t *testing.T) {
	t.Parallel()
	cluster := &hosted{dropped: make(chan struct{}), running: 1, address: sessionAddress}
	sessionAt(t, sessionAddress, func(w http.ResponseWriter, r *http.Request) {
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
	})
	b := newBrowser(t, cluster, DefaultOptions())
	b.key = stubKey
	b.wants(http.StatusOK, http.MethodGet, "/api/user/repositories", "")
}
