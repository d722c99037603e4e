package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// writeStatus writes the numbers of warm pods to the status of a class, if they changed.
func (r *warmPoolReconciler) writeStatus(ctx context.Context, class *v1alpha1.SessionClass) (reconcile.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if class.UID == "" {
		delete(r.counted, class.Name)
		return reconcile.Result{}, nil
	}
	var status v1alpha1.SessionClassStatus
	if class.Spec.Warm != nil {
		selected, err := r.selectedNamespaces(ctx, class)
		if err != nil {
			return reconcile.Result{}, err
		}
		status.Warm = ptr.To(r.set.countReady(class.Name))
		status.WantedWarm = ptr.To(int32(len(selected)) * class.Spec.Warm.Size)
	}
	same := func(a v1alpha1.SessionClassStatus) bool {
		return ptr.Equal(a.Warm, status.Warm) && ptr.Equal(a.WantedWarm, status.WantedWarm)
	}
	if last, known := r.counted[class.Name]; known && same(last) || same(class.Status) {
		r.counted[class.Name] = status
		return reconcile.Result{}, nil
	}
	written := *class // a shallow copy: the cache's object must not change
	written.Status = status
	err := r.client.Status().Update(ctx, &written)
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: warmStatusDelay}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("write the status of SessionClass: %w", err)
	}
	r.counted[class.Name] = status
	return reconcile.Result{}, nil
}
