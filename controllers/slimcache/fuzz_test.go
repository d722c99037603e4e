package slimcache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/lifecycletest"
	"github.com/parley-dev/parley/hack/test/objecttest"
)

const (
	// maxObject is more than the API server stores in one object.
	maxObject = 2 << 20
	// maxCached is the maximum size of a cached object as JSON. maxCachedSpec is the maximum size
	// without the status, which only the manager writes.
	maxCached, maxCachedSpec = 96 << 10, 64 << 10
)

// fuzzedKinds are the kinds in the cache whose objects users can write.
var fuzzedKinds = []func() client.Object{
	func() client.Object { return &v1alpha1.Conversation{} },
	func() client.Object { return &v1alpha1.UserSettings{} },
	func() client.Object { return &metav1.PartialObjectMetadata{} },
	func() client.Object { return &corev1.Pod{} },
	func() client.Object { return &corev1.PersistentVolumeClaim{} },
	func() client.Object { return &corev1.Service{} },
	func() client.Object { return &networkingv1.NetworkPolicy{} },
	func() client.Object { return &storagev1.StorageClass{} },
}

// obeySchema replaces values that the API server would reject. It covers only the fields for which
// the controllers rely on this validation.
func obeySchema(object client.Object) {
	object.GetObjectKind().SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Kind"))
	object.SetSelfLink("")
	object.SetName("n")
	object.SetNamespace("ns")
	object.SetUID("uid")
	object.SetResourceVersion("1")
	switch o := object.(type) {
	case *v1alpha1.Conversation:
		spec := &o.Spec
		spec.ImageURLs = spec.ImageURLs[:min(len(spec.ImageURLs), 16)]
		spec.UserSettingsName = "ada"
		spec.RestartAt = nil
		if spec.SessionClassName != nil {
			spec.SessionClassName = ptr.To(lifecycle.Truncate(*spec.SessionClassName, 53))
		}
		if spec.Workspace != nil {
			*spec.Workspace = v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To(strings.Repeat("s", 253))}
		}
	case *corev1.Pod:
		for i := range o.Status.ContainerStatuses {
			o.Status.ContainerStatuses[i].Name = fmt.Sprint("sidecar", i)
		}
		if len(o.Status.ContainerStatuses) > 0 {
			o.Status.ContainerStatuses[0].Name = lifecycle.SessionContainer
		}
		for i := range o.Spec.Containers {
			o.Spec.Containers[i].Name = fmt.Sprint("sidecar", i)
		}
		if len(o.Spec.Containers) > 0 {
			o.Spec.Containers[0].Name = lifecycle.SessionContainer
		}
	}
}

// Every object that the API server can store has a bounded size in the cache. The controllers make
// the same decisions with the cached object as with the complete object: the cache marks a
// truncated spec, and keeps the owner and the names of ConfigMaps and Secrets. If there are too
// many names of Secrets, the cache keeps AnySecret instead, which stands for every Secret.
func FuzzTransform(f *testing.F) {
	for kind := range fuzzedKinds {
		for _, choices := range []string{"", "\x01\x02\x03", "zq9 8b", "\x07\x06\x04\x03"} {
			f.Add([]byte(choices), byte(kind), kind%2 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, choices []byte, kind byte, ofConversation bool) {
		object := fuzzedKinds[int(kind)%len(fuzzedKinds)]()
		objecttest.Fill(object, choices, maxObject, slices.Concat(keptLabels, keptAnnotations[:3])...)
		obeySchema(object)
		owner := lifecycletest.MakeConversation("ns", "owner").Conversation
		if ofConversation {
			object.SetOwnerReferences(append(object.GetOwnerReferences(),
				*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("Conversation"))))
		}
		before := object.DeepCopyObject().(client.Object)
		cached(t, object)
		checkSize(t, object)
		checkDecisions(t, before, object)
		if metav1.IsControlledBy(before, owner) != metav1.IsControlledBy(object, owner) || object.GetUID() != "uid" {
			t.Errorf("the owners are %v, were %v", object.GetOwnerReferences(), before.GetOwnerReferences())
		}
		again := object.DeepCopyObject().(client.Object)
		if cached(t, again); !bytes.Equal(jsonOf(t, again), jsonOf(t, object)) {
			t.Error("a second transform changes the object")
		}
	})
}

func jsonOf(t *testing.T, object any) []byte {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func checkSize(t *testing.T, object client.Object) {
	t.Helper()
	if size := len(jsonOf(t, object)); size > maxCached {
		t.Errorf("%T has %d bytes in the cache", object, size)
	}
	object = object.DeepCopyObject().(client.Object)
	switch o := object.(type) {
	case *v1alpha1.Conversation:
		o.Status = v1alpha1.ConversationStatus{}
	case *v1alpha1.UserSettings:
		o.Status = v1alpha1.UserSettingsStatus{}
	case *corev1.Pod:
		o.Status = corev1.PodStatus{}
	}
	if size := len(jsonOf(t, object)); size > maxCachedSpec {
		t.Errorf("%T has %d bytes without its status in the cache", object, size)
	}
}

func checkDecisions(t *testing.T, before, after client.Object) {
	t.Helper()
	switch before := before.(type) {
	case *v1alpha1.Conversation:
		after := after.(*v1alpha1.Conversation)
		checkSecrets(t, before.SecretReferences(), after.SecretReferences())
		if !reflect.DeepEqual(before.ConfigMapReferences(), after.ConfigMapReferences()) {
			t.Errorf("the ConfigMaps are %v", after.ConfigMapReferences())
		}
		if !Truncated(after) && !reflect.DeepEqual(before.Spec, after.Spec) {
			t.Errorf("the spec is truncated without a mark: %s", jsonOf(t, after.Spec))
		}
		if lifecycle.HasWork(&before.Spec) != lifecycle.HasWork(&after.Spec) ||
			!ptr.Equal(before.Spec.SessionClassName, after.Spec.SessionClassName) ||
			!reflect.DeepEqual(before.Spec.Workspace, after.Spec.Workspace) {
			t.Errorf("the cached spec is %s", jsonOf(t, after.Spec))
		}
		checkVerdict(t, lifecycle.Observation{Conversation: before}, lifecycle.Observation{Conversation: after})
	case *v1alpha1.UserSettings:
		after := after.(*v1alpha1.UserSettings)
		checkSecrets(t, before.SecretReferences(), after.SecretReferences())
		if !Truncated(after) && !reflect.DeepEqual(before.Spec, after.Spec) {
			t.Errorf("the spec is truncated without a mark: %s", jsonOf(t, after.Spec))
		}
	case *corev1.Pod:
		c := lifecycletest.MakeConversation("ns", "c").Conversation
		checkVerdict(t, lifecycle.Observation{Conversation: c, Pod: before},
			lifecycle.Observation{Conversation: c, Pod: after.(*corev1.Pod)})
	}
}

// checkSecrets checks that the cached references contain the name of every Secret, or that they
// contain AnySecret, which stands for all names.
func checkSecrets(t *testing.T, before, after []v1alpha1.SecretReference) {
	t.Helper()
	named := func(name string) bool {
		return slices.ContainsFunc(after, func(r v1alpha1.SecretReference) bool { return r.Ref.Name == name })
	}
	for _, ref := range before {
		if !named(ref.Ref.Name) && !named(AnySecret) {
			t.Fatalf("the cache does not find Secret %s", ref.Ref.Name)
		}
	}
}

func checkVerdict(t *testing.T, before, after lifecycle.Observation) {
	t.Helper()
	before.SettingsExist, after.SettingsExist = true, true
	before.Now, after.Now = lifecycletest.Noon, lifecycletest.Noon
	if want, got := lifecycle.Judge(before), lifecycle.Judge(after); got.State != want.State || got.Pod != want.Pod ||
		got.Stalled != want.Stalled {
		t.Errorf("the verdict is %+v for the cached object, %+v for the complete object", got, want)
	}
}
