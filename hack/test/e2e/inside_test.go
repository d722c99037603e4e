package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// node is the running cluster. It is nil in the process outside the cluster's Linux namespaces.
var node *inside

// inside is a cluster in its own Linux namespaces.
type inside struct {
	options
	ctx        context.Context // ends when a process of the cluster dies
	began      time.Time
	checks     int // number of checks that ran
	supervisor *cluster.Supervisor
	plane      *cluster.ControlPlane // set by prepare
	client     client.WithWatch      // set by connect
}

// stepTimeout limits each step of the start. A fast machine needs only seconds.
const stepTimeout = 4 * time.Minute

type step struct {
	name string
	do   func(context.Context) error
}

// runInside starts the cluster and runs the tests. It does not stop the cluster: the kernel kills
// all processes of the namespaces when their first process ends.
func runInside(ctx context.Context, o options, m *testing.M) error {
	n := &inside{options: o, began: time.Now()}
	n.supervisor, ctx = cluster.Supervise(ctx, o.logs)
	err := n.up(ctx)
	if err == nil {
		err = serveImages(ctx, imagesDir(o.state), hungryImage, thiefImage)
	}
	if err == nil {
		n.ctx, node = ctx, n
		switch code := m.Run(); {
		case code != 0:
			err = errors.New("not all checks passed")
		case n.checks == 0:
			err = errors.New("-test.run selects none of the checks")
		}
	}
	if err == nil && o.hold {
		n.say("still up: enter with nsenter --all --target=%d, KUBECONFIG=%s", os.Getpid(), n.adminKubeconfig())
		<-ctx.Done()
	}
	// If a process of the cluster exits, ctx ends, and err is only a consequence. Return the cause
	// instead.
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err
}

func (n *inside) say(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

func (n *inside) up(ctx context.Context) error {
	for _, s := range []step{
		{"network and certificates", n.prepare},
		{"containerd", n.startContainerd},
		{"images imported", n.importImages},
		{"control plane", func(ctx context.Context) error { return n.plane.Start(ctx, n.supervisor) }},
		{"admin", n.connect},
		{"names", func(context.Context) error { return n.serveNames(ctx) }},
		{"kube-scheduler", n.startScheduler},
		{"disks", n.mountDisks},
		{"kubelet", n.startKubelet},
		{"kube-proxy", n.startProxy},
		{"node is ready", n.awaitNode},
		{"storage", func(step context.Context) error {
			go n.provisionVolumes(ctx) // Parley itself needs a volume
			return n.makeStorageClass(step)
		}},
		{"Parley is installed", n.installParley},
		{"Parley is ready", n.awaitParley},
		{"the shipped class", n.makeDefaultClass},
		{"classes", n.makeClasses},
	} {
		stepCtx, cancel := context.WithTimeout(ctx, stepTimeout)
		err := s.do(stepCtx)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		n.say("%s", s.name)
	}
	return nil
}

func (n *inside) adminKubeconfig() string { return filepath.Join(runDir, "admin.kubeconfig") }

func (n *inside) prepare(ctx context.Context) error {
	if err := makeNetwork(ctx); err != nil {
		return err
	}
	pki, err := cluster.EnsurePKI(filepath.Join(runDir, "pki"), net.ParseIP(nodeAddress).To4())
	if err != nil {
		return err
	}
	for name, subject := range nodeCertificates() {
		if err := pki.EnsureClient(name, subject); err != nil {
			return err
		}
	}
	ports, err := cluster.AssignPorts(filepath.Join(runDir, "ports.json"), cluster.ControlPlanePorts)
	if err != nil {
		return err
	}
	n.plane = &cluster.ControlPlane{Binaries: n.assets, State: runDir, Ports: ports, PKI: pki, Address: nodeAddress}
	return nil
}

// connect opens the admin's client, and lets the API server call the kubelet.
func (n *inside) connect(ctx context.Context) error {
	var err error
	if _, n.client, err = n.plane.Connect(n.adminKubeconfig(), nodeName); err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: cluster.KubeletClient},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: cluster.KubeletClient}},
	}
	return retry(ctx, func(ctx context.Context) error { return n.client.Create(ctx, binding) })
}

// awaitNode waits for a ready node and for the default ServiceAccount, which every pod needs.
func (n *inside) awaitNode(ctx context.Context) error {
	return retry(ctx, func(ctx context.Context) error {
		var node corev1.Node
		if err := n.client.Get(ctx, client.ObjectKey{Name: nodeName}, &node); err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return errors.New(c.Message)
			}
		}
		var account corev1.ServiceAccount
		return n.client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &account)
	})
}

func (n *inside) kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.kubernetes("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+n.adminKubeconfig(), "HOME="+runDir)
	output, err := cmd.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, output)
	}
	return string(output), nil
}

// retry calls a function until it succeeds or the context ends. Its error contains the function's
// last error, which explains more than a timeout.
func retry(ctx context.Context, call func(context.Context) error) error {
	var last error
	err := cluster.Retry(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		err := call(ctx)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), last)
	}
	return err
}
