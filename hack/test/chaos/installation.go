package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/release/manifests"
)

const (
	// replicas is the number of managers and the number of facades.
	replicas = 2
	// people is the ServiceAccount of the users who send requests to the API server. It has the
	// rights of a namespace editor, who may read Secrets.
	people          = "chaos-people"
	peopleNamespace = "default"
	startTimeout    = 2 * time.Minute
)

// Each process of the test gets a free TCP port, which the test finds by a name. webhookPort and
// facadePort are the names for the two services. portOf() returns the name for one replica.
const (
	webhookPort = parley.WebhookPort
	facadePort  = parley.Facade
)

func portOf(name string, replica int) string { return fmt.Sprintf("%s-%d", name, replica) }

// installation is a cluster with Parley in it. The comment after a field names the method that sets
// the field.
type installation struct {
	options
	dir    string
	report *report
	plane  *cluster.ControlPlane // prepare

	etcd, apiServer, controllerManager *supervised // startControlPlane

	parley     *parley.Installation // prepare
	adminConf  *rest.Config         // connect
	admin      client.WithWatch     // connect
	peopleConf *rest.Config         // issueTokens

	managers, facades []*supervised
	archives          []*supervised // startArchives
	s3                *supervised   // startReplicasOnS3
	bothLead          bool          // electNoLeader
	services          []*service
}

func install(ctx context.Context, o options, dir string, r *report) (*installation, error) {
	i := &installation{options: o, dir: dir, report: r}
	type step struct {
		name string
		do   func(context.Context) error
	}
	steps := []step{
		{"prepare", i.prepare},
		{"control plane", i.startControlPlane},
		{"admin's client", i.connect},
		{"manifests", i.installParley},
		{"identities", i.issueTokens},
		{"managers", i.startManagers},
		{"archive", i.startArchives},
		{"facades", i.startFacades},
	}
	for _, step := range steps {
		stepCtx, cancel := context.WithTimeout(ctx, startTimeout)
		err := step.do(stepCtx)
		cancel()
		if err != nil {
			return i, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return i, nil
}

func (i *installation) logs() string { return filepath.Join(i.dir, "logs") }

func (i *installation) prepare(context.Context) error {
	names := append([]string{facadePort, s3Port}, parley.Ports...)
	for n := range replicas {
		for _, name := range []string{webhookPort, facadePort, "health", "manager-metrics", "facade-metrics",
			parley.Archive, archiveHealthPort, archiveMetricsPort} {
			names = append(names, portOf(name, n))
		}
	}
	var err error
	if i.plane, err = cluster.NewControlPlane(i.assets, i.dir, names); err != nil {
		return err
	}
	// etcd's quota has room for all versions of all objects. etcd syncs each write to disk, as in
	// production: the flag --unsafe-no-fsync is not set.
	i.plane.EtcdArgs = []string{fmt.Sprintf("--quota-backend-bytes=%d", int64(8<<30))}
	if i.hostile == 0 {
		// etcd keeps all versions of all objects, because checkHistory reads them at the end.
		i.plane.APIServerArgs = []string{"--etcd-compaction-interval=0"}
	}
	i.plane.ControllerManagerArgs = []string{"--controllers=garbage-collector-controller,namespace-controller," +
		"serviceaccount-controller,persistentvolumeclaim-protection-controller,clusterrole-aggregation-controller"}
	i.parley = &parley.Installation{Plane: i.plane, StateDir: i.dir, BinDir: i.binDir}
	return nil
}

func (i *installation) startControlPlane(ctx context.Context) error {
	for _, part := range []struct {
		into    **supervised
		process func() (cluster.Process, error)
	}{{&i.etcd, i.plane.Etcd}, {&i.apiServer, i.plane.APIServer}, {&i.controllerManager, i.plane.ControllerManager}} {
		process, err := part.process()
		if err != nil {
			return err
		}
		if *part.into, err = supervise(process, i.logs()); err != nil {
			return err
		}
		if err := (*part.into).await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) adminKubeconfig() string { return filepath.Join(i.dir, "kubeconfig") }

func (i *installation) connect(context.Context) (err error) {
	i.adminConf, i.admin, err = i.plane.Connect(i.adminKubeconfig(), "chaos")
	i.parley.Client = i.admin
	return err
}

func (i *installation) installParley(ctx context.Context) error {
	if err := i.parley.Install(ctx, filepath.Join(i.config, "default"), filepath.Join(i.config, "classes")); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: peopleNamespace, Name: people}}
	if err := i.admin.Create(ctx, account); err != nil {
		return err
	}
	for _, role := range []string{"parley-editor", "parley-viewer", "parley-metrics-reader", "system:aggregate-to-edit"} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: people + "-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: peopleNamespace, Name: people}},
		}
		if err := i.admin.Create(ctx, binding); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) issueTokens(ctx context.Context) error {
	if err := i.parley.IssueTokens(ctx); err != nil {
		return err
	}
	if err := i.parley.Identify(ctx, people, manifests.Workload{Namespace: peopleNamespace,
		ServiceAccount: people}); err != nil {
		return err
	}
	var err error
	if i.peopleConf, err = clientcmd.BuildConfigFromFlags("", i.parley.Kubeconfig(people)); err != nil {
		return err
	}
	i.peopleConf.QPS = -1
	i.peopleConf.Timeout = callTimeout
	i.peopleConf.WarningHandler = rest.NoWarnings{}
	return nil
}

func (i *installation) startManagers(ctx context.Context) error {
	return i.startReplicas(ctx, webhookPort, &i.managers, func(n int, address string) cluster.Process {
		health := i.plane.Ports.Address(portOf("health", n))
		process := i.withMemoryLimit(parley.Manager, i.parley.ManagerProcess())
		process.Name = portOf(parley.Manager, n)
		process.Ready = cluster.HTTPProbe("http://"+health+"/readyz", nil)
		process.Args = append(process.Args, // the last of several equal flags counts
			"--webhook-cert-dir="+filepath.Join(i.dir, process.Name),
			"--webhook-bind-address="+address,
			"--metrics-bind-address="+i.plane.Ports.Address(portOf("manager-metrics", n)),
			"--health-probe-bind-address="+health,
			"--leader-elect",
			"--shutdown-delay=5s", // the default
		)
		return process
	})
}

// startArchives starts the archive, or two replicas of it that share an S3 bucket.
func (i *installation) startArchives(ctx context.Context) error {
	if err := i.parley.MountSigningKey(ctx); err != nil {
		return err
	}
	process := i.withMemoryLimit(parley.Archive, i.parley.ArchiveProcess())
	if i.spenders > 0 {
		return i.startReplicasOnS3(ctx, process)
	}
	k, err := supervise(process, i.logs())
	if err != nil {
		return err
	}
	i.archives = append(i.archives, k)
	return k.await(ctx)
}

func (i *installation) startFacades(ctx context.Context) error {
	if err := i.parley.MountSigningKey(ctx); err != nil {
		return err
	}
	return i.startReplicas(ctx, facadePort, &i.facades, func(n int, address string) cluster.Process {
		process := i.withMemoryLimit(parley.Facade, i.parley.FacadeProcess())
		process.Name = portOf(parley.Facade, n)
		process.Ready = cluster.HTTPProbe("http://"+address+"/ready", nil)
		process.Args = append(process.Args,
			"--bind-address="+address,
			"--metrics-bind-address="+i.plane.Ports.Address(portOf("facade-metrics", n)),
		)
		if i.hostile == 0 { // one user sends all requests
			process.Args = append(process.Args, "--user-rate=0")
		}
		return process
	})
}

// startReplicas starts the replicas of a process with a service in front of them, and waits until
// they are ready.
func (i *installation) startReplicas(ctx context.Context, port string, into *[]*supervised,
	describe func(n int, address string) cluster.Process) error {
	backends := i.replicaAddresses(port)
	for n, address := range backends {
		k, err := supervise(describe(n, address), i.logs())
		if err != nil {
			return err
		}
		*into = append(*into, k)
	}
	s, err := serve(i.plane.Ports.Address(port), backends...)
	if err != nil {
		return err
	}
	i.services = append(i.services, s)
	return awaitAll(ctx, *into)
}

func (i *installation) replicaAddresses(port string) (addresses []string) {
	for n := range replicas {
		addresses = append(addresses, i.plane.Ports.Address(portOf(port, n)))
	}
	return addresses
}

func awaitAll(ctx context.Context, processes []*supervised) error {
	for _, k := range processes {
		if err := k.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) facadeURL() string { return "http://" + i.plane.Ports.Address(facadePort) }

func (i *installation) processes() []*supervised {
	all := slices.Concat([]*supervised{i.etcd, i.apiServer, i.controllerManager, i.s3}, i.archives, i.managers, i.facades)
	return slices.DeleteFunc(all, func(k *supervised) bool { return k == nil })
}

func (i *installation) awaitAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return awaitAll(ctx, i.processes())
}

func (i *installation) stop() {
	for _, s := range i.services {
		s.stop()
	}
	for _, k := range slices.Backward(i.processes()) {
		k.stop()
	}
}
