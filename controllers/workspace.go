package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/objects"
)

// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=storage.k8s.io,resources=storageclasses,verbs=list;watch

// workspaceKind decides at the first start which volume holds the session's files. It decides again
// if the class's volume is gone, because the class may no longer provide a volume.
func (g *gatherer) workspaceKind(ctx context.Context, c *v1alpha1.Conversation,
	class objects.Class) (v1alpha1.WorkspaceKind, error) {
	switch recorded := c.Status.Workspace; {
	case c.Spec.Workspace != nil:
		return v1alpha1.WorkspaceOwn, nil
	case recorded == v1alpha1.WorkspaceClass:
		if exists, err := g.hasVolume(ctx, c); exists || err != nil {
			return recorded, err
		}
	case recorded != "":
		return recorded, nil
	}
	switch {
	case class.Spec.Workspace == nil:
		return v1alpha1.WorkspaceScratch, nil
	case class.Spec.Workspace.StorageClassName != nil:
		return v1alpha1.WorkspaceClass, nil
	}
	var classes storagev1.StorageClassList
	if err := g.cache.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list StorageClasses: %w", err)
	}
	for i := range classes.Items {
		if classes.Items[i].Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return v1alpha1.WorkspaceClass, nil
		}
	}
	return v1alpha1.WorkspaceScratch, nil
}

func (g *gatherer) hasVolume(ctx context.Context, c *v1alpha1.Conversation) (bool, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := g.cache.Get(ctx, workspaceObject(c), claim)
	if apierrors.IsNotFound(err) {
		err = g.live.Get(ctx, workspaceObject(c), claim) // the cache may be stale
	}
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read PersistentVolumeClaim: %w", err)
	}
	return err == nil && owned(claim, c), nil
}

func workspaceObject(c *v1alpha1.Conversation) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: lifecycle.WorkspaceName(c.Name)}
}

// ensureWorkspace creates the claim for the session's volume, if the session has a volume. If the
// class no longer provides a volume, the claim cannot be created and must already exist.
func (r *conversationReconciler) ensureWorkspace(ctx context.Context, c *v1alpha1.Conversation,
	start *objects.Start) error {
	if start.Workspace == v1alpha1.WorkspaceScratch {
		return nil
	}
	claim, err := objects.WorkspaceClaim(c, start.Class.Workspace(c, start.Workspace))
	if err != nil {
		return err
	}
	existing := &corev1.PersistentVolumeClaim{}
	err = r.client.Get(ctx, workspaceObject(c), existing)
	if apierrors.IsNotFound(err) && claim != nil {
		err = r.client.Create(ctx, claim)
		if !apierrors.IsAlreadyExists(err) {
			existing = claim
		} else {
			err = r.live.Get(ctx, client.ObjectKeyFromObject(claim), existing)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("ensure PersistentVolumeClaim: %w", err)
	case !owned(existing, c):
		return ownershipError("PersistentVolumeClaim", existing, c)
	case existing.DeletionTimestamp != nil:
		return &terminatingError{kind: "PersistentVolumeClaim", name: existing.Name}
	}
	return nil
}

func (r *conversationReconciler) removeWorkspace(ctx context.Context, c *v1alpha1.Conversation) error {
	claim := &corev1.PersistentVolumeClaim{}
	err := r.client.Get(ctx, workspaceObject(c), claim)
	if err != nil || !owned(claim, c) || claim.DeletionTimestamp != nil {
		return client.IgnoreNotFound(err)
	}
	// A session that was just restarted keeps its files; the event of that restart requeues.
	if err := r.checkFresh(ctx, c); errors.Is(err, errStale) {
		return nil
	} else if err != nil {
		return err
	}
	return r.remove(ctx, "PersistentVolumeClaim", claim)
}
