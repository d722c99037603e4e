package parley

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/local/cluster"
)

// Names of the ports that cluster.AssignPorts assigns. The facade's own port is in FacadeAddress
// instead.
const (
	// WebhookPort is the name of the webhook's port.
	WebhookPort        = "webhook"
	managerMetricsPort = "manager-metrics"
	managerHealthPort  = "manager-health"
	facadeMetricsPort  = "facade-metrics"
	archivePort        = "archive"
	archiveHealthPort  = "archive-health"
	archiveMetricsPort = "archive-metrics"
)

// Ports lists the names of the ports that an installation needs. cluster.AssignPorts assigns a port
// to each name.
var Ports = []string{WebhookPort, managerMetricsPort, managerHealthPort, facadeMetricsPort, archivePort,
	archiveHealthPort, archiveMetricsPort}

// Names of the processes, equal to the container names in their Deployments.
const (
	Manager = "manager"
	Archive = "archive"
	Facade  = "facade"
)

// Namespace is the namespace in which Parley is installed.
func (i *Installation) Namespace() string { return i.workloads[Manager].Namespace }

// Account is the user name of a process's ServiceAccount.
func (i *Installation) Account(name string) string {
	return "system:serviceaccount:" + i.workloads[name].Namespace + ":" + i.workloads[name].ServiceAccount
}

// Limits are the resource limits of a process's container.
func (i *Installation) Limits(name string) corev1.ResourceList { return i.workloads[name].Limits }

// ManagerMetrics is the URL of the manager's metrics.
func (i *Installation) ManagerMetrics() string {
	return "https://" + i.Plane.Ports.Address(managerMetricsPort) + "/metrics"
}

// FacadeURL is the base URL of the facade.
func (i *Installation) FacadeURL() string { return "http://" + i.FacadeAddress }

// ManagerProcess describes the manager's process.
func (i *Installation) ManagerProcess() cluster.Process {
	ports := i.Plane.Ports
	return cluster.Process{
		Name: Manager, Path: filepath.Join(i.BinDir, Manager), Grace: 15 * time.Second,
		Ready: cluster.HTTPProbe("http://"+ports.Address(managerHealthPort)+"/readyz", nil),
		Args: i.arguments(Manager,
			"--kubeconfig="+i.Kubeconfig(Manager),
			"--namespace="+i.Namespace(),
			"--webhook-cert-dir="+filepath.Join(i.StateDir, "webhook"),
			"--webhook-bind-address="+ports.Address(WebhookPort),
			"--webhook-extra-dns-name=localhost",
			"--metrics-bind-address="+ports.Address(managerMetricsPort),
			"--health-probe-bind-address="+ports.Address(managerHealthPort),
			"--leader-elect=false", "--shutdown-delay=0s",
			"--archive-url=https://"+ports.Address(archivePort), "--archive-certificate",
		),
	}
}

func (i *Installation) signingKeyDir() string { return filepath.Join(i.StateDir, "signing") }

func (i *Installation) verifyingKeyDir() string { return filepath.Join(i.StateDir, "verifying") }

// MountSigningKey writes keys to files, as a kubelet would mount them. The facade's directory gets
// the signing key. The archive's directory gets the public key and the archive's certificate.
func (i *Installation) MountSigningKey(ctx context.Context) error {
	optional := []string{session.ArchiveCertificate, session.ArchiveKey}
	return cluster.Retry(ctx, retryInterval, func(ctx context.Context) error {
		var secret corev1.Secret
		if err := i.Client.Get(ctx, client.ObjectKey{Namespace: i.Namespace(), Name: session.SigningSecret},
			&secret); err != nil {
			return err
		}
		for dir, keys := range map[string][]string{
			i.signingKeyDir():   {session.SigningPrivateKey, session.AuthorityCertificates},
			i.verifyingKeyDir(): {session.SigningPublicKey, session.ArchiveCertificate, session.ArchiveKey},
		} {
			for _, key := range keys {
				// The manager may be configured not to create the archive's certificate and key, so they are
				// optional here. If the manager creates them, it writes them together with the authority's
				// certificates, which are not optional.
				if len(secret.Data[key]) == 0 && slices.Contains(optional, key) {
					continue
				}
				if len(secret.Data[key]) == 0 {
					return fmt.Errorf("the Secret %s has no key %s yet", session.SigningSecret, key)
				}
				if err := cluster.WritePrivate(filepath.Join(dir, key), secret.Data[key]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// ArchiveProcess describes the archive's process. Call MountSigningKey before you start it.
func (i *Installation) ArchiveProcess() cluster.Process {
	ports := i.Plane.Ports
	return cluster.Process{
		Name: Archive, Path: filepath.Join(i.BinDir, Archive), Grace: 10 * time.Second,
		Ready: cluster.HTTPProbe("http://"+ports.Address(archiveHealthPort)+"/ready", nil),
		Args: i.arguments(Archive,
			"--kubeconfig="+i.Kubeconfig(Archive),
			"--bind-address="+ports.Address(archivePort),
			"--health-probe-bind-address="+ports.Address(archiveHealthPort),
			"--metrics-bind-address="+ports.Address(archiveMetricsPort),
			"--signing-key-dir="+i.verifyingKeyDir(),
			"--tls-cert-file="+filepath.Join(i.verifyingKeyDir(), session.ArchiveCertificate),
			"--tls-key-file="+filepath.Join(i.verifyingKeyDir(), session.ArchiveKey),
			"--store=file://"+filepath.Join(i.StateDir, "archive"),
		),
	}
}

// FacadeProcess describes the facade's process. Call MountSigningKey before you start it.
func (i *Installation) FacadeProcess() cluster.Process {
	ports := i.Plane.Ports
	return cluster.Process{
		Name: Facade, Path: filepath.Join(i.BinDir, Facade), Grace: 10 * time.Second,
		Ready: cluster.HTTPProbe(i.FacadeURL()+"/ready", nil),
		Args: i.arguments(Facade,
			"--kubeconfig="+i.Kubeconfig(Facade),
			"--bind-address="+i.FacadeAddress,
			"--metrics-bind-address="+ports.Address(facadeMetricsPort),
			"--signing-key-dir="+i.signingKeyDir(),
			"--archive=https://"+ports.Address(archivePort),
			"--archive-ca-file="+filepath.Join(i.signingKeyDir(), session.AuthorityCertificates),
			"--shutdown-delay=0s", // there is no load balancer
		),
	}
}
