package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientrest "k8s.io/client-go/rest"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// lostWatch makes watches and lists of conversations fail while lost is set.
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

func TestAListReturnsImmediatelyEvenIfTheCacheMissedADeletion(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	watch := &lostWatch{}
	cfg := clientrest.CopyConfig(suite.AsFacade)
	cfg.Wrap(watch.wrap)
	objects, err := cluster.New(ctx, cfg, "parley-system",
		cluster.Options{Agents: v1alpha1.AgentCatalogueName, Models: v1alpha1.ModelsName})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = objects.Start(ctx) }()
	if err := objects.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	ada := newcomer(t)
	watch.lose()
	brief := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "brief"},
		Spec: v1alpha1.ConversationSpec{UserSettingsName: ada.name}}
	create(t, brief)
	if err := objects.DeleteConversation(ctx, brief); err != nil {
		t.Fatal(err)
	}
	watch.find()
	// A list waits up to two seconds until the writes of this facade are in the cache. The watch
	// was lost when the Conversation was deleted, so the cache may never receive the deletion. The
	// list must not wait for it.
	limited, stop := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer stop()
	if err := objects.ConversationsOf(limited, ada.settings(t),
		func([]v1alpha1.Conversation) {}); err != nil || limited.Err() != nil {
		t.Errorf("the list waits for a missed deletion: %v, %v", err, limited.Err())
	}
}
