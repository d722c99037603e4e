package controllers

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// overwritten remembers which version of each object this process wrote over last. While the cache
// still shows that one, a decision would be made of the past and its write refused as a conflict;
// the event of our own write is on its way.
type overwritten struct {
	versions sync.Map // resourceVersion by name, of objects whose newer version the cache has not shown yet
}

// add notes a write. One that changed nothing made no version, and no event.
func (w *overwritten) add(before, after client.Object) {
	if before.GetResourceVersion() != after.GetResourceVersion() {
		w.versions.Store(client.ObjectKeyFromObject(before), before.GetResourceVersion())
	}
}

// has is whether this version of an object was written over. Any other than the one remembered is
// newer, since a write succeeds only on the newest.
func (w *overwritten) has(o client.Object) bool {
	version, known := w.versions.Load(client.ObjectKeyFromObject(o))
	if known && version != o.GetResourceVersion() {
		w.forget(client.ObjectKeyFromObject(o))
	}
	return known && version == o.GetResourceVersion()
}

func (w *overwritten) forget(name types.NamespacedName) { w.versions.Delete(name) }
