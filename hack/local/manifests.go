package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	fieldManager  = "parley-local"
	retryInterval = 200 * time.Millisecond
)

// workload is a Deployment that runs as a process here.
type workload struct {
	namespace      string
	serviceAccount string
	args           []string
}

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
	rendered, err := l.render(ctx)
	if err != nil {
		return err
	}
	objects, err := decode(rendered)
	if err != nil {
		return err
	}
	objects, l.workloads, err = fitToProcesses(objects, l.plane.Ports.Address(webhookPort))
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

func (l *local) render(ctx context.Context) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.assets, "kubectl"), "kustomize", l.manifests)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	rendered, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kubectl kustomize %s: %w: %s", l.manifests, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return rendered, nil
}

func decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// fitToProcesses takes out the Deployments, which run as processes, and points
// the webhooks at one of these processes. All else stays as a cluster gets it.
func fitToProcesses(objects []*unstructured.Unstructured, webhookAddress string) ([]*unstructured.Unstructured, map[string]workload, error) {
	var kept []*unstructured.Unstructured
	workloads := map[string]workload{}
	for _, object := range objects {
		switch object.GetKind() {
		case "Deployment":
			var deployment appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment); err != nil {
				return nil, nil, fmt.Errorf("read Deployment %s: %w", object.GetName(), err)
			}
			pod := deployment.Spec.Template.Spec
			for _, container := range pod.Containers {
				workloads[container.Name] = workload{deployment.Namespace, pod.ServiceAccountName, container.Args}
			}
			continue
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
			if err := useURL(object, webhookAddress); err != nil {
				return nil, nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
			}
		}
		kept = append(kept, object)
	}
	return kept, workloads, nil
}

// useURL replaces the Service of each webhook by an address. It leaves the CA
// out: the manager writes that one, and applying it would take it away.
func useURL(configuration *unstructured.Unstructured, address string) error {
	webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return err
	}
	_, port, _ := strings.Cut(address, ":")
	for _, entry := range webhooks {
		webhook, ok := entry.(map[string]any)
		if !ok {
			return errors.New("a webhook is not an object")
		}
		path, _, err := unstructured.NestedString(webhook, "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		webhook["clientConfig"] = map[string]any{"url": "https://localhost:" + port + path}
	}
	return unstructured.SetNestedSlice(configuration.Object, webhooks, "webhooks")
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
// the catalogue of agents and the prices of models, once there are any.
func (l *local) isAdmins(ctx context.Context, object *unstructured.Unstructured) bool {
	if object.GetKind() != "ConfigMap" || object.GetName() != v1alpha1.AgentCatalogueName && object.GetName() != v1alpha1.ModelsName {
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
