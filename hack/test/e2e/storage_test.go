package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	storageClass = "standard"
	provisioner  = "e2e.parley.dev/directory"
	// provisionedBy is an annotation that names the provisioner of a volume. Without it, the
	// controller manager would try to delete the volume itself, and fail.
	provisionedBy = "pv.kubernetes.io/provisioned-by"
)

func (n *inside) makeStorageClass(ctx context.Context) error {
	return n.client.Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: storageClass,
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner:       provisioner,
		ReclaimPolicy:     ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
	})
}

// provisionVolumes creates a volume for each claim of the StorageClass. The volume is a directory
// of the node.
func (n *inside) provisionVolumes(ctx context.Context) {
	for ctx.Err() == nil {
		if err := n.watchClaims(ctx); err != nil && ctx.Err() == nil {
			n.say("the provisioner retries after an error: %v", err)
		}
	}
}

// watchClaims checks all claims and volumes whenever a claim changes. Each watch begins with the
// existing claims, so no change is missed.
func (n *inside) watchClaims(ctx context.Context) error {
	changes, err := n.client.Watch(ctx, &corev1.PersistentVolumeClaimList{})
	if err != nil {
		return err
	}
	defer changes.Stop()
	for range changes.ResultChan() {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := cluster.Retry(call, 50*time.Millisecond, n.matchVolumes)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// matchVolumes creates missing volumes and deletes volumes without a claim.
func (n *inside) matchVolumes(ctx context.Context) error {
	var claims corev1.PersistentVolumeClaimList
	var volumes corev1.PersistentVolumeList
	// List the volumes before the claims. If the claim of a listed volume is then missing, the
	// claim was deleted.
	if err := errors.Join(n.client.List(ctx, &volumes), n.client.List(ctx, &claims)); err != nil {
		return err
	}
	claimed := map[types.UID]bool{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		claimed[claim.UID] = true
		if ptr.Deref(claim.Spec.StorageClassName, "") != storageClass || claim.Spec.VolumeName != "" ||
			claim.DeletionTimestamp != nil {
			continue
		}
		if err := n.makeVolume(ctx, claim); err != nil {
			return fmt.Errorf("make a volume for the claim %s: %w", claim.Name, err)
		}
	}
	for i := range volumes.Items {
		volume := &volumes.Items[i]
		if volume.Annotations[provisionedBy] != provisioner || claimed[volume.Spec.ClaimRef.UID] {
			continue
		}
		if err := n.removeVolume(ctx, volume); err != nil {
			return fmt.Errorf("remove the volume %s: %w", volume.Name, err)
		}
	}
	return nil
}

func (n *inside) makeVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := "pvc-" + string(claim.UID)
	dir := filepath.Join(n.volumesDir(), name)
	// Use a local volume. In a hostPath volume, a kubelet would not change the group of the files
	// to the session's group.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	err := n.client.Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      claim.Spec.Resources.Requests,
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              storageClass,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
						Values: []string{nodeName}}},
				}}}},
		},
	})
	if apierrors.IsAlreadyExists(err) {
		return nil // a volume that is not bound yet
	}
	return err
}

func (n *inside) removeVolume(ctx context.Context, volume *corev1.PersistentVolume) error {
	if err := os.RemoveAll(volume.Spec.Local.Path); err != nil {
		return err
	}
	return client.IgnoreNotFound(n.client.Delete(ctx, volume))
}
