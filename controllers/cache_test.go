package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// largeTools returns tool servers with 400 KiB of variables; the last one refers to a Secret.
func largeTools() *v1alpha1.MCPConfig {
	tools := &v1alpha1.MCPConfig{}
	for i := range 16 {
		server := v1alpha1.MCPStdioServer{Name: fmt.Sprint("s", i), Command: "run"}
		for j := range 64 {
			server.Env = append(server.Env, v1alpha1.MCPEnvVar{Name: fmt.Sprint("V", j),
				Value: ptr.To(fmt.Sprintf("value-%d-%d-", i, j) + strings.Repeat("v", 400))})
		}
		tools.StdioServers = append(tools.StdioServers, server)
	}
	tools.StdioServers[15].Env[63] = v1alpha1.MCPEnvVar{Name: "KEY", SecretRef: &v1alpha1.SecretKeyRef{Name: "key",
		Key: "k"}}
	return tools
}

func largeMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{
		"example.com/large": strings.Repeat("x", 200<<10)},
		Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelUserSettings: "eve"}}
}

func largeObjects(namespace string) []client.Object {
	policy := &networkingv1.NetworkPolicy{ObjectMeta: largeMeta(namespace, "large")}
	for i := range 2000 {
		policy.Spec.Egress = append(policy.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
			To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{
				CIDR: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)}}}})
	}
	return []client.Object{
		&v1alpha1.UserSettings{ObjectMeta: largeMeta(namespace, "ada"),
			Spec: v1alpha1.UserSettingsSpec{MCPConfig: largeTools()}},
		&v1alpha1.Conversation{ObjectMeta: largeMeta(namespace, "talk"),
			Spec: v1alpha1.ConversationSpec{UserSettingsName: "ada", MCPConfig: largeTools()}},
		&corev1.PersistentVolumeClaim{ObjectMeta: largeMeta(namespace, "large"), Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi")}}}},
		&corev1.Service{ObjectMeta: largeMeta(namespace, "large"), Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Port: 80}}}},
		&corev1.Pod{ObjectMeta: largeMeta(namespace, "large"), Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "example.com/" + strings.Repeat("i", 100<<10)}}}},
		&corev1.Secret{ObjectMeta: largeMeta(namespace, "large")},
		&corev1.ConfigMap{ObjectMeta: largeMeta(namespace, "large")},
		policy,
	}
}

func TestATenantCannotFillTheManagersMemory(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	objects := largeObjects(ns)
	create(t, objects...)
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	options := cacheOptions(Scope{Operator: "parley-system", Namespaces: []string{ns}})
	options.Scheme = scheme
	cached, err := newCache(managerREST, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- cached.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	if !cached.WaitForCacheSync(ctx) {
		t.Fatal("the cache did not fill")
	}
	for _, object := range objects {
		stored, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		switch object.(type) {
		case *corev1.Secret, *corev1.ConfigMap:
			metadata := &metav1.PartialObjectMetadata{}
			metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(strings.TrimPrefix(fmt.Sprintf("%T", object),
				"*v1.")))
			metadata.Namespace, metadata.Name, object = ns, object.GetName(), metadata
		}
		if err := cached.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			t.Fatal(err)
		}
		held, err := json.Marshal(object)
		if err != nil || len(stored) < 200<<10 || len(held) > 8<<10 {
			t.Errorf("%T of %d KiB has %d KiB in the cache (%v)", object, len(stored)>>10, len(held)>>10, err)
		}
	}
}

func TestASessionGetsTheWholeSpecEvenIfTheCacheTruncatesIt(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	objects := largeObjects(ns)[:2]
	create(t, objects...)
	// The truncated spec still names the Secret. The session therefore waits for the Secret, and
	// starts when the Secret is created.
	awaitState(t, ns, "talk", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "key"}, Data: map[string][]byte{
		"k": []byte("secret-value")}})
	kubelet{t, ns, "talk"}.pod()
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName("talk")},
		secret); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"value-0-0-", "value-15-62-"} {
		if !bytes.Contains(secret.Data[session.DocumentFile], []byte(value+strings.Repeat("v", 400))) {
			t.Errorf("the session does not get %s", value)
		}
	}
	awaitSettings(t, objects[0].(*v1alpha1.UserSettings), v1alpha1.ReasonReady)
}
