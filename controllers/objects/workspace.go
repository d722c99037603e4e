package objects

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// WorkspaceClaim returns the PersistentVolumeClaim for the files of a session; nil for scratch
// space.
func WorkspaceClaim(c *v1alpha1.Conversation, workspace *v1alpha1.Workspace) (*corev1.PersistentVolumeClaim, error) {
	if workspace == nil {
		return nil, nil
	}
	return volumeClaim(metav1.ObjectMeta{Namespace: c.Namespace, Name: lifecycle.WorkspaceName(c.Name),
		Labels: sessionLabels(c), OwnerReferences: sessionOwner(c)}, workspace)
}

func volumeClaim(meta metav1.ObjectMeta, workspace *v1alpha1.Workspace) (*corev1.PersistentVolumeClaim, error) {
	size, err := resource.ParseQuantity(workspace.Size)
	if err != nil {
		return nil, fmt.Errorf("parse the workspace size: %w", err)
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: meta,
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: workspace.StorageClassName,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		},
	}, nil
}
