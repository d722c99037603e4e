package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// runDir is on a tmpfs in the Linux namespaces of the tests. The kernel removes the tmpfs together
// with the namespaces.
const runDir = "/run/parley-e2e"

const containerdSocket = runDir + "/containerd.sock"

// restrict_oom_score_adj is necessary on machines where this process has no right to lower its OOM
// score. Without this setting, no sandbox would start on these machines.
const containerdConfig = `version = 2
root = %[1]q
state = "` + runDir + `/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = %[2]q
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "` + runDir + `/cni"
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix://` + containerdSocket + `
resolvConf: ` + runDir + `/resolv.conf
clusterDNS: [` + nodeAddress + `]
clusterDomain: cluster.local
podLogsDir: %[1]s
volumePluginDir: ` + runDir + `/volume-plugins
imageGCHighThresholdPercent: 100 # deleted images could not be pulled again
serializeImagePulls: false
maxPods: 200
crashLoopBackOff: {maxContainerRestartPeriod: 1s} # else the sixth restart comes after five minutes
# The kubelet uses the API server's certificate, because both servers have the same address. The API
# server forwards ports only to a kubelet with a trusted certificate.
tlsCertFile: %[3]q
tlsPrivateKeyFile: %[4]q
evictionHard: {memory.available: 50Mi, nodefs.available: %[5]q, imagefs.available: 1%%}
evictionPressureTransitionPeriod: 10s # instead of five minutes
shutdownGracePeriodByPodPriority: [%[6]s]
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[2]q}
authorization: {mode: Webhook}
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: ` + podRange + `
hostnameOverride: ` + nodeName + `
clientConnection: {kubeconfig: %[1]q}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
# The host's limits stay as they are.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// Names of the client certificates that a node's components use.
const (
	schedulerCert = "kube-scheduler"
	kubeletCert   = "kubelet"
	proxyCert     = "kube-proxy"
)

func nodeCertificates() map[string]pkix.Name {
	return map[string]pkix.Name{
		schedulerCert: {CommonName: "system:kube-scheduler"},
		kubeletCert:   {CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}},
		proxyCert:     {CommonName: "system:kube-proxy"},
	}
}

func (n *inside) startContainerd(ctx context.Context) error {
	config := filepath.Join(runDir, "containerd.toml")
	for path, content := range map[string]string{
		config: fmt.Sprintf(containerdConfig, filepath.Join(n.state, "containerd"), n.containerd("containerd-shim-runc-v2")),
		filepath.Join(runDir, "cni", "10-pods.conflist"): cniConfig,
		filepath.Join(runDir, "resolv.conf"):             "nameserver " + nodeAddress + "\n",
	} {
		if err := cluster.WritePrivate(path, []byte(content)); err != nil {
			return err
		}
	}
	return n.supervisor.Start(ctx, cluster.Process{
		Name: "containerd", Path: n.containerd("containerd"), Args: []string{"--config=" + config}, Grace: time.Second,
		Ready: func(ctx context.Context) error { return n.ctr(ctx, "version") },
	})
}

// containerd returns the path of a containerd program built for these tests. Debian's version does
// not support image volumes.
func (n *inside) containerd(program string) string {
	return filepath.Join(n.binDir, "containerd", program)
}

func (n *inside) ctr(ctx context.Context, args ...string) error {
	output, err := exec.CommandContext(ctx, n.containerd("ctr"), append([]string{"--address", containerdSocket,
		"--namespace", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %s: %w: %s", args[0], err, output)
	}
	return nil
}

func (n *inside) importImages(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(imagesDir(n.state), "*.tar"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := n.ctr(ctx, "images", "import", "--snapshotter=overlayfs", file); err != nil {
			return err
		}
	}
	return n.ctr(ctx, "images", "tag", parleyImage, nextImage)
}

func (n *inside) startScheduler(ctx context.Context) error {
	kubeconfig, err := n.kubeconfig(schedulerCert)
	if err != nil {
		return err
	}
	return n.supervisor.Start(ctx, cluster.Process{
		Name: "kube-scheduler", Path: n.kubernetes("kube-scheduler"), Grace: time.Second,
		// The scheduler's certificate is self-signed. The probe only checks that the scheduler is
		// healthy.
		Ready: cluster.HTTPProbe("https://127.0.0.1:10259/healthz", &tls.Config{InsecureSkipVerify: true}),
		Args: []string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" +
				kubeconfig,
			"--bind-address=127.0.0.1", "--leader-elect=false",
		},
	})
}

// kubeletSettings contains the kubelet settings that a check can change.
type kubeletSettings struct {
	minDisk   string // the kubelet evicts pods if its disk has less free space than this
	shutdowns string // grace periods by pod priority; if empty, the kubelet ignores node shutdowns
}

var usualKubelet = kubeletSettings{minDisk: "1%"}

func (n *inside) startKubelet(ctx context.Context) error { return n.runKubelet(ctx, usualKubelet) }

// restartKubelet restarts the kubelet with other settings, while the pods keep running.
func (n *inside) restartKubelet(ctx context.Context, settings kubeletSettings) error {
	n.supervisor.End("kubelet")
	return n.runKubelet(ctx, settings)
}

func (n *inside) runKubelet(ctx context.Context, settings kubeletSettings) error {
	kubeconfig, err := n.kubeconfig(kubeletCert)
	if err != nil {
		return err
	}
	config := filepath.Join(runDir, "kubelet.yaml")
	content := fmt.Sprintf(kubeletConfig, filepath.Join(n.logs, "pods"), n.plane.PKI.Cert(n.plane.PKI.Authority()),
		n.plane.PKI.Cert(n.plane.PKI.Serving()), n.plane.PKI.Key(n.plane.PKI.Serving()), settings.minDisk,
		settings.shutdowns)
	if err := cluster.WritePrivate(config, []byte(content)); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(n.logs, "pods"), 0o700); err != nil {
		return err
	}
	return n.supervisor.Start(ctx, cluster.Process{
		Name: "kubelet", Path: n.kubernetes("kubelet"), Grace: time.Second,
		Ready: cluster.HTTPProbe("http://127.0.0.1:10248/healthz", nil),
		Args: []string{
			"--config=" + config, "--kubeconfig=" + kubeconfig, "--hostname-override=" + nodeName, "--node-ip=" + nodeAddress,
			"--root-dir=" + n.kubeletDir(), "--cert-dir=" + filepath.Join(runDir, "kubelet-pki"),
		},
	})
}

func (n *inside) kubeletDir() string { return filepath.Join(n.state, "kubelet") }

func (n *inside) volumesDir() string { return filepath.Join(n.state, "volumes") }

// mountDisks mounts a disk for the kubelet, so that a check can fill it, and a disk for the volumes.
// Images and all other files of the machine are elsewhere. Without a disk of their own, volumes
// would be slow, because the checks delete many files on the machine's disk. ext4 does not reuse the
// inode of a file that was deleted in the last few minutes, and searches past such inodes for each
// new file.
func (n *inside) mountDisks(ctx context.Context) error {
	return errors.Join(n.mountDisk(ctx, n.kubeletDir()), n.mountDisk(ctx, n.volumesDir()))
}

const diskSize = 8 << 30

// mountDisk mounts a new disk on a directory. Machines without loop devices get no such disk.
func (n *inside) mountDisk(ctx context.Context, dir string) error {
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		n.say("%s has no disk of its own: %v", filepath.Base(dir), err)
		return nil
	}
	image := dir + "-disk"
	err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, diskSize), os.MkdirAll(dir, 0o755))
	if err != nil {
		return err
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command[0], err, output)
		}
	}
	return nil
}

func (n *inside) startProxy(ctx context.Context) error {
	kubeconfig, err := n.kubeconfig(proxyCert)
	if err != nil {
		return err
	}
	config := filepath.Join(runDir, "kube-proxy.yaml")
	if err := cluster.WritePrivate(config, fmt.Appendf(nil, proxyConfig, kubeconfig)); err != nil {
		return err
	}
	return n.supervisor.Start(ctx, cluster.Process{
		Name: "kube-proxy", Path: n.kubernetes("kube-proxy"), Grace: time.Second,
		Ready: cluster.HTTPProbe("http://127.0.0.1:10256/healthz", nil),
		Args:  []string{"--config=" + config},
	})
}

func (n *inside) kubeconfig(cert string) (string, error) {
	path := filepath.Join(runDir, cert+".kubeconfig")
	return path, n.plane.WriteCertKubeconfig(path, cert, cert)
}

func (n *inside) kubernetes(component string) string { return filepath.Join(n.assets, component) }
