// Package facadeenv starts an API server with everything that the facade needs: Parley's kinds, the
// webhook, and the facade's rights and policy. The operator is optional. Tests and benchmarks run
// the facade against this API server.
package facadeenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/testenv"
	"github.com/parley-dev/parley/webhook"
)

const (
	// FacadeUser is the user name of the facade's ServiceAccount.
	FacadeUser  = "system:serviceaccount:parley-system:parley-facade"
	managerUser = "system:serviceaccount:parley-system:parley-manager"
	namespace   = "parley-system"
	timeout     = time.Minute
)

// Env is an API server that is prepared for the facade.
type Env struct {
	*testenv.Env
	// AsFacade is a client configuration with the facade's rights.
	AsFacade *rest.Config
	// Kubeconfig is the path of a kubeconfig with the facade's rights.
	Kubeconfig string
	// ArchiveAddress is the address at which sessions expect the archive.
	ArchiveAddress string
	// SigningKeyDir is the directory from which the facade reads the signing key.
	SigningKeyDir string

	stopping context.CancelFunc
	stopped  chan error
}

// Start starts an API server with the webhook. If operator is true, it also starts the operator. It
// writes the kubeconfig and the signing key to the directory.
func Start(dir string, operator bool, options ...testenv.Option) (*Env, error) {
	env, err := testenv.Start(append(options, testenv.WithWebhooks)...)
	if err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	e := &Env{Env: env, Kubeconfig: filepath.Join(dir, "kubeconfig"), SigningKeyDir: filepath.Join(dir, "signing"),
		ArchiveAddress: FreeAddress(), stopped: make(chan error, 1)}
	err = e.install()
	if err == nil {
		err = e.makeSigningKey()
	}
	if err == nil {
		err = e.startManager(operator)
	}
	if err != nil {
		return nil, errors.Join(err, e.Stop())
	}
	return e, nil
}

// Stop stops the operator before the API server. Otherwise the API server would wait until the
// operator's watches end.
func (e *Env) Stop() error {
	return errors.Join(e.StopManager(), e.Env.Stop())
}

// StopManager stops the webhook and the operator. It may be called more than once.
func (e *Env) StopManager() error {
	if e.stopping == nil {
		return nil
	}
	e.stopping()
	e.stopping = nil
	return <-e.stopped
}

func (e *Env) install() error {
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := e.Client.Create(context.Background(), system); err != nil {
		return err
	}
	for _, file := range []string{"config/rbac/facade/role.yaml", "config/rbac/facade/catalogue.yaml",
		"config/policy/facade.yaml"} {
		if err := e.apply(file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, role := range []string{"parley-facade", "parley-facade-cluster"} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: FacadeUser}},
		}
		if err := e.Client.Create(context.Background(), binding); err != nil {
			return err
		}
	}
	identity, err := e.AddUser(envtest.User{Name: FacadeUser}, e.Config)
	if err != nil {
		return err
	}
	e.AsFacade = identity.Config()
	e.AsFacade.QPS = -1
	kubeconfig, err := identity.KubeConfig()
	if err != nil {
		return err
	}
	return os.WriteFile(e.Kubeconfig, kubeconfig, 0o600)
}

func (e *Env) makeSigningKey() error {
	data, err := session.NewSigningKey()
	if err != nil {
		return err
	}
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: session.SigningSecret}, Data: data}
	if err := e.Client.Create(context.Background(), key); err != nil {
		return fmt.Errorf("make the signing key: %w", err)
	}
	return e.MountSigningKey(context.Background())
}

// MountSigningKey writes the current signing key to SigningKeyDir, as a kubelet would.
func (e *Env) MountSigningKey(ctx context.Context) error {
	secret := &corev1.Secret{}
	if err := e.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: session.SigningSecret}, secret); err != nil {
		return err
	}
	for name, value := range secret.Data {
		if err := cluster.WritePrivate(filepath.Join(e.SigningKeyDir, name), value); err != nil {
			return err
		}
	}
	return nil
}

func (e *Env) apply(file string) error {
	data, err := os.ReadFile(testenv.Path(filepath.FromSlash(file)))
	if err != nil {
		return err
	}
	objects, err := manifests.Decode(data)
	if err != nil {
		return err
	}
	return manifests.Apply(context.Background(), e.Client, "facadeenv", objects)
}

// inheritedName returns the index value of a UserSettings object: the name in spec.inheritFrom.
func inheritedName(o client.Object) (names []string) {
	if name := o.(*v1alpha1.UserSettings).Spec.InheritFrom; name != nil {
		names = append(names, *name)
	}
	return names
}

func (e *Env) startManager(operator bool) error {
	scheme, err := controllers.NewScheme()
	if err != nil {
		return err
	}
	install := &e.WebhookInstallOptions
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{Host: install.LocalServingHost, Port: install.LocalServingPort,
		CertDir: install.LocalServingCertDir})
	options := controllers.ManagerOptions(scheme, 8, controllers.Scope{})
	options.WebhookServer = server
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller.SkipNameValidation = ptr.To(true) // several operators in one process
	mgr, err := ctrl.NewManager(e.Config, options)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	if operator {
		// The webhook needs a cache index. With the operator, controllers.SetupWithManager adds
		// this index. Without the operator, the other branch adds it.
		err = controllers.SetupWithManager(ctx, mgr, controllers.Options{Namespace: namespace,
			RuntimeImage: "example.com/parley:1", ArchiveURL: "http://" + e.ArchiveAddress})
	} else {
		err = mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.UserSettings{}, v1alpha1.IndexInheritFrom, inheritedName)
	}
	if err == nil {
		err = webhook.SetupWithManager(ctx, mgr, webhook.Options{FacadeUser: FacadeUser, ManagerUser: managerUser,
			Namespace: namespace})
	}
	if err != nil {
		stop()
		return err
	}
	e.stopping = stop
	go func() { e.stopped <- mgr.Start(ctx) }()
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, timeout, true, func(context.Context) (bool, error) {
		return server.StartedChecker()(nil) == nil, nil
	})
}
