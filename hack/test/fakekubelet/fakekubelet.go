// Package fakekubelet replaces a scheduler and a kubelet. It writes the status of pods, but runs no
// containers.
package fakekubelet

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	callTimeout = 30 * time.Second
	retryAfter  = 200 * time.Millisecond
)

// Options configure a Kubelet.
type Options struct {
	Client client.WithWatch
	// Node is the name of the node to which the kubelet binds pods.
	Node string
	// Pods selects pods by label. If it is nil, the kubelet handles all pods.
	Pods client.MatchingLabels
	// Namespace limits the kubelet to one namespace.
	Namespace string
	// Workers is the number of concurrent writes.
	Workers int
	// PodIP is the address of all pods. If it is empty, each pod gets its own address.
	PodIP string
	// If EndFirst is true, the kubelet reports a deleted pod as ended before it removes the pod.
	EndFirst bool
	// Lifetime returns the time after which a pod ends by itself, and the pod's termination
	// message. If the time is zero or Lifetime is nil, the pod runs until it is deleted.
	Lifetime func(*corev1.Pod) (time.Duration, string)
	// Warm answers the Bind requests to warm pods. If it is nil, nothing listens in warm pods.
	Warm *WarmPods
}

// Kubelet binds pods to its node and reports them as running and ready.
type Kubelet struct {
	Options
	pods               cache.Store
	queue              workqueue.TypedDelayingInterface[string]
	addresses, started atomic.Int64
}

// Run starts a kubelet, which handles pods until the context ends.
func Run(ctx context.Context, o Options) (*Kubelet, error) {
	k := &Kubelet{Options: o, queue: workqueue.NewTypedDelayingQueue[string]()}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			list := &corev1.PodList{}
			return list, o.Client.List(ctx, list, &client.ListOptions{Raw: &raw}, o.Pods, client.InNamespace(o.Namespace))
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			return o.Client.Watch(ctx, &corev1.PodList{}, &client.ListOptions{Raw: &raw}, o.Pods,
				client.InNamespace(o.Namespace))
		},
	}
	if o.Warm != nil {
		o.Warm.bound = func(pod types.NamespacedName) { k.queue.Add(pod.String()) } // the pod's lifetime begins
		if err := o.Warm.listen(ctx); err != nil {
			return nil, err
		}
	}
	enqueue := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			k.queue.Add(key)
		}
	}
	var informer cache.Controller
	k.pods, informer = cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: source, ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) },
			DeleteFunc: k.podDeleted}})
	go informer.RunWithContext(ctx)
	context.AfterFunc(ctx, k.queue.ShutDown)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, context.Cause(ctx)
	}
	for range o.Workers {
		go k.work(ctx)
	}
	return k, nil
}

func (k *Kubelet) podDeleted(object any) {
	if pod, isPod := object.(*corev1.Pod); isPod && k.Warm != nil && isWarm(pod) {
		k.Warm.forget(client.ObjectKeyFromObject(pod))
	}
}

// Started returns the number of pods that the kubelet has reported as running.
func (k *Kubelet) Started() int64 { return k.started.Load() }

func (k *Kubelet) work(ctx context.Context) {
	for {
		key, over := k.queue.Get()
		if over {
			return
		}
		object, found, err := k.pods.GetByKey(key)
		if err == nil && found {
			err = k.step(ctx, object.(*corev1.Pod).DeepCopy(), key)
		}
		if err != nil {
			k.queue.AddAfter(key, retryAfter)
		}
		k.queue.Done(key)
	}
}

// step makes the next change of a pod. The change causes an event, which queues the pod again.
func (k *Kubelet) step(ctx context.Context, pod *corev1.Pod, key string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	running := pod.Status.Phase == corev1.PodRunning
	switch {
	case pod.DeletionTimestamp != nil && running && k.EndFirst:
		return k.end(ctx, pod, "") // a stopped session writes no termination message
	case pod.DeletionTimestamp != nil:
		return Release(ctx, k.Client, pod)
	case pod.Spec.NodeName == "":
		return Bind(ctx, k.Client, pod, k.Node)
	case !running && pod.Status.Phase != corev1.PodSucceeded:
		return k.run(ctx, pod)
	case running && k.Warm != nil && isWarm(pod) && !k.Warm.knows(pod): // an earlier kubelet started the pod
		_, err := k.Warm.add(ctx, k.Client, pod)
		return err
	case running && k.Lifetime != nil:
		lifetime, message := k.Lifetime(pod)
		left := lifetime - time.Since(pod.Status.ContainerStatuses[0].State.Running.StartedAt.Time)
		switch {
		case lifetime == 0:
			return nil
		case left > 0:
			k.queue.AddAfter(key, left)
			return nil
		}
		return k.end(ctx, pod, message)
	}
	return nil
}

func (k *Kubelet) run(ctx context.Context, pod *corev1.Pod) error {
	address := k.PodIP
	if k.Warm != nil && isWarm(pod) {
		var err error
		if address, err = k.Warm.add(ctx, k.Client, pod); err != nil {
			return err
		}
	}
	if address == "" {
		n := k.addresses.Add(1)
		address = fmt.Sprintf("10.%d.%d.%d", 128+n>>16&127, n>>8&255, n&255)
	}
	now := metav1.Now()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, HostIP: "192.0.2.1", HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}},
		PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, QOSClass: pod.Status.QOSClass,
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now,
		FinishedAt: now}}
	for _, container := range pod.Spec.InitContainers {
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, containerStatus(container, ended))
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, containerStatus(container, running))
	}
	for _, condition := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized,
		corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition,
			Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	err := k.Client.Status().Update(ctx, pod)
	if err == nil {
		k.started.Add(1)
	}
	return err
}

func containerStatus(container corev1.Container, state corev1.ContainerState) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: container.Name, Image: container.Image, ImageID: container.Image, ContainerID: "fake://" + container.Name,
		Ready: true, Started: ptr.To(true), State: state,
	}
}

func (k *Kubelet) end(ctx context.Context, pod *corev1.Pod, message string) error {
	pod.Status.Phase = corev1.PodSucceeded
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		status.Ready, status.Started = false, ptr.To(false)
		status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: "Completed", Message: message, StartedAt: status.State.Running.StartedAt, FinishedAt: metav1.Now(),
		}}
	}
	for i := range pod.Status.Conditions {
		switch pod.Status.Conditions[i].Type {
		case corev1.PodReady, corev1.ContainersReady:
			pod.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
	return k.Client.Status().Update(ctx, pod)
}

// Bind binds a pod to a node. If a bound pod is deleted, the API server only marks it as deleted.
// Release removes it.
func Bind(ctx context.Context, c client.Client, pod *corev1.Pod, node string) error {
	return c.SubResource("binding").Create(ctx, pod, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	})
}

// Release removes a deleted pod from the API server, as a kubelet does after the containers have
// ended. A missing pod causes no error.
func Release(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	if pod.DeletionTimestamp == nil {
		return fmt.Errorf("pod %s is not being deleted", pod.Name)
	}
	return client.IgnoreNotFound(c.Delete(ctx, pod, client.GracePeriodSeconds(0),
		client.Preconditions{UID: ptr.To(pod.UID)}))
}
