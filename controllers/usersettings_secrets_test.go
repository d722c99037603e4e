package controllers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// listRecorder records list calls and the names of the returned objects.
type listRecorder struct {
	client.Reader
	fields, labels []string
	items          []string
}

func (l *listRecorder) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	listOptions := &client.ListOptions{}
	listOptions.ApplyOptions(options)
	if listOptions.FieldSelector != nil {
		l.fields = append(l.fields, listOptions.FieldSelector.String())
	}
	if listOptions.LabelSelector != nil {
		l.labels = append(l.labels, listOptions.LabelSelector.String())
	}
	err := l.Reader.List(ctx, list, options...)
	for _, item := range list.(*metav1.PartialObjectMetadataList).Items {
		l.items = append(l.items, item.Name)
	}
	return err
}

// startCache fills a cache of one namespace, with the options of the manager's cache.
func startCache(t *testing.T, namespace string) cache.Cache {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	options := cacheOptions(Scope{Operator: "parley-system", Namespaces: []string{namespace}})
	options.Scheme = scheme
	objects, err := newCache(rest.CopyConfig(managerREST), options)
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

// A label selector scans every Secret of the namespace; an index does not.
func TestManagedSecretsOfAUserAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	managed := func(name string, labels map[string]string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels},
			Type: v1alpha1.SecretTypeUserKey}
	}
	ada := userSettings(ns, "ada")
	create(t, ada,
		managed("ada-llm-api-key", map[string]string{v1alpha1.LabelUserSettings: "ada"}),
		managed("bob-llm-api-key", map[string]string{v1alpha1.LabelUserSettings: "bob"}),
		managed("talk-tool", map[string]string{v1alpha1.LabelUserSettings: "ada", v1alpha1.LabelConversation: "talk"}),
		managed("unlabelled", nil),
	)
	listed := &listRecorder{Reader: startCache(t, ns)}
	r := newUserSettingsReconciler(env.Client, listed, env.Client, clock.RealClock{}, nil)
	if again, err := r.adoptAndPrune(t.Context(), ada); err != nil || again <= 0 {
		t.Errorf("requeued in %s (%v), despite a new unreferenced Secret", again, err)
	}
	if len(listed.fields) != 1 || listed.fields[0] != indexManagedFor+"=ada" || len(listed.labels) > 0 {
		t.Errorf("listed by the fields %q and the labels %q, want only the index", listed.fields, listed.labels)
	}
	if len(listed.items) != 1 || listed.items[0] != "ada-llm-api-key" {
		t.Errorf("listed %q, want only ada's managed Secret", listed.items)
	}
}

func TestOnlyTheChangedSecretOfAUserIsReadAgain(t *testing.T) {
	t.Parallel()
	const secrets = 8
	ns := env.Namespace(t, nil)
	settings := userSettings(ns, "ada")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{}
	for i := range secrets {
		create(t, secretWith(ns, fmt.Sprintf("key-%d", i), "k"))
		settings.Spec.SecretsStore.CustomSecrets = append(settings.Spec.SecretsStore.CustomSecrets,
			v1alpha1.CustomSecret{Name: fmt.Sprintf("KEY_%d", i), SecretRef: *ref(fmt.Sprintf("key-%d", i))})
	}
	startManager(t, ns)
	create(t, settings)
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	reads := func() (changed, others int) {
		for _, r := range testenv.Requests(t, auditDir, managerUser) {
			switch {
			case r.Object.Namespace != ns || r.Object.Resource != "secrets" || r.Verb != "get":
			case r.Object.Name == "key-0":
				changed++
			case strings.HasPrefix(r.Object.Name, "key-"):
				others++
			}
		}
		return changed, others
	}
	_, before := reads()
	change(t, secretWith(ns, "key-0", ""), func(s *corev1.Secret) { s.Data = map[string][]byte{"key": nil} })
	awaitSettings(t, settings, v1alpha1.ReasonKeyNotFound)
	change(t, secretWith(ns, "key-0", ""), func(s *corev1.Secret) { s.Data = map[string][]byte{"key": []byte("again")} })
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	await(t, func() error {
		if changed, _ := reads(); changed < 3 {
			return fmt.Errorf("the changed Secret was read %d times", changed)
		}
		return nil
	})
	if _, others := reads(); others > before {
		t.Errorf("two changes of one Secret read other Secrets %d times", others-before)
	}
}
