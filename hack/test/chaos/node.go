package main

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	nodeName    = "stub"
	nodeWorkers = 4
	// workTime is how long a session that ends by itself works.
	workTime   = 300 * time.Millisecond
	retryAfter = 200 * time.Millisecond
	// once begins the names of sessions that end by themselves.
	once = "once-"
)

// node is a stub of a scheduler, a node and its kubelet: it says of pods what those would, and runs
// nothing. It never loses a pod.
type node struct {
	client client.WithWatch
	pods   cache.Store
	queue  workqueue.TypedDelayingInterface[string]
	ran    atomic.Int64
}

func startNode(ctx context.Context, c client.WithWatch) (*node, error) {
	n := &node{client: c, queue: workqueue.NewTypedDelayingQueue[string]()}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &corev1.PodList{}
			return list, c.List(ctx, list, &client.ListOptions{Raw: &o}, ofSessions)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &corev1.PodList{}, &client.ListOptions{Raw: &o}, ofSessions)
		},
	}
	enqueue := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			n.queue.Add(key)
		}
	}
	var informer cache.Controller
	n.pods, informer = cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: source, ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) },
		}})
	go informer.RunWithContext(ctx)
	context.AfterFunc(ctx, n.queue.ShutDown)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, context.Cause(ctx)
	}
	for range nodeWorkers {
		go n.work(ctx)
	}
	return n, nil
}

var ofSessions = client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
	v1alpha1.LabelComponent: v1alpha1.ComponentSession}

// started is how many pods it said to run.
func (n *node) started() int64 { return n.ran.Load() }

func (n *node) work(ctx context.Context) {
	for {
		key, over := n.queue.Get()
		if over {
			return
		}
		object, found, err := n.pods.GetByKey(key)
		if err == nil && found {
			err = n.step(ctx, object.(*corev1.Pod).DeepCopy(), key)
		}
		if err != nil {
			n.queue.AddAfter(key, retryAfter) // its informer may be behind, or the API server away
		}
		n.queue.Done(key)
	}
}

// step says the next thing that is to be said of a pod. The event of that brings it back.
func (n *node) step(ctx context.Context, pod *corev1.Pod, key string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ended := pod.Status.Phase == corev1.PodSucceeded
	switch {
	case pod.DeletionTimestamp != nil && pod.Status.Phase == corev1.PodRunning:
		// Whoever is told to stop does so, and says nothing of the session's end.
		return n.end(ctx, pod, "")
	case pod.DeletionTimestamp != nil:
		return client.IgnoreNotFound(n.client.Delete(ctx, pod, client.GracePeriodSeconds(0),
			client.Preconditions{UID: &pod.UID}))
	case pod.Spec.NodeName == "":
		return n.client.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node",
			Name: nodeName}})
	case pod.Status.Phase != corev1.PodRunning && !ended:
		return n.run(ctx, pod)
	case !ended && strings.HasPrefix(pod.Name, once):
		began := pod.Status.ContainerStatuses[0].State.Running.StartedAt
		if left := workTime - time.Since(began.Time); left > 0 {
			n.queue.AddAfter(key, left)
			return nil
		}
		return n.end(ctx, pod, `{"reason":"Completed","message":"done"}`)
	}
	return nil
}

func (n *node) run(ctx context.Context, pod *corev1.Pod) error {
	now := metav1.Now()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: pod.Spec.Containers[0].Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{
				StartedAt: now}},
		}},
	}
	for _, condition := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition,
			Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	err := n.client.Status().Update(ctx, pod)
	if err == nil {
		n.ran.Add(1)
	}
	return err
}

func (n *node) end(ctx context.Context, pod *corev1.Pod, message string) error {
	pod.Status.Phase = corev1.PodSucceeded
	status := &pod.Status.ContainerStatuses[0]
	status.Ready = false
	status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: "Completed", Message: message, StartedAt: status.State.Running.StartedAt, FinishedAt: metav1.Now(),
	}}
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			pod.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
	return n.client.Status().Update(ctx, pod)
}

// uidOf the Conversation that owns an object; empty if none does.
func uidOf(owners []metav1.OwnerReference) types.UID {
	for _, owner := range owners {
		if owner.Kind == "Conversation" && owner.Controller != nil && *owner.Controller {
			return owner.UID
		}
	}
	return ""
}
