package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"
)

// Names under which AssignPorts assigns ports to the control plane.
const (
	etcdClientPort        = "etcd"
	etcdPeerPort          = "etcd-peer"
	apiServerPort         = "kube-apiserver"
	controllerManagerPort = "kube-controller-manager"
)

// ControlPlanePorts lists the names of the ports that a control plane needs. AssignPorts assigns a
// port to each name.
var ControlPlanePorts = []string{etcdClientPort, etcdPeerPort, apiServerPort, controllerManagerPort}

const serviceAccountIssuer = "https://kubernetes.default.svc.cluster.local"

// ControlPlane is etcd, kube-apiserver and kube-controller-manager. They run with default settings,
// except where a cluster on loopback needs other settings.
type ControlPlane struct {
	Binaries string // directory of the programs
	State    string // directory of the data
	Ports    Ports
	PKI      PKI

	// Address is the API server's address for clients on other machines; empty means loopback only.
	Address string
	// These arguments are added after the default arguments.
	EtcdArgs, APIServerArgs, ControllerManagerArgs []string
}

// URL returns the URL of the API server.
func (c *ControlPlane) URL() string {
	return "https://" + net.JoinHostPort(cmp.Or(c.Address, "127.0.0.1"), strconv.Itoa(c.Ports[apiServerPort]))
}

// NewControlPlane makes the certificates and assigns the ports of a control plane, and stores both
// in the state directory. It also assigns a port to each of the given names. It never assigns a
// reserved port.
func NewControlPlane(binaries, state string, names []string, reserved ...int) (*ControlPlane, error) {
	pki, err := EnsurePKI(filepath.Join(state, "pki"))
	if err != nil {
		return nil, err
	}
	ports, err := AssignPorts(filepath.Join(state, "ports.json"), append(names, ControlPlanePorts...), reserved...)
	return &ControlPlane{Binaries: binaries, State: state, Ports: ports, PKI: pki}, err
}

// Start starts etcd, the API server and the controller manager, in this order.
func (c *ControlPlane) Start(ctx context.Context, s *Supervisor) error {
	for _, part := range []func() (Process, error){c.Etcd, c.APIServer, c.ControllerManager} {
		process, err := part()
		if err != nil {
			return err
		}
		if err := s.Start(ctx, process); err != nil {
			return err
		}
	}
	return nil
}

// Etcd describes the etcd process. etcd accepts only clients whose certificate was signed by etcd's
// own authority.
func (c *ControlPlane) Etcd() (Process, error) {
	client, peer := "https://"+c.Ports.Address(etcdClientPort), "https://"+c.Ports.Address(etcdPeerPort)
	config, err := c.PKI.ClientTLS(etcdAuthority, etcdClientCert)
	if err != nil {
		return Process{}, err
	}
	return Process{
		Name: "etcd", Path: filepath.Join(c.Binaries, "etcd"), Grace: 10 * time.Second,
		Ready: HTTPProbe(client+"/health", config),
		Args: append([]string{
			"--name=local",
			"--data-dir=" + filepath.Join(c.State, "etcd"),
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=local=" + peer,
			// Require client certificates. Every user of this machine can connect to these ports,
			// but only the API server may read the data.
			"--client-cert-auth", "--trusted-ca-file=" + c.PKI.Cert(etcdAuthority),
			"--cert-file=" + c.PKI.Cert(etcdCert), "--key-file=" + c.PKI.Key(etcdCert),
			"--peer-client-cert-auth", "--peer-trusted-ca-file=" + c.PKI.Cert(etcdAuthority),
			"--peer-cert-file=" + c.PKI.Cert(etcdCert), "--peer-key-file=" + c.PKI.Key(etcdCert),
		}, c.EtcdArgs...),
	}, nil
}

// APIServer describes the kube-apiserver process.
func (c *ControlPlane) APIServer() (Process, error) {
	config, err := c.PKI.ClientTLS(authority, "")
	if err != nil {
		return Process{}, err
	}
	return Process{
		Name: "kube-apiserver", Path: filepath.Join(c.Binaries, "kube-apiserver"), Grace: 15 * time.Second,
		Ready: HTTPProbe(c.URL()+"/readyz", config),
		Args: append([]string{
			"--etcd-servers=https://" + c.Ports.Address(etcdClientPort),
			"--etcd-cafile=" + c.PKI.Cert(etcdAuthority),
			"--etcd-certfile=" + c.PKI.Cert(etcdClientCert), "--etcd-keyfile=" + c.PKI.Key(etcdClientCert),
			fmt.Sprintf("--secure-port=%d", c.Ports[apiServerPort]),
			"--service-cluster-ip-range=10.96.0.0/16",
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction", // added to the default plugins
			"--allow-privileged",
			"--client-ca-file=" + c.PKI.Cert(authority),
			"--tls-cert-file=" + c.PKI.Cert(servingCert), "--tls-private-key-file=" + c.PKI.Key(servingCert),
			"--kubelet-certificate-authority=" + c.PKI.Cert(authority), "--kubelet-preferred-address-types=InternalIP",
			"--kubelet-client-certificate=" + c.PKI.Cert(kubeletClientCert), "--kubelet-client-key=" +
				c.PKI.Key(kubeletClientCert),
			"--service-account-issuer=" + serviceAccountIssuer,
			"--service-account-key-file=" + c.PKI.PublicKey(serviceAccountKey),
			"--service-account-signing-key-file=" + c.PKI.Key(serviceAccountKey),
			"--shutdown-delay-duration=0s",
			"--profiling=false",
		}, append(c.servingFlags(), c.APIServerArgs...)...),
	}, nil
}

func (c *ControlPlane) servingFlags() []string {
	if c.Address != "" {
		return []string{"--bind-address=0.0.0.0", "--advertise-address=" + c.Address}
	}
	// The API server must not write its own Endpoints, because an Endpoints object must not contain a
	// loopback address.
	return []string{"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"}
}

// ControllerManager describes the kube-controller-manager process, with all default controllers.
func (c *ControlPlane) ControllerManager() (Process, error) {
	kubeconfig := filepath.Join(c.State, "kube-controller-manager.kubeconfig")
	if err := c.WriteCertKubeconfig(kubeconfig, controllerManagerCert, "kube-controller-manager"); err != nil {
		return Process{}, err
	}
	config, err := c.PKI.ClientTLS(authority, "")
	if err != nil {
		return Process{}, err
	}
	return Process{
		Name: "kube-controller-manager", Path: filepath.Join(c.Binaries, "kube-controller-manager"), Grace: 10 * time.Second,
		Ready: HTTPProbe("https://"+c.Ports.Address(controllerManagerPort)+"/healthz", config),
		Args: append([]string{
			"--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", c.Ports[controllerManagerPort]),
			"--tls-cert-file=" + c.PKI.Cert(servingCert), "--tls-private-key-file=" + c.PKI.Key(servingCert),
			"--client-ca-file=" + c.PKI.Cert(authority),
			"--root-ca-file=" + c.PKI.Cert(authority),
			"--service-account-private-key-file=" + c.PKI.Key(serviceAccountKey),
			"--use-service-account-credentials",
			"--leader-elect=false",
			"--profiling=false",
		}, c.ControllerManagerArgs...),
	}, nil
}
