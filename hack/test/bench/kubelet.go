package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/hack/local/node"
)

const (
	nodeName = "bench"
	// hands are how many pods the kubelet sees to at once: more than the API server can be given to
	// do.
	hands = 32
)

// kubelet is a scheduler and a node's kubelet that run nothing. Of every pod it writes twice,
// whoever made it: that it is bound to the node, and that it runs, is ready and has an address. It
// keeps its node alive, so that no controller evicts the pods.
type kubelet struct {
	client kubernetes.Interface
	work   chan *corev1.Pod

	mu   sync.Mutex
	pods uint32
}

// runKubelet registers the node and sees to its pods until the context ends.
func runKubelet(ctx context.Context, client kubernetes.Interface) (*kubelet, error) {
	k := &kubelet{client: client, work: make(chan *corev1.Pod, 1<<16)}
	if err := k.register(ctx); err != nil {
		return nil, fmt.Errorf("register the node: %w", err)
	}
	go node.KeepLease(ctx, client, nodeName, say)
	if err := keepWatching(ctx, func(ctx context.Context, from string) (watch.Interface, error) {
		return client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: from})
	}, k.notice); err != nil {
		return nil, err
	}
	for range hands {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case pod := <-k.work:
					if err := k.see(ctx, pod); err != nil && ctx.Err() == nil {
						say("pod %s: %v", pod.Name, err)
					}
				}
			}
		}()
	}
	return k, nil
}

func (k *kubelet) register(ctx context.Context) error {
	now := metav1.Now()
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100k"), corev1.ResourceMemory: resource.MustParse(
		"100Ti"), corev1.ResourcePods: resource.MustParse("100k")}
	nodes := k.client.CoreV1().Nodes()
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName,
		Labels: map[string]string{corev1.LabelHostname: nodeName}}}
	if _, err := nodes.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		return err
	}
	// Controllers write to a new node at the same time.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		made, err := nodes.Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		made.Status.Capacity, made.Status.Allocatable = room, room
		made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Fake",
			LastHeartbeatTime: now, LastTransitionTime: now}}
		_, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
}

// notice a pod that something is to be done about.
func (k *kubelet) notice(event watch.Event) {
	pod, isPod := event.Object.(*corev1.Pod)
	if isPod && event.Type != watch.Deleted && (pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil) {
		k.work <- pod
	}
}

// see to the next thing that a pod needs.
func (k *kubelet) see(ctx context.Context, pod *corev1.Pod) error {
	pods := k.client.CoreV1().Pods(pod.Namespace)
	var err error
	switch {
	case pod.DeletionTimestamp != nil:
		err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0),
			Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.Spec.NodeName == "":
		err = pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
		}, metav1.CreateOptions{})
	default:
		pod.Status = k.running(pod)
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or changed: an event says how
	}
	return err
}

// running is the status of a pod that runs and is ready.
func (k *kubelet) running(pod *corev1.Pod) corev1.PodStatus {
	k.mu.Lock()
	k.pods++
	n := k.pods
	k.mu.Unlock()
	now := metav1.Now()
	address := fmt.Sprintf("10.%d.%d.%d", 128+n>>16&127, n>>8&255, n&255)
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, HostIP: "192.0.2.1", HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}},
		PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, QOSClass: pod.Status.QOSClass,
	}
	for i := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, containerStatus(&pod.Spec.InitContainers[i],
			corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now},
			}))
	}
	for i := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, containerStatus(&pod.Spec.Containers[i],
			corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{StartedAt: now},
			}))
	}
	for _, condition := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized,
		corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue,
			LastTransitionTime: now})
	}
	return status
}

func containerStatus(container *corev1.Container, state corev1.ContainerState) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: container.Name, Image: container.Image, ImageID: container.Image, ContainerID: "fake://" + container.Name,
		Ready: true, Started: ptr.To(true), State: state,
	}
}

// isReady says that a pod runs and is ready.
func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
