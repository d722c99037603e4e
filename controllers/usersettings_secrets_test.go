package controllers

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// lists remembers what was listed, and how many objects came back.
type lists struct {
	client.Reader
	fields, labels []string
	items          []string
}

func (l *lists) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := &client.ListOptions{}
	asked.ApplyOptions(options)
	if asked.FieldSelector != nil {
		l.fields = append(l.fields, asked.FieldSelector.String())
	}
	if asked.LabelSelector != nil {
		l.labels = append(l.labels, asked.LabelSelector.String())
	}
	err := l.Reader.List(ctx, list, options...)
	for _, item := range list.(*metav1.PartialObjectMetadataList).Items {
		l.items = append(l.items, item.Name)
	}
	return err
}

// startCache fills a cache like the manager's for one namespace.
func startCache(t *testing.T, namespace string) cache.Cache {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	options := cacheOptions(Scope{Operator: "parley-system", Namespaces: []string{namespace}})
	options.Scheme = scheme
	objects, err := newCache(rest.CopyConfig(asUser), options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	if err := addIndexes(ctx, objects); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- objects.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("cache: %v", err)
		}
	})
	if !objects.WaitForCacheSync(ctx) {
		t.Fatal("the cache did not fill")
	}
	return objects
}

// A selector of labels looks at every Secret of the namespace; an index does not.
func TestTheSecretsKeptForAUserAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	kept := func(name string, labels map[string]string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels},
			Type: v1alpha1.SecretTypeUserKey}
	}
	ada := userSettings(ns, "ada")
	create(t, ada,
		kept("ada-llm-api-key", map[string]string{v1alpha1.LabelUserSettings: "ada"}),
		kept("bob-llm-api-key", map[string]string{v1alpha1.LabelUserSettings: "bob"}),
		kept("talk-tool", map[string]string{v1alpha1.LabelUserSettings: "ada", v1alpha1.LabelConversation: "talk"}),
		kept("unlabelled", nil),
	)
	listed := &lists{Reader: startCache(t, ns)}
	r := &userSettingsReconciler{client: env.Client, cache: listed, clock: clock.RealClock{}}
	if again, err := r.adoptAndPrune(t.Context(), ada); err != nil || again <= 0 {
		t.Errorf("it looks again in %s (%v), though there is a young Secret that nothing refers to", again, err)
	}
	if len(listed.fields) != 1 || listed.fields[0] != indexManagedFor+"=ada" || len(listed.labels) > 0 {
		t.Errorf("listed by the fields %q and the labels %q, want just the index", listed.fields, listed.labels)
	}
	if len(listed.items) != 1 || listed.items[0] != "ada-llm-api-key" {
		t.Errorf("looked at %q, want just what is kept for ada", listed.items)
	}
}
