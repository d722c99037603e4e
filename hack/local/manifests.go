package main

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/manifests"
)

const (
	fieldManager  = "parley-local"
	retryInterval = 200 * time.Millisecond
)

// connect writes the admin's kubeconfig and opens a client with it.
func (l *local) connect(context.Context) error {
	if err := l.plane.WriteAdminKubeconfig(l.kubeconfigFile(), "parley-local"); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", l.kubeconfigFile())
	if err != nil {
		return err
	}
	config.QPS = -1 // the API server is ours alone
	l.client, err = client.NewWithWatch(config, client.Options{})
	return err
}

// install applies the manifests that a real cluster gets.
func (l *local) install(ctx context.Context) error {
	kubectl := filepath.Join(l.assets, "kubectl")
	objects, err := manifests.Build(ctx, l.manifests, kubectl, "kustomize")
	if err != nil {
		return err
	}
	classes, err := manifests.Build(ctx, filepath.Join(filepath.Dir(l.manifests), "classes"), kubectl, "kustomize")
	if err != nil {
		return err
	}
	objects = append(objects, classes...)
	objects, l.workloads, err = manifests.FitToProcesses(objects, l.plane.Ports.Address(webhookPort))
	if err != nil {
		return err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return l.isAdmins(ctx, o) })
	return manifests.Apply(ctx, l.client, fieldManager, objects)
}

// isAdmins says that an object is there and belongs to whoever uses the cluster:
// the catalogue of agents, the prices of models and the class, once there are any.
func (l *local) isAdmins(ctx context.Context, object *unstructured.Unstructured) bool {
	list := object.GetKind() == "ConfigMap" && (object.GetName() == v1alpha1.AgentCatalogueName || object.GetName() == v1alpha1.ModelsName)
	if !list && object.GetKind() != "SessionClass" {
		return false
	}
	return l.client.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopy()) == nil
}
