package e2e

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

// podsRejected binds pods to a node whose kubelet rejects them, as it does during its shutdown,
// until the node accepts them.
func podsRejected(t *t) {
	const label = "parley.dev/e2e-accepts"
	ns := t.newNamespace()
	defer t.makeClass(ns, func(s *v1alpha1.SessionClassSpec) {
		s.Placement = &v1alpha1.SessionPlacement{NodeSelector: map[string]string{label: ns}}
	})()
	t.settings(ns, nil)
	c := t.conversation(ns, "rejected", ofClass(ns))
	for attempt := 1; attempt <= 3; attempt++ {
		pod := &corev1.Pod{}
		t.eventually(func(ctx context.Context) error {
			err := t.client.Get(ctx, podKey(c), pod)
			if got := pod.Labels[v1alpha1.LabelAttempt]; err == nil && got != strconv.Itoa(attempt) {
				err = fmt.Errorf("the pod has attempt %s, want %d", got, attempt)
			}
			return err
		})
		t.must(fakekubelet.Bind(t.ctx, t.client, pod, nodeName))
	}
	t.await(c, v1alpha1.StateStarting, v1alpha1.ReasonBackingOff)
	t.Logf("%s", c.Status.Message)
	if c.Status.Restarts != 0 || c.Status.LastRestart != "NodeAffinity" {
		t.Errorf("recorded %d restarts, the last one caused by %s", c.Status.Restarts, c.Status.LastRestart)
	}
	_, err := t.kubectl(t.ctx, "label", "node", nodeName, label+"="+ns)
	t.must(err)
	defer func() {
		if _, err := t.kubectl(context.WithoutCancel(t.ctx), "label", "node", nodeName, label+"-"); err != nil {
			t.Errorf("remove the label of the node: %v", err)
		}
	}()
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// podsEvicted fills the scratch space of a session until its kubelet evicts the pod, twice.
func podsEvicted(t *t) {
	ns := t.newNamespace()
	defer t.makeClass(ns, func(s *v1alpha1.SessionClassSpec) {
		s.Resources = &v1alpha1.SessionResources{ScratchSize: ptr.To(resource.MustParse("32Mi"))}
	})()
	t.settings(ns, nil)
	c := t.conversation(ns, "evicted", ofClass(ns))
	for attempt := int32(1); attempt <= 2; attempt++ {
		t.eventually(func(context.Context) error {
			t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
			if ran := c.Status.RanAttempt; ran != attempt {
				return fmt.Errorf("attempt %d runs, want %d", ran, attempt)
			}
			return nil
		})
		t.shell(c, "head -c 64M /dev/zero > /workspace/big")
	}
	t.await(c, v1alpha1.StateStarting, v1alpha1.ReasonBackingOff)
	t.Logf("%s", c.Status.Message)
	if c.Status.LastRestart != "Evicted" {
		t.Errorf("the last restart was caused by %s", c.Status.LastRestart)
	}
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}
