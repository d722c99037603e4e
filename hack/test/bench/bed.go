package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const (
	benchNamespace = "bench"
	userName       = "default"
	userAccount    = "user"
	managerUser    = "system:serviceaccount:parley-system:parley-manager"
	startTimeout   = 5 * time.Minute
	pollInterval   = 50 * time.Millisecond

	apiServer         = "kube-apiserver"
	etcd              = "etcd"
	controllerManager = "kube-controller-manager"
)

// auditPolicy makes the API server log only the manager's requests. Logging costs little compared
// with the requests.
const auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
  "rules": [{"level": "Metadata", "users": ["` + managerUser + `"]}, {"level": "None"}]}`

// auditPolicyOfAll makes the API server log all requests about the measured objects, by every user.
const auditPolicyOfAll = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
  "rules": [{"level": "Metadata", "namespaces": ["` + benchNamespace + `"]}, {"level": "None"}]}`

type plan struct {
	audit string
	bare  bool // without Parley
	// If sessions is true, sessions run as real processes, without the fake kubelet.
	sessions bool
	// If peer is true, agent-sandbox runs in a cluster without Parley.
	peer bool
	// If keys is true, the user has keys and tokens, which every session gets.
	keys bool
}

func (p plan) withoutParley() bool { return p.bare || p.peer }

// bed is a cluster for measurements. The comment of a field names the step that sets it.
type bed struct {
	dir        string
	plan       plan
	supervisor *cluster.Supervisor
	plane      *cluster.ControlPlane // prepare
	parley     *parley.Installation  // prepare
	admin      *rest.Config          // connect
	user       client.WithWatch      // createUser; this user has the ClusterRole "edit"
	userPods   kubernetes.Interface  // createUser
	token      string                // createUser; may also read metrics
	key        string                // createSettings; session key for the facade
	node       *node.Node            // startNode
	empty      map[string]sample     // sampleEmpty; usage before any object exists
}

// startBed starts a cluster. It also starts Parley, unless the plan excludes Parley. The returned
// context ends when a process dies.
func startBed(ctx context.Context, o options, p plan) (*bed, context.Context, func(), error) {
	dir, err := os.MkdirTemp("", "parley-bench-")
	if err != nil {
		return nil, ctx, nil, err
	}
	b := &bed{dir: dir, plan: p}
	ctx, cancel := context.WithCancel(ctx)
	b.supervisor, ctx = cluster.Supervise(ctx, filepath.Join(dir, "log"))
	end := func() {
		cancel()
		if b.node != nil {
			b.node.Wait()
		}
		b.supervisor.Stop(nil)
		_ = os.RemoveAll(dir)
	}
	starting, done := context.WithTimeout(ctx, startTimeout)
	defer done()
	const ofParley = true
	for _, step := range []struct {
		name   string
		parley bool
		do     func(context.Context) error
	}{
		{"certificates and ports", false, func(ctx context.Context) error { return b.prepare(ctx, o) }},
		{"control plane", false, func(ctx context.Context) error { return b.plane.Start(ctx, b.supervisor) }},
		{"client", false, b.connect},
		{"manifests", ofParley, func(ctx context.Context) error {
			return b.parley.Install(ctx, testenv.Path("config", "default"))
		}},
		{"identities", ofParley, b.issueTokens},
		{"manager", ofParley, b.startManager},
		{"facade", ofParley, b.startFacade},
		{"user", false, b.createUser},
		{"settings", ofParley, b.createSettings},
		{"kubelet", false, func(context.Context) error {
			if p.sessions {
				return b.startNode(ctx, o.bin)
			}
			return b.startKubelet(ctx)
		}},
		{"rights", false, b.awaitRights},
		{"agent-sandbox", false, func(ctx context.Context) error {
			if !p.peer {
				return nil
			}
			return b.startSandboxController(ctx, o)
		}},
		{"rest", ofParley, b.sampleEmpty},
	} {
		if step.parley && p.withoutParley() {
			continue
		}
		if err := step.do(starting); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			end()
			return nil, ctx, nil, fmt.Errorf("start %s: %w", step.name, err)
		}
	}
	say("started")
	return b, ctx, end, nil
}

func (b *bed) prepare(ctx context.Context, o options) error {
	policy := filepath.Join(b.dir, "audit-policy.json")
	if err := os.WriteFile(policy, []byte(b.plan.audit), 0o600); err != nil {
		return err
	}
	var err error
	b.plane, err = cluster.NewControlPlane(o.assets, b.dir, append([]string{parley.Facade, profilePort, sandboxMetricsPort,
		sandboxHealthPort}, parley.Ports...))
	if err != nil {
		return err
	}
	// etcd also stores old versions of objects, so its data may exceed the default quota.
	b.plane.EtcdArgs = []string{fmt.Sprintf("--quota-backend-bytes=%d", int64(8<<30))}
	b.plane.APIServerArgs = []string{"--audit-policy-file=" + policy, "--audit-log-path=" + b.auditLog(),
		"--profiling=true"}
	b.plane.ControllerManagerArgs = []string{
		"--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"}
	b.parley = &parley.Installation{Plane: b.plane, StateDir: b.dir, BinDir: o.bin,
		FacadeAddress: b.plane.Ports.Address(parley.Facade)}
	if o.profile == "" {
		return nil
	}
	if err := os.MkdirAll(o.profile, 0o750); err != nil || b.plan.withoutParley() {
		return err
	}
	return b.buildProfiled(ctx, o.bin)
}

func (b *bed) auditLog() string { return filepath.Join(b.dir, "audit.log") }

func (b *bed) connect(context.Context) (err error) {
	b.admin, b.parley.Client, err = b.plane.Connect(filepath.Join(b.dir, "kubeconfig"), "bench")
	return err
}

func (b *bed) issueTokens(ctx context.Context) error {
	if is := b.parley.Account(parley.Manager); is != managerUser {
		return fmt.Errorf("the manager's account is %s, but the audit log counts requests of %s", is, managerUser)
	}
	return b.parley.IssueTokens(ctx)
}

func (b *bed) startManager(ctx context.Context) error {
	return b.supervisor.Start(ctx, b.parley.ManagerProcess())
}

func (b *bed) startFacade(ctx context.Context) error {
	if err := b.parley.MountSigningKey(ctx); err != nil {
		return err
	}
	if b.plan.sessions {
		if err := b.supervisor.Start(ctx, b.parley.ArchiveProcess()); err != nil {
			return err
		}
	}
	process := b.parley.FacadeProcess()
	process.Args = append(process.Args, "--user-rate=0") // no rate limit: one user sends all requests
	return b.supervisor.Start(ctx, process)
}

func binary(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

// createUser creates the namespace of the measurements, and a user who has the ClusterRole "edit"
// in this namespace. The user may also read metrics.
func (b *bed) createUser(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: userAccount}}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: benchNamespace}},
		account,
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "user"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "bench-metrics"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "parley-metrics-reader"},
		},
	} {
		if err := b.parley.Client.Create(ctx, object); err != nil {
			return err
		}
	}
	var err error
	if b.token, err = (manifests.Workload{Namespace: benchNamespace, ServiceAccount: userAccount}).IssueToken(ctx,
		b.parley.Client, 24*time.Hour); err != nil {
		return err
	}
	config := rest.AnonymousClientConfig(b.admin)
	config.BearerToken, config.QPS = b.token, -1
	if b.user, err = client.NewWithWatch(config, client.Options{Scheme: b.parley.Client.Scheme()}); err != nil {
		return err
	}
	b.userPods, err = kubernetes.NewForConfig(binary(config))
	return err
}

// awaitRights waits until the user may create and list pods. Before that, controllers must
// aggregate the ClusterRole "edit" and create the default ServiceAccount.
func (b *bed) awaitRights(ctx context.Context) error {
	pods := b.userPods.CoreV1().Pods(benchNamespace)
	return cluster.Retry(ctx, pollInterval, func(ctx context.Context) error {
		_, err := pods.Create(ctx, minimalPod("first", "rights"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil { // the rights arrive one after the other
			_, err = pods.List(ctx, metav1.ListOptions{Limit: 1})
		}
		return err
	})
}

// createSettings creates a SessionClass and the UserSettings of all Conversations. It then reads
// the session key for requests to the facade.
func (b *bed) createSettings(ctx context.Context) error {
	if err := b.parley.Client.Create(ctx, largeClass()); err != nil {
		return err
	}
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: userName}}
	if !b.plan.sessions { // real sessions have their own model
		settings.Spec.LLMModel = ptr.To("ollama/small")
	}
	if b.plan.keys {
		if err := b.createKeys(ctx, &settings.Spec); err != nil {
			return err
		}
	}
	// The ClusterRole "edit" gets the rights on UserSettings with a delay.
	if err := cluster.Retry(ctx, pollInterval, func(ctx context.Context) error {
		return b.user.Create(ctx, settings.DeepCopy())
	}); err != nil {
		return err
	}
	return cluster.Retry(ctx, pollInterval, func(ctx context.Context) (err error) {
		b.key, err = parley.SessionKey(ctx, b.parley.Client, client.ObjectKeyFromObject(settings))
		return err
	})
}
