package rest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/parley-dev/parley/controllers"
	"github.com/parley-dev/parley/hack/testenv"
	"github.com/parley-dev/parley/webhook"
)

const (
	facadeUser  = "system:serviceaccount:parley-system:parley-facade"
	managerUser = "system:serviceaccount:parley-system:parley-manager"
	patience    = 30 * time.Second
)

// suite is what all tests share: an API server with Parley's manifests, the operator, and the facade as a process.
var suite *parley

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	if fuzzing() {
		os.Exit(m.Run()) // each of the fuzzer's processes comes by here, and needs no API server
	}
	code, err := runSuite(m)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func fuzzing() bool {
	return flag.Lookup("test.fuzz").Value.String() != "" || flag.Lookup("test.fuzzworker").Value.String() == "true"
}

func runSuite(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "parley-facade-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if suite, err = startParley(dir); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, suite.stop()) }()
	if suite.facade, err = suite.startFacade("--user-rate=0", "--auth-failure-rate=0"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, suite.facade.stop()) }()
	return m.Run(), nil
}

// parley is an API server with the operator.
type parley struct {
	*testenv.Env
	dir        string
	kubeconfig string
	facade     *facade
	asFacade   *clientrest.Config
	stopping   context.CancelFunc
	stopped    chan error
}

func startParley(dir string, options ...testenv.Option) (*parley, error) {
	env, err := testenv.Start(append(options, testenv.WithWebhooks)...)
	if err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	p := &parley{Env: env, dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig"), stopped: make(chan error, 1)}
	if err := p.install(); err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	return p, nil
}

// install gives the facade its identity and rights, and starts the operator.
func (p *parley) install() error {
	for _, file := range []string{"config/rbac/facade/role.yaml", "config/policy/facade.yaml"} {
		if err := p.apply(file); err != nil {
			return err
		}
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "parley-facade"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "parley-facade"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: facadeUser}},
	}
	if err := p.Client.Create(context.Background(), binding); err != nil {
		return err
	}
	identity, err := p.AddUser(envtest.User{Name: facadeUser}, p.Config)
	if err != nil {
		return err
	}
	p.asFacade = identity.Config()
	kubeconfig, err := identity.KubeConfig()
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.kubeconfig, kubeconfig, 0o600); err != nil {
		return err
	}
	return p.startOperator()
}

func (p *parley) apply(file string) error {
	data, err := os.ReadFile(testenv.Path(filepath.FromSlash(file)))
	if err != nil {
		return err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := p.Client.Create(context.Background(), object); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
}

func (p *parley) startOperator() error {
	scheme, err := controllers.NewScheme()
	if err != nil {
		return err
	}
	install := &p.WebhookInstallOptions
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{Host: install.LocalServingHost, Port: install.LocalServingPort, CertDir: install.LocalServingCertDir})
	options := controllers.ManagerOptions(scheme, 8)
	options.WebhookServer = server
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller.SkipNameValidation = ptr.To(true) // several operators in one process
	mgr, err := ctrl.NewManager(p.Config, options)
	if err != nil {
		return err
	}
	var ctx context.Context
	ctx, p.stopping = context.WithCancel(context.Background())
	if err := controllers.SetupWithManager(ctx, mgr, controllers.Options{Namespace: "parley-system", RuntimeImage: "example.com/parley:1"}); err != nil {
		return err
	}
	if err := webhook.SetupWithManager(mgr, webhook.Options{FacadeUser: facadeUser, ManagerUser: managerUser, Namespace: "parley-system"}); err != nil {
		return err
	}
	go func() { p.stopped <- mgr.Start(ctx) }()
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return server.StartedChecker()(nil) == nil, nil
	})
}

// stop ends the operator before the API server, which else waits for its watches.
func (p *parley) stop() error {
	p.stopping()
	return errors.Join(<-p.stopped, p.Stop())
}

// facade is the process.
type facade struct {
	url, metrics string
	log          *testenv.Log
	command      *exec.Cmd
	done         chan struct{}
}

var buildOnce = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(suite.dir, "facade")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "./cmd/facade")
	build.Dir = testenv.Path()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the facade: %w\n%s", err, output)
	}
	return binary, nil
})

// startFacade starts a facade and waits until it is ready.
func (p *parley) startFacade(args ...string) (*facade, error) {
	binary, err := buildOnce()
	if err != nil {
		return nil, err
	}
	address, metrics := freeAddress(), freeAddress()
	f := &facade{url: "http://" + address, metrics: "http://" + metrics, log: &testenv.Log{}, done: make(chan struct{})}
	f.command = exec.Command(binary, append([]string{
		"--kubeconfig=" + p.kubeconfig, "--bind-address=" + address, "--metrics-bind-address=" + metrics, "--shutdown-delay=0s", "--zap-log-level=9",
	}, args...)...)
	f.command.Stdout, f.command.Stderr = f.log, f.log
	if err := f.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = f.command.Wait()
		close(f.done)
	}()
	err = wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		answer, err := http.Get(f.url + "/ready")
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil && answer.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		_ = f.command.Process.Kill()
		return nil, fmt.Errorf("the facade is not ready: %w\n%s", err, f.log)
	}
	return f, nil
}

func (f *facade) stop() error {
	_ = f.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-f.done:
	case <-time.After(patience):
		_ = f.command.Process.Kill()
		return errors.New("the facade does not stop")
	}
	if code := f.command.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the facade ended with %d\n%s", code, f.log)
	}
	return nil
}

// kill ends the process without a warning.
func (f *facade) kill() {
	_ = f.command.Process.Kill()
	<-f.done
}

func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func await(t *testing.T, check func() error) {
	t.Helper()
	testenv.Await(t, check)
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := suite.Client.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// canary is a value that must not show up anywhere.
func canary() string { return "canary-" + strings.ToLower(rand.Text()) }
