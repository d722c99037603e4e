package rest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientrest "k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// lostWatch lets nothing be learned of conversations while it is lost.
type lostWatch struct {
	mu      sync.Mutex
	lost    bool
	watches []io.Closer
}

func (l *lostWatch) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
	for _, watch := range l.watches {
		_ = watch.Close()
	}
}

func (l *lostWatch) find() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = false
}

func (l *lostWatch) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/conversations") {
			return next.RoundTrip(r)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.lost {
			return nil, errors.New("lost")
		}
		response, err := next.RoundTrip(r)
		if err == nil && r.URL.Query().Get("watch") != "" {
			l.watches = append(l.watches, response.Body)
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestADeletionThatTheCacheNeverSeesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch := &lostWatch{}
	cfg := clientrest.CopyConfig(suite.asFacade)
	cfg.Wrap(watch.wrap)
	cluster, err := NewCluster(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = cluster.Start(ctx) }()
	if !cluster.cache.WaitForCacheSync(ctx) {
		t.Fatal("the cache is not filled")
	}
	ada := newcomer(t)
	watch.lose()
	brief := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "brief"}, Spec: v1alpha1.ConversationSpec{UserSettingsName: ada.name}}
	create(t, brief)
	if err := cluster.deleteConversation(ctx, brief); err != nil {
		t.Fatal(err)
	}
	watch.find()
	if err := cluster.cached.List(ctx, &v1alpha1.ConversationList{}, client.InNamespace(ada.namespace)); err != nil {
		t.Errorf("the list waits in vain: %v", err)
	}
}
