package installed

import (
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func tokenOf(t *testing.T, account *corev1.ServiceAccount) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if err := env.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

func converse(t *testing.T, namespace, name string, set func(*v1alpha1.ConversationSpec)) *v1alpha1.Conversation {
	t.Helper()
	c := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if set != nil {
		set(&c.Spec)
	}
	create(t, c)
	return c
}

func awaitPod(t *testing.T, namespace, conversation string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	testenv.Await(t, func() error {
		err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.SessionName(conversation)},
			pod)
		if err == nil && pod.DeletionTimestamp != nil {
			return fmt.Errorf("the pod is being deleted")
		}
		return err
	})
	return pod
}

// finish reports a pod as ended, as a kubelet would.
func finish(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "session", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}},
	}}
	if err := env.Client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

func awaitReason(t *testing.T, c *v1alpha1.Conversation, reason string) {
	t.Helper()
	testenv.Await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		if c.Status.Reason != reason {
			return fmt.Errorf("the Conversation is %s, %s: %s", c.Status.State, c.Status.Reason, c.Status.Message)
		}
		return nil
	})
}

func change(t *testing.T, o client.Object, set func()) {
	t.Helper()
	testenv.Await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		set()
		return env.Client.Update(t.Context(), o)
	})
}

func gone(t *testing.T, o client.Object) error {
	err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%T %s still exists: %w", o, o.GetName(), err)
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

func storageClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "standard",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "example.com/none",
	}
}
