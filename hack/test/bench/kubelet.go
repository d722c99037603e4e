package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/node"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

const (
	nodeName = "bench"
	// kubeletWorkers is the number of concurrent pod writes. It is so high that the API server is
	// the bottleneck.
	kubeletWorkers = 32
)

// startKubelet starts a fake kubelet, which reports pods as running. It also keeps its node ready,
// so that no controller evicts the pods.
func (b *bed) startKubelet(ctx context.Context) error {
	nodes, err := kubernetes.NewForConfig(b.admin)
	if err != nil {
		return err
	}
	if err := node.Register(ctx, nodes, roomyNode(), say); err != nil {
		return err
	}
	pods, err := client.NewWithWatch(binary(b.admin), client.Options{Scheme: b.parley.Client.Scheme()})
	if err != nil {
		return err
	}
	_, err = fakekubelet.Run(ctx, fakekubelet.Options{Client: pods, Node: nodeName, Workers: kubeletWorkers,
		Warm: &fakekubelet.WarmPods{}})
	return err
}

func roomyNode() *corev1.Node {
	now := metav1.Now()
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100k"),
		corev1.ResourceMemory: resource.MustParse("100Ti"), corev1.ResourcePods: resource.MustParse("100k")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelHostname: nodeName}},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Fake",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
