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
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/release/manifests"
)

const (
	fieldManager = "parley-chaos"
	tokenLife    = 24 * time.Hour
	// replicas of the manager and of the facade.
	replicas = 2
	// people is the ServiceAccount whose identity has who uses the API server: it may do what an
	// editor of a namespace may, who reads Secrets.
	people          = "chaos-people"
	peopleNamespace = "default"
	startPatience   = 2 * time.Minute
)

// The ports of our own processes, by replica, and of the services before them.
const (
	webhookPort = "webhook"
	facadePort  = "facade"
)

func portOf(purpose string, replica int) string { return fmt.Sprintf("%s-%d", purpose, replica) }

// installation is a cluster with Parley in it. Each field's comment says which step sets it.
type installation struct {
	options
	dir    string
	report *report
	plane  *cluster.ControlPlane // prepare

	etcd, apiServer, controllerManager *kept // startControlPlane

	scheme     *runtime.Scheme
	adminConf  *rest.Config                  // connect
	admin      client.WithWatch              // connect
	workloads  map[string]manifests.Workload // installParley
	peopleConf *rest.Config                  // issueTokens

	managers, facades []*kept
	services          []*service
}

// install starts everything, and waits until all of it is ready.
func install(ctx context.Context, o options, dir string, r *report) (*installation, error) {
	i := &installation{options: o, dir: dir, report: r, scheme: runtime.NewScheme()}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"prepare", i.prepare},
		{"control plane", i.startControlPlane},
		{"admin's client", i.connect},
		{"manifests", i.installParley},
		{"identities", i.issueTokens},
		{"managers", i.startManagers},
		{"facades", i.startFacades},
	} {
		stepCtx, cancel := context.WithTimeout(ctx, startPatience)
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
	if err := clientscheme.AddToScheme(i.scheme); err != nil {
		return err
	}
	if err := v1alpha1.AddToScheme(i.scheme); err != nil {
		return err
	}
	pki, err := cluster.EnsurePKI(filepath.Join(i.dir, "pki"))
	if err != nil {
		return err
	}
	purposes := append(slices.Clone(cluster.ControlPlanePorts), webhookPort, facadePort)
	for n := range replicas {
		for _, purpose := range []string{webhookPort, facadePort, "health", "manager-metrics", "facade-metrics"} {
			purposes = append(purposes, portOf(purpose, n))
		}
	}
	ports, err := cluster.AssignPorts(filepath.Join(i.dir, "ports.json"), purposes)
	if err != nil {
		return err
	}
	i.plane = &cluster.ControlPlane{
		Binaries: i.assets, State: i.dir, Ports: ports, PKI: pki,
		// All that ever was is kept and read at the end. etcd syncs each write to the disk, which
		// is its default.
		EtcdArgs:      []string{fmt.Sprintf("--quota-backend-bytes=%d", int64(8<<30))},
		APIServerArgs: []string{"--etcd-compaction-interval=0"},
		ControllerManagerArgs: []string{
			"--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller,persistentvolumeclaim-protection-controller",
		},
	}
	return nil
}

func (i *installation) startControlPlane(ctx context.Context) error {
	for _, part := range []struct {
		into    **kept
		process func() (cluster.Process, error)
	}{{&i.etcd, i.plane.Etcd}, {&i.apiServer, i.plane.APIServer}, {&i.controllerManager, i.plane.ControllerManager}} {
		process, err := part.process()
		if err != nil {
			return err
		}
		if *part.into, err = keep(process, i.logs()); err != nil {
			return err
		}
		if err := (*part.into).await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) connect(context.Context) error {
	file := filepath.Join(i.dir, "kubeconfig")
	if err := i.plane.WriteAdminKubeconfig(file, "chaos"); err != nil {
		return err
	}
	var err error
	if i.adminConf, err = clientcmd.BuildConfigFromFlags("", file); err != nil {
		return err
	}
	i.adminConf.QPS = -1 // the API server is ours alone
	i.adminConf.WarningHandler = rest.NoWarnings{}
	i.admin, err = client.NewWithWatch(i.adminConf, client.Options{Scheme: i.scheme})
	return err
}

// installParley applies what a cluster gets, classes too.
func (i *installation) installParley(ctx context.Context) error {
	kubectl := filepath.Join(i.assets, "kubectl")
	objects, err := manifests.Build(ctx, filepath.Join(i.config, "default"), kubectl, "kustomize")
	if err != nil {
		return err
	}
	classes, err := manifests.Build(ctx, filepath.Join(i.config, "classes"), kubectl, "kustomize")
	if err != nil {
		return err
	}
	if objects, i.workloads, err = manifests.FitToProcesses(append(objects, classes...),
		i.plane.Ports.Address(webhookPort)); err != nil {
		return err
	}
	if err := manifests.Apply(ctx, i.admin, fieldManager, objects); err != nil {
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

func (i *installation) kubeconfig(name string) string {
	return filepath.Join(i.dir, "identity", name+".kubeconfig")
}

// issueTokens gives each process the identity that its pod would have.
func (i *installation) issueTokens(ctx context.Context) error {
	i.workloads[people] = manifests.Workload{Namespace: peopleNamespace, ServiceAccount: people}
	for _, name := range []string{"manager", "facade", people} {
		w, found := i.workloads[name]
		if !found || w.ServiceAccount == "" {
			return fmt.Errorf("no Deployment with a container %s and a service account", name)
		}
		if err := i.plane.WriteTokenKubeconfig(i.kubeconfig(name), name+".token", w.ServiceAccount); err != nil {
			return err
		}
		err := manifests.Persist(ctx, func(ctx context.Context) error {
			token, err := w.IssueToken(ctx, i.admin, tokenLife)
			if err != nil {
				return err
			}
			return cluster.WritePrivate(filepath.Join(i.dir, "identity", name+".token"), []byte(token))
		})
		if err != nil {
			return fmt.Errorf("token for %s: %w", name, err)
		}
	}
	var err error
	if i.peopleConf, err = clientcmd.BuildConfigFromFlags("", i.kubeconfig(people)); err != nil {
		return err
	}
	i.peopleConf.QPS = -1
	i.peopleConf.Timeout = callTimeout
	i.peopleConf.WarningHandler = rest.NoWarnings{}
	return nil
}

func (i *installation) startManagers(ctx context.Context) error {
	ports := i.plane.Ports
	var backends []string
	for n := range replicas {
		health, name := ports.Address(portOf("health", n)), fmt.Sprintf("manager-%d", n)
		backends = append(backends, ports.Address(portOf(webhookPort, n)))
		k, err := keep(cluster.Process{
			Name: name, Path: filepath.Join(i.binDir, "manager"), Ready: cluster.HTTPProbe("http://"+health+"/readyz", nil),
			Args: slices.Concat(i.workloads["manager"].Args, []string{
				"--kubeconfig=" + i.kubeconfig("manager"),
				"--namespace=" + i.workloads["manager"].Namespace,
				"--webhook-cert-dir=" + filepath.Join(i.dir, name),
				"--webhook-bind-address=" + backends[n],
				"--webhook-extra-dns-name=localhost",
				"--metrics-bind-address=" + ports.Address(portOf("manager-metrics", n)),
				"--health-probe-bind-address=" + health,
				"--leader-elect",
				"--archive-url=",
			}),
		}, i.logs())
		if err != nil {
			return err
		}
		i.managers = append(i.managers, k)
	}
	if err := i.service(webhookPort, backends); err != nil {
		return err
	}
	for _, m := range i.managers {
		if err := m.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) service(purpose string, backends []string) error {
	s, err := serve(i.plane.Ports.Address(purpose), backends...)
	if err == nil {
		i.services = append(i.services, s)
	}
	return err
}

// mountSigningKey puts the key that a manager made where a kubelet would mount it for the facades.
func (i *installation) mountSigningKey(ctx context.Context, dir string) error {
	return cluster.Retry(ctx, probeInterval, func(ctx context.Context) error {
		var secret corev1.Secret
		if err := i.admin.Get(ctx, client.ObjectKey{Namespace: i.workloads["manager"].Namespace, Name: session.SigningSecret},
			&secret); err != nil {
			return err
		}
		key := secret.Data[session.SigningPrivateKey]
		if len(key) == 0 {
			return fmt.Errorf("the Secret %s has no key yet", session.SigningSecret)
		}
		return cluster.WritePrivate(filepath.Join(dir, session.SigningPrivateKey), key)
	})
}

func (i *installation) startFacades(ctx context.Context) error {
	ports, signing := i.plane.Ports, filepath.Join(i.dir, "signing")
	if err := i.mountSigningKey(ctx, signing); err != nil {
		return err
	}
	var backends []string
	for n := range replicas {
		backends = append(backends, ports.Address(portOf(facadePort, n)))
		k, err := keep(cluster.Process{
			Name: fmt.Sprintf("facade-%d", n), Path: filepath.Join(i.binDir, "facade"), Ready: cluster.HTTPProbe("http://"+
				backends[n]+"/ready", nil),
			Args: slices.Concat(i.workloads["facade"].Args, []string{
				"--kubeconfig=" + i.kubeconfig("facade"),
				"--bind-address=" + backends[n],
				"--metrics-bind-address=" + ports.Address(portOf("facade-metrics", n)),
				"--signing-key-dir=" + signing,
				"--archive=", // a directory would be for one facade
				"--shutdown-delay=0s",
				"--user-rate=0",
			}),
		}, i.logs())
		if err != nil {
			return err
		}
		i.facades = append(i.facades, k)
	}
	if err := i.service(facadePort, backends); err != nil {
		return err
	}
	for _, f := range i.facades {
		if err := f.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) facadeURL() string { return "http://" + i.plane.Ports.Address(facadePort) }

// processes that were started so far.
func (i *installation) processes() []*kept {
	all := slices.Concat([]*kept{i.etcd, i.apiServer, i.controllerManager}, i.managers, i.facades)
	return slices.DeleteFunc(all, func(k *kept) bool { return k == nil })
}

// awaitAll until everything is ready again.
func (i *installation) awaitAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for _, k := range i.processes() {
		if err := k.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) stop() {
	for _, s := range i.services {
		s.stop()
	}
	for _, k := range slices.Backward(i.processes()) {
		k.stop()
	}
}
