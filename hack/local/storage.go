package main

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/parley"
)

// createStorageClass creates the default StorageClass, so that sessions keep their files when they
// stop. Claims stay unbound, but the simulated node still serves each claim from a directory.
func (l *local) createStorageClass(ctx context.Context) error {
	err := l.client.Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, client.FieldOwner(parley.FieldManager))
	if client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("create the StorageClass: %w", err)
	}
	return nil
}
