package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/controllers/objects"
)

// trim deletes the pods that the pool must not have. It returns the number of missing pods, and
// whether a pod is not ready yet. Claimed pods no longer belong to the pool.
func (r *warmPoolReconciler) trim(ctx context.Context, key poolKey, pods *objects.WarmPods, wanted int,
	now time.Time) (missing int, starting bool, err error) {
	found, expected := r.set.pool(key, now)
	var kept, surplus []warmPod
	for _, pod := range found {
		if pod.leaving || pod.claimed {
			continue
		}
		unfit := pod.failed || pods == nil || pod.hash != pods.Hash || pod.owner != pods.Owner.UID
		if !unfit && !pod.ready && now.Sub(pod.created) > podTimeout {
			if unfit, err = r.incomplete(ctx, pod, pods.HasVolume()); err != nil {
				return 0, false, err
			}
		}
		if unfit || expected+len(kept) >= wanted {
			surplus = append(surplus, pod)
		} else {
			kept = append(kept, pod)
		}
	}
	for _, pod := range surplus {
		if err := r.deletePod(ctx, pod); err != nil {
			return 0, false, err
		}
		if pod.ready {
			r.pause.takeRoom(key.namespace) // this pod makes room for a session, too
		}
	}
	for len(kept) > 0 && r.pause.takeRoom(key.namespace) {
		// Delete the newest ready pod, because ready pods occupy room on a node. If no pod is ready,
		// delete the oldest pod.
		chosen := max(0, countReady(kept)-1)
		if err := r.deletePod(ctx, kept[chosen]); err != nil {
			return 0, false, err
		}
		kept = slices.Delete(kept, chosen, chosen+1)
	}
	return wanted - expected - len(kept), countReady(kept) < len(kept), nil
}

// deletePod deletes a warm pod, unless a session has just adopted the pod.
func (r *warmPoolReconciler) deletePod(ctx context.Context, pod warmPod) error {
	err := r.client.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.namespace, Name: pod.name}},
		client.Preconditions{UID: &pod.uid, ResourceVersion: &pod.resourceVersion})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete a warm pod: %w", err)
	}
	return nil
}

func countReady(pods []warmPod) (n int) {
	for _, pod := range pods {
		if pod.ready {
			n++
		}
	}
	return n
}

// incomplete reports whether a pod waits for a Secret or a volume that does not exist, because the
// manager stopped after it created the pod, or because the creation of that object failed.
func (r *warmPoolReconciler) incomplete(ctx context.Context, pod warmPod, volume bool) (bool, error) {
	key := client.ObjectKey{Namespace: pod.namespace, Name: pod.name}
	err := r.metadata.Get(ctx, key, secretMetadata())
	if apierrors.IsNotFound(err) {
		err = r.live.Get(ctx, key, secretMetadata())
	}
	if err == nil && volume {
		err = r.cache.Get(ctx, key, &corev1.PersistentVolumeClaim{})
		if apierrors.IsNotFound(err) {
			err = r.live.Get(ctx, key, &corev1.PersistentVolumeClaim{})
		}
	}
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read the Secret and the volume of a warm pod: %w", err)
	}
	return err != nil, nil
}
