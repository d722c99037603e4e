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
	"github.com/parley-dev/parley/controllers/lifecycle"
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
		if volume, err := g.findVolume(ctx, c, true); volume != nil || err != nil {
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

// findVolume returns the PersistentVolumeClaim of the session, or nil. The claim has the default
// name, unless it was created with a warm pod. If live is set, findVolume asks the API server.
func (g *gatherer) findVolume(ctx context.Context, c *v1alpha1.Conversation,
	live bool) (*corev1.PersistentVolumeClaim, error) {
	reader := g.cache
	if live {
		reader = g.live
	}
	for _, name := range []string{c.Status.WorkspaceClaimName, lifecycle.WorkspaceName(c.Name)} {
		if name == "" {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := reader.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, claim)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read PersistentVolumeClaim: %w", err)
		}
		if err == nil && owned(claim, c) {
			return claim, nil
		}
	}
	return nil, nil
}

func workspaceObject(c *v1alpha1.Conversation) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: lifecycle.WorkspaceName(c.Name)}
}

// ensureWorkspace creates the session's PersistentVolumeClaim, if the session has a volume. If the
// class no longer provides a volume, the PersistentVolumeClaim cannot be created and must already
// exist.
func (r *conversationReconciler) ensureWorkspace(ctx context.Context, c *v1alpha1.Conversation,
	start *objects.Start) error {
	if start.Workspace == v1alpha1.WorkspaceScratch {
		return nil
	}
	claim, err := objects.WorkspaceClaim(c, start.Class.Workspace(c, start.Workspace))
	if err != nil {
		return err
	}
	if c.Status.WorkspaceClaimName != "" {
		if volume, err := r.findVolume(ctx, c, true); err != nil {
			return err
		} else if volume != nil && volume.DeletionTimestamp == nil {
			start.WorkspaceClaim = volume.Name
			return nil
		}
	}
	existing, reader := &corev1.PersistentVolumeClaim{}, r.cache
	if c.Status.Workspace != "" { // not the first start: the volume may just have been deleted
		reader = r.live
	}
	err = reader.Get(ctx, workspaceObject(c), existing)
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
	claim, err := r.findVolume(ctx, c, false)
	if err != nil || claim == nil || claim.DeletionTimestamp != nil {
		return err
	}
	// The user may have just restarted the session, which then needs its files. If the cached
	// Conversation is stale, keep the volume. The watch event of the newer version requeues the
	// Conversation.
	if err := r.checkFresh(ctx, c); errors.Is(err, errStale) {
		return nil
	} else if err != nil {
		return err
	}
	return r.remove(ctx, "PersistentVolumeClaim", claim)
}
