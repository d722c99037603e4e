package cluster

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// counting is a stub of a cache that counts how many lists are made at once.
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
	defer c.count(-1)
	for range 1000 {
		runtime.Gosched() // so that others come meanwhile
	}
	return nil
}

// over is a client that reads such a cache.
type over struct {
	client.Client
	reader client.Reader
}

func (o over) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return o.reader.List(ctx, list, options...)
}

func TestAUserHasOneListMadeAtATime(t *testing.T) {
	t.Parallel()
	stub := &counting{}
	c := &Cluster{cache: stub, cached: over{reader: stub}, lists: keymutex.NewHashed(listLocks)}
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if _, err := c.ConversationsOf(t.Context(), types.NamespacedName{Namespace: "team", Name: "ada"}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if stub.most != 1 {
		t.Errorf("%d at once", stub.most)
	}
}
