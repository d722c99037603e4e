package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
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

// watchClaims creates and removes volumes when claims change. A watch begins with the existing
// claims, so it misses no new claim. It misses claims that were deleted before it began.
func (n *inside) watchClaims(ctx context.Context) error {
	changes, err := n.client.Watch(ctx, &corev1.PersistentVolumeClaimList{})
	if err != nil {
		return err
	}
	defer changes.Stop()
	if err := n.retryVolumes(ctx, n.removeUnclaimed); err != nil {
		return err
	}
	for change := range changes.ResultChan() {
		claim, is := change.Object.(*corev1.PersistentVolumeClaim)
		if !is {
			return apierrors.FromObject(change.Object)
		}
		match := func(ctx context.Context) error { return n.matchVolume(ctx, change.Type, claim) }
		if err := n.retryVolumes(ctx, match); err != nil {
			return err
		}
	}
	return nil
}

// matchVolume creates or removes the volume of a changed claim. It lists no volumes, because many
// claims change while sessions start.
func (n *inside) matchVolume(ctx context.Context, change watch.EventType, claim *corev1.PersistentVolumeClaim) error {
	switch {
	case ptr.Deref(claim.Spec.StorageClassName, "") != storageClass:
		return nil
	case change == watch.Deleted:
		return n.removeVolume(ctx, volumeOf(claim))
	case claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil:
		return n.makeVolume(ctx, claim)
	}
	return nil
}

func (n *inside) retryVolumes(ctx context.Context, change func(context.Context) error) error {
	call, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return cluster.Retry(call, 50*time.Millisecond, change)
}

// removeUnclaimed removes the volumes without a claim.
func (n *inside) removeUnclaimed(ctx context.Context) error {
	var claims corev1.PersistentVolumeClaimList
	var volumes corev1.PersistentVolumeList
	// List the volumes before the claims. If the claim of a listed volume is then missing, the
	// claim was deleted.
	if err := errors.Join(n.client.List(ctx, &volumes), n.client.List(ctx, &claims)); err != nil {
		return err
	}
	claimed := map[string]bool{}
	for i := range claims.Items {
		claimed[volumeOf(&claims.Items[i])] = true
	}
	for i := range volumes.Items {
		volume := &volumes.Items[i]
		if volume.Annotations[provisionedBy] != provisioner || claimed[volume.Name] {
			continue
		}
		if err := n.removeVolume(ctx, volume.Name); err != nil {
			return err
		}
	}
	return nil
}

// volumeOf returns the name of a claim's volume.
func volumeOf(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

func (n *inside) makeVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := volumeOf(claim)
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

func (n *inside) removeVolume(ctx context.Context, name string) error {
	if err := os.RemoveAll(filepath.Join(n.volumesDir(), name)); err != nil {
		return err
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return client.IgnoreNotFound(n.client.Delete(ctx, volume))
}
