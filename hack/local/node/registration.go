package node

import (
	"context"
	"net"
	"runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

const (
	// localMark is the label and the taint that mark this node as simulated.
	localMark = "parley.dev/local"
	// The node controller marks a node as lost when its Lease is older than 40 seconds.
	leaseSeconds = 40
	leaseRenewal = 10 * time.Second
)

func (n *Node) register(ctx context.Context) error {
	nodes := n.Client.CoreV1().Nodes()
	want := buildNode(n.Name)
	if n.API != nil {
		address, _ := n.API.Listener.Addr().(*net.TCPAddr)
		want.Status.Addresses = append(want.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP,
			Address: address.IP.String()})
		want.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(address.Port)
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := nodes.Get(ctx, n.Name, metav1.GetOptions{})
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
		return err
	}
	return writeLease(ctx, n.Client, n.Name)
}

func buildNode(name string) *corev1.Node {
	now := metav1.Now()
	room := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse("16Gi"), // not enforced, so not measured
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			localMark:                        "true",
			corev1.LabelHostname:             name,
			corev1.LabelOSStable:             runtime.GOOS,
			corev1.LabelArchStable:           runtime.GOARCH,
			corev1.LabelNodeExcludeBalancers: "true",
		}},
		// Only this node itself binds pods to it.
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: localMark, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
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
}

// KeepLease renews the Lease of a node until the context ends, so that the node stays ready.
func KeepLease(ctx context.Context, client kubernetes.Interface, name string, say func(format string, args ...any)) {
	tick := time.NewTicker(leaseRenewal)
	defer tick.Stop()
	for {
		if err := writeLease(ctx, client, name); err != nil && ctx.Err() == nil {
			say("node %s could not renew its Lease: %v", name, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func writeLease(ctx context.Context, client kubernetes.Interface, name string) error {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NowMicro()
	spec := coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](leaseSeconds),
		RenewTime: &now}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
			_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		lease.Spec = spec
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}
