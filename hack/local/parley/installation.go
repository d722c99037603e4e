// Package parley installs config/ in a control plane of package cluster. It runs the manager, the
// archive and the facade as processes with the identities of their ServiceAccounts.
package parley

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/release/manifests"
)

const (
	// FieldManager is the field manager of applied objects.
	FieldManager  = "parley-local"
	retryInterval = 200 * time.Millisecond
)

// Installation is Parley in one control plane.
type Installation struct {
	Plane         *cluster.ControlPlane
	StateDir      string // directory of tokens and of the processes' data
	BinDir        string // directory of the programs
	FacadeAddress string
	// Volumes is set if the cluster has a default StorageClass.
	Volumes bool

	// Client has admin rights.
	Client    client.WithWatch
	workloads map[string]manifests.Workload // keyed by container name; Install sets it
}

// Install builds and applies kustomizations, except their Deployments, which run as processes.
func (i *Installation) Install(ctx context.Context, kustomizations ...string) error {
	var objects []*unstructured.Unstructured
	for _, dir := range kustomizations {
		built, err := manifests.Build(ctx, dir, filepath.Join(i.Plane.Binaries, "kubectl"), "kustomize")
		if err != nil {
			return err
		}
		objects = append(objects, built...)
	}
	objects, workloads, err := manifests.FitToProcesses(objects, i.Plane.Ports.Address(WebhookPort))
	if err != nil {
		return err
	}
	i.workloads = workloads
	for _, object := range objects {
		if object.GetKind() == "SessionClass" && !i.Volumes {
			// The cluster cannot provide the volume that the class requests, and each start of a
			// session would cause a warning. Remove the request.
			unstructured.RemoveNestedField(object.Object, "spec", "workspace")
		}
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return i.isAdmins(ctx, o) })
	return manifests.Apply(ctx, i.Client, FieldManager, objects)
}

// isAdmins reports whether an object exists and is the agent catalogue, the prices of models or a
// class. The cluster's admin may have changed such an object, so Install does not apply it.
func (i *Installation) isAdmins(ctx context.Context, object *unstructured.Unstructured) bool {
	list := object.GetKind() == "ConfigMap" && (object.GetName() == v1alpha1.AgentCatalogueName ||
		object.GetName() == v1alpha1.ModelsName)
	if !list && object.GetKind() != "SessionClass" {
		return false
	}
	return i.Client.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopy()) == nil
}
