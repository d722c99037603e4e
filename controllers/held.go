package controllers

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// held keeps what one object of the operator's own says, which every start needs, for as long as
// the cache, which has the metadata only, shows that version of it.
type held[T any] struct {
	mu      sync.Mutex
	uid     types.UID
	version string
	value   T
}

// get is what the object says, which is not to be changed. The object is read where the cache shows
// another version than is held, or none at all: whoever made it a moment ago means it.
func (h *held[T]) get(ctx context.Context, metadata client.Reader, kind schema.GroupVersionKind, name client.ObjectKey,
	read func() (client.Object, T, error)) (T, error) {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(kind)
	if err := metadata.Get(ctx, name, now); err != nil && !apierrors.IsNotFound(err) {
		var none T
		return none, err
	}
	if value, same := h.at(now); same {
		return value, nil
	}
	object, value, err := read()
	if err == nil {
		h.mu.Lock()
		h.uid, h.version, h.value = object.GetUID(), object.GetResourceVersion(), value
		h.mu.Unlock()
	}
	return value, err
}

// at is what is held, and whether that is of the version that the cache shows.
func (h *held[T]) at(now *metav1.PartialObjectMetadata) (value T, same bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.value, now.UID != "" && h.uid == now.UID && h.version == now.ResourceVersion
}
