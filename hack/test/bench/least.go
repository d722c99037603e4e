package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	leastApp     = "least"
	leastRunning = "RUNNING"
)

var leastKind = schema.GroupVersionKind{Group: "bench.example.com", Version: "v1", Kind: "Least"}

// leastDefinition returns a CRD whose schema validates nothing.
func leastDefinition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "leasts." + leastKind.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: leastKind.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "leasts", Singular: "least", Kind: leastKind.Kind,
				ListKind: leastKind.Kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: leastKind.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)},
				},
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

func (b *bed) createLeast(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: leastApp},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{leastKind.Group}, Resources: []string{"*"},
			Verbs: []string{"*"}}},
	}
	for _, object := range []client.Object{leastDefinition(), role, &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: benchNamespace, Name: userAccount}},
	}} {
		if err := b.parley.Client.Create(ctx, object); err != nil {
			return err
		}
	}
	return cluster.Retry(ctx, pollInterval, func(ctx context.Context) error {
		return b.user.Create(ctx, newLeast("first"), client.DryRunAll)
	})
}

func newLeast(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(leastKind)
	object.SetNamespace(benchNamespace)
	object.SetName(name)
	return object
}

// least is a baseline without an operator. It sends the same requests as Parley sends for a
// Conversation: it creates a custom resource, a Secret and a pod. When the pod is ready, it writes
// the status of the custom resource.
type least struct {
	*bed
	ready chan string // names of ready pods

	mu   sync.Mutex
	made map[string]*unstructured.Unstructured // objects whose status is not written yet
}

// minimalObjects starts the baseline (see the type least) and returns it as a subject to measure.
// One goroutine per client writes the statuses of the custom resources.
func (b *bed) minimalObjects(ctx context.Context, clients int) (subject, error) {
	if err := b.createLeast(ctx); err != nil {
		return subject{}, err
	}
	l := &least{bed: b, ready: make(chan string, 1<<16), made: map[string]*unstructured.Unstructured{}}
	if err := keepWatching(ctx, func(ctx context.Context, from string) (watch.Interface, error) {
		return b.userPods.CoreV1().Pods(benchNamespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + leastApp,
			ResourceVersion: from})
	}, func(event watch.Event) {
		if pod, is := event.Object.(*corev1.Pod); is && isReady(pod) {
			l.ready <- pod.Name
		}
	}); err != nil {
		return subject{}, err
	}
	for range clients {
		go l.finish(ctx)
	}
	return subject{name: minimalObjects, create: l.create, follow: l.follow, arrived: func(event watch.Event) (string,
		bool) {
		object, is := event.Object.(*unstructured.Unstructured)
		if !is {
			return "", false
		}
		state, _, _ := unstructured.NestedString(object.Object, "status", "state")
		return object.GetName(), state == leastRunning
	}}, nil
}

func (l *least) follow(ctx context.Context, from string) (watch.Interface, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(leastKind.GroupVersion().WithKind(leastKind.Kind + "List"))
	return l.user.Watch(ctx, list, client.InNamespace(benchNamespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: from}})
}

func (l *least) create(ctx context.Context, name string) error {
	object := newLeast(name)
	if err := l.user.Create(ctx, object); err != nil {
		return err
	}
	l.mu.Lock()
	l.made[name] = object
	l.mu.Unlock()
	core := l.userPods.CoreV1()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"key": []byte("none")}}
	if _, err := core.Secrets(benchNamespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := core.Pods(benchNamespace).Create(ctx, minimalPod(name, leastApp), metav1.CreateOptions{})
	return err
}

func (l *least) finish(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-l.ready:
			if err := l.writeStatus(ctx, name); err != nil && ctx.Err() == nil {
				say("%v", err)
			}
		}
	}
}

// writeStatus writes the status of an object one time, although several events may report that its
// pod is ready.
func (l *least) writeStatus(ctx context.Context, name string) error {
	l.mu.Lock()
	object := l.made[name]
	delete(l.made, name)
	l.mu.Unlock()
	if object == nil {
		return nil
	}
	object.Object["status"] = map[string]any{"state": leastRunning}
	if err := l.user.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("write the status of %s: %w", name, err)
	}
	return nil
}
