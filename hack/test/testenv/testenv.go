// Package testenv starts an API server and etcd for a test suite, with Parley's CRDs.
package testenv

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Env is a running API server.
type Env struct {
	envtest.Environment
	Config *rest.Config
	Client client.WithWatch
	Scheme *runtime.Scheme

	atStop []func()
}

// AtStop registers a function that Main calls after the tests, when the API server has stopped.
func (e *Env) AtStop(do func()) { e.atStop = append(e.atStop, do) }

// Option changes the environment before it starts.
type Option func(*envtest.Environment)

// WithWebhooks installs the webhook configuration of config/webhook. A test must start the webhook
// server at the address in WebhookInstallOptions.
func WithWebhooks(e *envtest.Environment) {
	e.WebhookInstallOptions.Paths = []string{Path("config", "webhook", "manifests.yaml")}
}

// Fuzzing reports whether go test runs with -fuzz. Fuzz tests run in several processes and need no
// API server.
func Fuzzing() bool {
	flag.Parse()
	return flag.Lookup("test.fuzz").Value.String() != "" || flag.Lookup("test.fuzzworker").Value.String() == "true"
}

// Main starts an API server, calls set() with it, runs the tests, and stops the API server.
func Main(m *testing.M, set func(*Env), options ...Option) {
	if Fuzzing() {
		os.Exit(m.Run())
	}
	env, err := Start(options...)
	if err != nil {
		_, _ = os.Stderr.WriteString("start the API server: " + err.Error() + "\n")
		os.Exit(1)
	}
	set(env)
	code := m.Run()
	if err := env.Stop(); err != nil {
		_, _ = os.Stderr.WriteString("stop the API server: " + err.Error() + "\n")
		code = max(code, 1)
	}
	for _, do := range env.atStop {
		do()
	}
	os.Exit(code)
}

const processTimeout = 2 * time.Minute

// Start starts an API server with Parley's CRDs.
func Start(options ...Option) (*Env, error) {
	env := &Env{Scheme: runtime.NewScheme()}
	if err := clientscheme.AddToScheme(env.Scheme); err != nil {
		return nil, err
	}
	if err := v1alpha1.AddToScheme(env.Scheme); err != nil {
		return nil, err
	}
	env.Environment = envtest.Environment{
		Scheme:                env.Scheme,
		CRDDirectoryPaths:     []string{Path("config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
		// On a busy machine, the start can take longer than envtest's default.
		ControlPlaneStartTimeout: processTimeout,
		ControlPlaneStopTimeout:  processTimeout,
	}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		env.BinaryAssetsDirectory = Path("bin", "k8s")
	}
	for _, option := range options {
		option(&env.Environment)
	}
	var err error
	if env.Config, err = env.Start(); err != nil {
		// A failed start may leave processes running.
		return nil, errors.Join(err, env.Stop())
	}
	env.Config.QPS = -1
	env.Client, err = client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	if err != nil {
		_ = env.Stop()
		return nil, err
	}
	return env, nil
}

// Path returns the path of a file in the repository. It searches the working directory and its
// parents for the repository's root.
func Path(elements ...string) string {
	root, _ := os.Getwd()
	for {
		if _, err := os.Stat(filepath.Join(root, "PROJECT")); err == nil {
			return filepath.Join(append([]string{root}, elements...)...)
		}
		if root == filepath.Dir(root) {
			panic("no PROJECT file above the working directory: not in the repository")
		}
		root = filepath.Dir(root)
	}
}

// Namespace creates a namespace, and deletes it after the test.
func (e *Env) Namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-", Labels: labels}}
	if err := e.Client.Create(t.Context(), ns); err != nil {
		t.Fatalf("create a namespace: %v", err)
	}
	t.Cleanup(func() { _ = e.Client.Delete(context.Background(), ns) })
	return ns.Name
}
