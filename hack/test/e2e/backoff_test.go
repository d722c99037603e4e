package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

// podsRejected binds pods to a node whose kubelet rejects them. It then labels the node, and the
// kubelet must accept the next pod.
func podsRejected(t *t) {
	const label = "parley.dev/e2e-accepts"
	ns := t.newNamespace()
	defer t.makeClass(ns, func(s *v1alpha1.SessionClassSpec) {
		s.Placement = &v1alpha1.SessionPlacement{NodeSelector: map[string]string{label: ns}}
	})()
	t.settings(ns, nil)
	c := t.conversation(ns, "rejected", ofClass(ns))
	for attempt := 1; attempt <= 3; attempt++ {
		t.bind(c, attempt)
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

// minDisk is a number of bytes. During podsEvicted, the kubelet evicts pods if its disk has less
// free space than minDisk. The kubelet excludes minDisk from the storage that pods can request. The
// rest of the disk must be enough for the storage requests of all pods.
const minDisk = 512 << 20

// podsEvicted makes the kubelet evict the session's pod two times: because the node's disk is
// nearly full, and because the session exceeds its scratch space.
func podsEvicted(t *t) {
	var node, images syscall.Statfs_t
	t.must(errors.Join(syscall.Statfs(t.kubeletDir(), &node), syscall.Statfs(t.state, &images)))
	if node.Fsid == images.Fsid {
		t.Skip("the kubelet has no disk of its own")
	}
	ns := t.newNamespace()
	defer t.makeClass(ns, func(s *v1alpha1.SessionClassSpec) {
		s.Resources = &v1alpha1.SessionResources{ScratchSize: ptr.To(resource.MustParse("256Mi"))}
	})()
	t.settings(ns, nil)
	c := t.running(ns, "evicted", ofClass(ns))
	defer t.fillDisk(minDisk + 64<<20)()
	t.must(t.restartKubelet(t.ctx, kubeletSettings{minDisk: strconv.Itoa(minDisk)}))
	undo := sync.OnceFunc(func() { t.must(t.restartKubelet(context.WithoutCancel(t.ctx), usualKubelet)) })
	defer undo()
	t.retry(func(ctx context.Context) error {
		// Ignore errors: the command fails until the restarted kubelet serves it, and the eviction
		// may end it.
		_, _ = t.exec(ctx, c, "head -c 224M /dev/zero > /workspace/big")
		return t.checkCondition(ctx, corev1.NodeDiskPressure, corev1.ConditionTrue)
	})
	t.retry(func(ctx context.Context) error {
		events, err := t.kubectl(ctx, "get", "events", "--namespace="+ns, "--output=jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(events, "The node was low on resource: ephemeral-storage") {
			err = errors.New("the kubelet evicted no pod for its disk: " + events)
		}
		return err
	})
	t.awaitCondition(corev1.NodeDiskPressure, corev1.ConditionFalse)
	undo()
	t.awaitAttempt(c, 2)
	if !strings.HasPrefix(c.Status.LastRestart, "Evicted") {
		t.Errorf("the pod on a full disk was lost because of %s", c.Status.LastRestart)
	}
	t.shell(c, "head -c 300M /dev/zero > /workspace/big")
	t.await(c, v1alpha1.StateStarting, v1alpha1.ReasonBackingOff)
	t.Logf("%s", c.Status.Message)
	if !strings.HasPrefix(c.Status.LastRestart, "Evicted") {
		t.Errorf("the last restart was caused by %s", c.Status.LastRestart)
	}
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// diskFilled fills /tmp, in the container's writable layer, until the kubelet evicts the pod. The
// node must stay healthy. The session ends as Lost: it was created with work and has no volume, so a
// new pod might repeat the work.
func diskFilled(t *t) {
	ns := t.newNamespace()
	defer t.makeClass(ns, func(s *v1alpha1.SessionClassSpec) {
		s.Resources = &v1alpha1.SessionResources{Limits: corev1.ResourceList{
			corev1.ResourceEphemeralStorage: resource.MustParse("256Mi")}}
	})()
	c := t.startWork(ns, "full", ofClass(ns))
	_, _ = t.exec(t.ctx, c, "while :; do head -c 8M /dev/zero >> /tmp/big; sleep 0.1; done") // until the eviction
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonLost)
	t.Logf("%s", c.Status.Message)
	if !strings.Contains(c.Status.Message, "Evicted: ") || !strings.Contains(c.Status.Message, "ephemeral") {
		t.Errorf("the message does not name the cause: %s", c.Status.Message)
	}
	t.awaitCondition(corev1.NodeDiskPressure, corev1.ConditionFalse)
	t.awaitCondition(corev1.NodeReady, corev1.ConditionTrue)
	// plainClass sets no limit, so a default limit applies. Sessions in Parley's own image also
	// have a read-only root file system.
	main := t.podOf(t.running(ns, "next", ofClass(plainClass))).Spec.Containers[0]
	readOnly := ptr.Deref(main.SecurityContext.ReadOnlyRootFilesystem, false)
	if main.Resources.Limits.StorageEphemeral().IsZero() || !readOnly {
		t.Errorf("the limits are %v, and the security context is %v", main.Resources.Limits, main.SecurityContext)
	}
}

// fillDisk fills the kubelet's disk, except for this number of free bytes.
func (t *t) fillDisk(free int64) (undo func()) {
	var disk syscall.Statfs_t
	t.must(syscall.Statfs(t.kubeletDir(), &disk))
	file, err := os.Create(filepath.Join(t.kubeletDir(), "ballast"))
	t.must(err)
	t.must(syscall.Fallocate(int(file.Fd()), 0, 0, int64(disk.Bavail)*disk.Bsize-free))
	t.must(file.Close())
	return func() { t.must(os.Remove(file.Name())) }
}

func (t *t) awaitAttempt(c *v1alpha1.Conversation, attempt int32) {
	t.retry(func(context.Context) error {
		t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		if ran := c.Status.RanAttempt; ran < attempt {
			return fmt.Errorf("attempt %d runs, want %d", ran, attempt)
		}
		return nil
	})
}

func (t *t) awaitCondition(kind corev1.NodeConditionType, want corev1.ConditionStatus) {
	t.retry(func(ctx context.Context) error { return t.checkCondition(ctx, kind, want) })
}

func (t *t) checkCondition(ctx context.Context, kind corev1.NodeConditionType, want corev1.ConditionStatus) error {
	var node corev1.Node
	if err := t.client.Get(ctx, client.ObjectKey{Name: nodeName}, &node); err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == kind && c.Status == want {
			return nil
		}
	}
	return fmt.Errorf("the node's %s is not %s", kind, want)
}

// podsShutDown announces a node shutdown. The kubelet then ends the session's pod and rejects new
// pods. The kubelet ends pods with a low priority first. A stubborn pod with a low priority
// therefore keeps Parley's own pods, which have a higher priority, alive.
func podsShutDown(t *t) {
	logind, stop := t.startLogind()
	defer stop()
	ns := t.newNamespace()
	t.settings(ns, nil)
	t.must(t.restartKubelet(t.ctx, kubeletSettings{minDisk: usualKubelet.minDisk,
		shutdowns: "{priority: 0, shutdownGracePeriodSeconds: 400}, {priority: 1000000, shutdownGracePeriodSeconds: 1}"}))
	undo := sync.OnceFunc(func() { t.must(t.restartKubelet(context.WithoutCancel(t.ctx), usualKubelet)) })
	defer undo()
	select {
	case <-logind.inhibited:
	case <-t.ctx.Done():
		t.Fatal("the kubelet does not watch for shutdowns")
	}
	defer t.runStubborn()()
	c := t.running(ns, "rejected", ofClass(scratchClass))
	t.must(logind.announceShutdown())
	for attempt := 2; attempt <= 4; attempt++ {
		t.bind(c, attempt)
	}
	t.retry(func(context.Context) error {
		t.await(c, v1alpha1.StateStarting, v1alpha1.ReasonBackingOff)
		if c.Status.LastRestart != "NodeShutdown" || c.Status.Attempt < 5 {
			return fmt.Errorf("attempt %d was lost because of %s", c.Status.Attempt, c.Status.LastRestart)
		}
		return nil
	})
	t.Logf("%s", c.Status.Message)
	if c.Status.Restarts > 1 {
		t.Errorf("recorded %d restarts, though only the first pod ran", c.Status.Restarts)
	}
	undo()
	t.awaitCondition(corev1.NodeReady, corev1.ConditionTrue)
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	t.must(t.awaitParley(t.ctx))
}

// runStubborn runs a pod that ignores SIGTERM.
func (t *t) runStubborn() (remove func()) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "stubborn"},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](400), Containers: []corev1.Container{{
			Name: "stubborn", Image: debianImage, ImagePullPolicy: corev1.PullNever,
			Command: []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"},
		}}}}
	t.must(t.client.Create(t.ctx, pod))
	t.retry(func(ctx context.Context) error {
		if err := t.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("the pod %s is %s", pod.Name, pod.Status.Phase)
		}
		return nil
	})
	return func() {
		if err := t.client.Delete(context.WithoutCancel(t.ctx), pod, client.GracePeriodSeconds(0)); err != nil {
			t.Errorf("delete the pod: %v", err)
		}
	}
}

// bind binds the pod of an attempt to the node if the scheduler has not bound it.
func (t *t) bind(c *v1alpha1.Conversation, attempt int) {
	t.retry(func(ctx context.Context) error {
		pod := &corev1.Pod{}
		if err := t.client.Get(ctx, podKey(c), pod); err != nil {
			return err
		}
		switch got := pod.Labels[v1alpha1.LabelAttempt]; {
		case got != strconv.Itoa(attempt):
			return fmt.Errorf("the pod has attempt %s, want %d", got, attempt)
		case pod.Spec.NodeName != "":
			return nil
		}
		return fakekubelet.Bind(ctx, t.client, pod, nodeName)
	})
}
