package node

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationac "k8s.io/client-go/applyconfigurations/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

const (
	// localMark is the key of the label and of the taint on this node.
	localMark = "parley.dev/local"
	// These are the defaults of a kubelet.
	leaseSeconds = 40
	leaseRenewal = 10 * time.Second
)

// Register creates or updates a node. It renews the node's Lease until the context ends, so that
// the node stays ready.
func Register(ctx context.Context, c kubernetes.Interface, want *corev1.Node, say func(string, ...any)) error {
	nodes := c.CoreV1().Nodes()
	// A controller of Kubernetes may update the node at the same time.
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			node, err = nodes.Create(ctx, want, metav1.CreateOptions{})
		}
		if err != nil {
			return err
		}
		node.Status = want.Status
		_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("register node %s: %w", want.Name, err)
	}
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := renewLease(ctx, c, want.Name); err != nil && ctx.Err() == nil {
			say("node %s could not renew its Lease: %v", want.Name, err)
		}
	}, leaseRenewal)
	return nil
}

func (n *Node) build() *corev1.Node {
	now := metav1.Now()
	room := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse("16Gi"), // not enforced, so any large value will do
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{
			localMark:                        "true",
			corev1.LabelHostname:             n.Name,
			corev1.LabelOSStable:             runtime.GOOS,
			corev1.LabelArchStable:           runtime.GOARCH,
			corev1.LabelNodeExcludeBalancers: "true",
		}},
		// The taint keeps schedulers from binding pods to this node. The node binds its pods
		// itself.
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: localMark, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}},
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
				OSImage: "processes on this machine", ContainerRuntimeVersion: "process://none", KubeletVersion: "none",
			},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "LocalNodeReady",
				Message:           "runs sessions as local processes, without isolation, for development",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
	if n.API != nil {
		address, _ := n.API.Listener.Addr().(*net.TCPAddr)
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP,
			Address: address.IP.String()})
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(address.Port)
	}
	return node
}

func renewLease(ctx context.Context, c kubernetes.Interface, node string) error {
	lease := coordinationac.Lease(node, corev1.NamespaceNodeLease).WithSpec(coordinationac.LeaseSpec().
		WithHolderIdentity(node).WithLeaseDurationSeconds(leaseSeconds).WithRenewTime(metav1.NowMicro()))
	_, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Apply(ctx, lease,
		metav1.ApplyOptions{FieldManager: localMark, Force: true})
	return err
}
