package cluster

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// watchers are the channels of the requests that wait for changes of conversations.
type watchers struct {
	mu       sync.Mutex
	channels map[types.NamespacedName]map[chan struct{}]bool
}

// WatchConversation returns a channel that gets a value after each change of a conversation in the
// cache. One value may stand for several changes. The caller must call stop.
func (c *Cluster) WatchConversation(key types.NamespacedName) (changed <-chan struct{}, stop func()) {
	return c.watchers.add(key)
}

func (w *watchers) add(key types.NamespacedName) (changed <-chan struct{}, stop func()) {
	channel := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.channels == nil {
		w.channels = map[types.NamespacedName]map[chan struct{}]bool{}
	}
	if w.channels[key] == nil {
		w.channels[key] = map[chan struct{}]bool{}
	}
	w.channels[key][channel] = true
	return channel, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.channels[key], channel)
		if len(w.channels[key]) == 0 {
			delete(w.channels, key)
		}
	}
}

func (w *watchers) notify(object any) {
	if unknown, is := object.(toolscache.DeletedFinalStateUnknown); is {
		object = unknown.Obj
	}
	conversation, is := object.(*v1alpha1.Conversation)
	if !is {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for channel := range w.channels[client.ObjectKeyFromObject(conversation)] {
		select {
		case channel <- struct{}{}:
		default: // the channel has a value
		}
	}
}

// follow notifies the watchers of each conversation that changes in the cache.
func (w *watchers) follow(ctx context.Context, objects cache.Cache) error {
	informer, err := objects.GetInformer(ctx, &v1alpha1.Conversation{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch conversations: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: w.notify, DeleteFunc: w.notify,
		UpdateFunc: func(_, now any) { w.notify(now) }})
	return err
}
