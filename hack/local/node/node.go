// Package node simulates a Kubernetes node for development. It runs the pods of sessions as local
// processes, without images or isolation, and reports their status as a kubelet does.
package node

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Options configure a node.
type Options struct {
	Name    string
	Client  kubernetes.Interface
	Program string // runs in place of a session's container
	State   string // directory of pods and volumes
	Logs    string // directory of the pods' logs
	Say     func(format string, args ...any)
	// Runs reports whether the node runs the pods of a namespace. If Runs is nil, the node runs all
	// pods of sessions.
	Runs func(namespace string) bool
	// API configures the kubelet API. If API is nil, the node serves no kubelet API.
	API *API
}

// API configures the node's kubelet API.
type API struct {
	Listener net.Listener
	// TLS contains the node's certificate and the authority that signs client certificates. Client
	// is the common name of the only client that has access.
	TLS    *tls.Config
	Client string
}

// Node runs pods of sessions.
type Node struct {
	Options
	force     <-chan struct{}
	addresses addresses

	mu       sync.Mutex
	runs     map[types.UID]*podRun
	stopping bool
	running  sync.WaitGroup
}

// Start registers the node and runs the pods of sessions until the context ends. When the channel
// force is closed, the node kills the remaining processes without a grace period.
func Start(ctx context.Context, o Options, force <-chan struct{}) (*Node, error) {
	var err error
	if o.State, err = filepath.Abs(o.State); err != nil {
		return nil, err
	}
	if o.Program, err = filepath.Abs(o.Program); err != nil {
		return nil, err
	}
	n := &Node{Options: o, force: force, runs: map[types.UID]*podRun{}}
	// Kill the processes that an earlier, killed node left behind. They still use addresses and
	// workspaces.
	Kill(n.podsDir())
	if err := Register(ctx, n.Client, n.build(), n.Say); err != nil {
		return nil, err
	}
	if o.API != nil {
		n.serveAPI(ctx, o.API.Listener, o.API.TLS, o.API.Client)
	}

	claims := n.informer("persistentvolumeclaims", &corev1.PersistentVolumeClaim{}, cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(o any) { n.claimGone(o) },
	})
	pods := n.informer("pods", &corev1.Pod{}, cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(o any, initial bool) { n.podSeen(ctx, o.(*corev1.Pod), initial) },
		UpdateFunc: func(_, o any) { n.podSeen(ctx, o.(*corev1.Pod), false) },
		DeleteFunc: func(o any) { n.podGone(o) },
	})
	go claims.RunWithContext(ctx)
	go pods.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), claims.HasSynced, pods.HasSynced) {
		return nil, context.Cause(ctx)
	}
	n.sweep(claims.GetStore(), pods.GetStore())
	return n, nil
}

// Wait waits until the node has stopped and no process is left. Cancel the context of Start before
// you call Wait.
func (n *Node) Wait() {
	n.mu.Lock()
	n.stopping = true
	n.mu.Unlock()
	n.running.Wait()
}

func (n *Node) podsDir() string { return filepath.Join(n.State, "pods") }

func (n *Node) informer(resource string, object runtime.Object,
	handler cache.ResourceEventHandler) cache.SharedInformer {
	selector := labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
		v1alpha1.LabelComponent: v1alpha1.ComponentSession}.String()
	source := cache.NewFilteredListWatchFromClient(n.Client.CoreV1().RESTClient(), resource, metav1.NamespaceAll,
		func(o *metav1.ListOptions) { o.LabelSelector = selector })
	informer := cache.NewSharedInformer(source, object, 0)
	_, _ = informer.AddEventHandler(handler) // fails only for a stopped informer
	return informer
}

// podSeen starts a new pod, and stops a pod that is being deleted.
func (n *Node) podSeen(ctx context.Context, pod *corev1.Pod, initial bool) {
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != n.Name || n.Runs != nil && !n.Runs(pod.Namespace) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	run, known := n.runs[pod.UID]
	if !known {
		if n.stopping || ctx.Err() != nil {
			return
		}
		run = newPodRun(ctx, n, pod)
		n.runs[pod.UID] = run
		n.running.Add(1)
		go func() {
			defer n.running.Done()
			// If a pod of the initial list is already bound to this node, an earlier run of the
			// node started the pod. The pod's process no longer exists.
			run.handle(initial && pod.Spec.NodeName == n.Name)
		}()
	}
	if pod.DeletionTimestamp != nil {
		grace := 30 * time.Second
		if pod.DeletionGracePeriodSeconds != nil {
			grace = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
		}
		run.stop(&stopped{podDeleted, grace})
	}
}

// podGone kills the processes of a pod that is gone from the API server, for example after a forced
// deletion.
func (n *Node) podGone(o any) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if run := n.runs[pod.UID]; run != nil {
		run.stop(&stopped{podGone, 0})
		delete(n.runs, pod.UID)
	}
}
