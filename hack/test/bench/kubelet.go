package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/node"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

const (
	nodeName = "bench"
	// kubeletWorkers is the number of concurrent pod writes: more than the API server can serve.
	kubeletWorkers = 32
)

// startKubelet registers a node and reports its pods as running. It keeps the node ready, so that
// no controller evicts the pods.
func (b *bed) startKubelet(ctx context.Context) error {
	nodes, err := kubernetes.NewForConfig(b.admin)
	if err != nil {
		return err
	}
	if err := registerNode(ctx, nodes); err != nil {
		return fmt.Errorf("register the node: %w", err)
	}
	go node.KeepLease(ctx, nodes, nodeName, say)
	pods, err := client.NewWithWatch(binary(b.admin), client.Options{Scheme: b.parley.Client.Scheme()})
	if err != nil {
		return err
	}
	_, err = fakekubelet.Run(ctx, fakekubelet.Options{Client: pods, Node: nodeName, Workers: kubeletWorkers})
	return err
}

func registerNode(ctx context.Context, c kubernetes.Interface) error {
	now := metav1.Now()
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100k"), corev1.ResourceMemory: resource.MustParse(
		"100Ti"), corev1.ResourcePods: resource.MustParse("100k")}
	nodes := c.CoreV1().Nodes()
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName,
		Labels: map[string]string{corev1.LabelHostname: nodeName}}}
	if _, err := nodes.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		return err
	}
	// Controllers update a new node at the same time.
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

// isReady reports whether a pod is running and ready.
func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
