package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// counting is a stub of a cache that counts how many lists there are at once.
type counting struct {
	cache.Cache

	mu        sync.Mutex
	now, most int
}

func (c *counting) count(more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += more
	c.most = max(c.most, c.now)
}

func (c *counting) List(_ context.Context, _ client.ObjectList, options ...client.ListOption) error {
	asked := client.ListOptions{}
	asked.ApplyOptions(options)
	if asked.Limit == 1 {
		return nil // it copies next to nothing
	}
	c.count(1)
	return nil
}

// looked is for who looked at a list, which nobody has any more.
func (c *counting) looked([]v1alpha1.Conversation) {
	for range 1000 {
		runtime.Gosched() // so that others come meanwhile
	}
	c.count(-1)
}

var ada = types.NamespacedName{Namespace: "team", Name: "ada"}

// over is a client that reads such a cache.
type over struct {
	client.Client
	reader client.Reader
}

func (o over) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return o.reader.List(ctx, list, options...)
}

func TestAUserHasOneListAtATime(t *testing.T) {
	t.Parallel()
	stub := &counting{}
	c := &Cluster{cache: stub, cached: over{reader: stub}}
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if err := c.ConversationsOf(t.Context(), ada, stub.looked); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if stub.most != 1 {
		t.Errorf("%d at once", stub.most)
	}
}

func TestWhoCannotWaitForAListHasNoneMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := &counting{}
		c := &Cluster{cache: stub, cached: over{reader: stub}}
		goOn := make(chan struct{})
		go func() { _ = c.ConversationsOf(t.Context(), ada, func([]v1alpha1.Conversation) { <-goOn }) }()
		synctest.Wait()
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.ConversationsOf(hurried, ada, stub.looked); !errors.Is(err, context.DeadlineExceeded) || stub.most != 1 {
			t.Errorf("there are %d lists, %v", stub.most, err)
		}
		for i := range 1000 {
			other := types.NamespacedName{Namespace: "team", Name: fmt.Sprint("user-", i)}
			if err := c.ConversationsOf(t.Context(), other, stub.looked); err != nil {
				t.Fatal(err)
			}
		}
		close(goOn)
	})
}
