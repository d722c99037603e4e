package controllers

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// held keeps one object of the operator's own, which every start needs, for as long as the cache, which has the metadata only, shows
// that version of it.
type held[T client.Object] struct {
	mu     sync.Mutex
	object T
	have   bool
}

// get is the object, which is not to be changed. It is read where the cache shows another version than is held, or none at all:
// whoever made it a moment ago means it.
func (h *held[T]) get(ctx context.Context, metadata client.Reader, kind schema.GroupVersionKind, name client.ObjectKey, read func() (T, error)) (T, error) {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(kind)
	err := metadata.Get(ctx, name, now)
	if err != nil && !apierrors.IsNotFound(err) {
		var none T
		return none, err
	}
	if object, same := h.at(now, err == nil); same {
		return object, nil
	}
	object, err := read()
	if err == nil {
		h.mu.Lock()
		h.object, h.have = object, true
		h.mu.Unlock()
	}
	return object, err
}

func (h *held[T]) at(now *metav1.PartialObjectMetadata, exists bool) (object T, same bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	same = exists && h.have && h.object.GetUID() == now.UID && h.object.GetResourceVersion() == now.ResourceVersion
	return h.object, same
}
