package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
)

// The ports of our own processes, beside the facade's.
const (
	webhookPort        = "webhook"
	managerMetricsPort = "manager-metrics"
	managerHealthPort  = "manager-health"
	facadeMetricsPort  = "facade-metrics"
	archivePort        = "archive"
	nodePort           = "node"
)

func (l *local) startManager(ctx context.Context) error {
	ports := l.plane.Ports
	return l.supervisor.Start(ctx, cluster.Process{
		Name: "manager", Path: filepath.Join(l.binDir, "manager"), Grace: 15 * time.Second,
		Ready: cluster.HTTPProbe("http://"+ports.Address(managerHealthPort)+"/readyz", nil),
		Args: l.arguments("manager",
			"--kubeconfig="+l.tokenKubeconfig("manager"),
			"--namespace="+l.workloads["manager"].Namespace,
			"--webhook-cert-dir="+filepath.Join(l.stateDir, "webhook"),
			"--webhook-bind-address="+ports.Address(webhookPort),
			"--webhook-extra-dns-name=localhost",
			"--metrics-bind-address="+ports.Address(managerMetricsPort),
			"--health-probe-bind-address="+ports.Address(managerHealthPort),
			"--leader-elect=false", "--shutdown-delay=0s",
			"--archive-url=http://"+ports.Address(archivePort),
		),
	})
}

func (l *local) signingKeyDir() string { return filepath.Join(l.stateDir, "signing") }

// mountSigningKey puts the key that the manager made where a kubelet would mount it for the facade.
func (l *local) mountSigningKey(ctx context.Context) error {
	return cluster.Retry(ctx, retryInterval, func(ctx context.Context) error {
		var secret corev1.Secret
		if err := l.client.Get(ctx, client.ObjectKey{Namespace: l.workloads["manager"].Namespace, Name: session.SigningSecret}, &secret); err != nil {
			return err
		}
		key := secret.Data[session.SigningPrivateKey]
		if len(key) == 0 {
			return fmt.Errorf("the Secret %s has no key yet", session.SigningSecret)
		}
		return cluster.WritePrivate(filepath.Join(l.signingKeyDir(), session.SigningPrivateKey), key)
	})
}

func (l *local) startFacade(ctx context.Context) error {
	if err := l.mountSigningKey(ctx); err != nil {
		return err
	}
	return l.supervisor.Start(ctx, cluster.Process{
		Name: "facade", Path: filepath.Join(l.binDir, "facade"), Grace: 10 * time.Second,
		Ready: cluster.HTTPProbe(l.facadeURL()+"/ready", nil),
		Args: l.arguments("facade",
			"--kubeconfig="+l.tokenKubeconfig("facade"),
			"--bind-address="+cluster.Ports{"facade": l.port}.Address("facade"),
			"--metrics-bind-address="+l.plane.Ports.Address(facadeMetricsPort),
			"--signing-key-dir="+l.signingKeyDir(),
			"--archive=file://"+filepath.Join(l.stateDir, "archive"),
			"--archive-bind-address="+l.plane.Ports.Address(archivePort),
			"--shutdown-delay=0s", // nothing balances load between it and another
		),
	})
}

// nodeAPI is where the API server asks the node for logs, and has it run commands.
func (l *local) nodeAPI() (*node.API, error) {
	config, err := l.plane.PKI.ServerTLS()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", l.plane.Ports.Address(nodePort))
	return &node.API{Listener: listener, TLS: config, Client: cluster.KubeletClient}, err
}

// startNode starts the node on which sessions run, until the given context ends.
func (l *local) startNode(ctx context.Context) error {
	runtime := filepath.Join(l.binDir, "runtime")
	if _, err := os.Stat(runtime); err != nil {
		return fmt.Errorf("sessions have nothing to run: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", l.kubeconfigFile())
	if err != nil {
		return err
	}
	config.QPS = -1 // the API server is ours alone
	pods, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	api, err := l.nodeAPI()
	if err != nil {
		return err
	}
	ctx, l.endNode = context.WithCancel(ctx)
	l.node, err = node.Start(ctx, node.Options{
		Name: "local", Client: pods, Say: l.say,
		Runtime: runtime, State: l.stateDir, Logs: l.podLogs(), API: api,
	}, l.force)
	if err != nil {
		l.endNode()
	}
	return err
}
