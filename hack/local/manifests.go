package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
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
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	for _, object := range objects {
		if err := l.apply(ctx, object); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// rank puts first what other objects need.
func rank(object *unstructured.Unstructured) int {
	switch object.GetKind() {
	case "CustomResourceDefinition":
		return 0
	case "Namespace":
		return 1
	}
	return 2
}

func (l *local) apply(ctx context.Context, object *unstructured.Unstructured) error {
	if l.isAdmins(ctx, object) {
		return nil
	}
	err := persist(ctx, func(ctx context.Context) error {
		// The answer is written into what was sent, so each attempt sends a copy.
		attempt := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
		return l.client.Apply(ctx, attempt, client.ForceOwnership, client.FieldOwner(fieldManager))
	})
	if err != nil || object.GetKind() != "CustomResourceDefinition" {
		return err
	}
	return cluster.Retry(ctx, retryInterval, func(ctx context.Context) error {
		return l.established(ctx, object)
	})
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

func (l *local) established(ctx context.Context, crd *unstructured.Unstructured) error {
	current := crd.DeepCopy()
	if err := l.client.Get(ctx, client.ObjectKeyFromObject(crd), current); err != nil {
		return err
	}
	conditions, _, err := unstructured.NestedSlice(current.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, entry := range conditions {
		condition, _ := entry.(map[string]any)
		if condition["type"] == "Established" && condition["status"] == "True" {
			return nil
		}
	}
	return errors.New("not established")
}

// persist retries what may yet succeed: while the API server learns of a new
// kind, or a webhook does not answer yet. What it rejects for good ends it.
func persist(ctx context.Context, call func(context.Context) error) error {
	var rejected error
	err := cluster.Retry(ctx, retryInterval, func(ctx context.Context) error {
		err := call(ctx)
		if isRejection(err) {
			rejected = err
			return nil
		}
		return err
	})
	return errors.Join(rejected, err)
}

func isRejection(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}
