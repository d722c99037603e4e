package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers"
	"github.com/parley-dev/parley/hack/test/testenv"
)

var (
	env        *testenv.Env
	kubeconfig string
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(zap.New(zap.WriteTo(&testenv.Log{})))
	testenv.Main(m, func(e *testenv.Env) {
		env = e
		dir, err := os.MkdirTemp("", "kubectl-parley-")
		if err != nil {
			panic(err)
		}
		e.AtStop(func() { _ = os.RemoveAll(dir) })
		kubeconfig = filepath.Join(dir, "kubeconfig")
		if err := os.WriteFile(kubeconfig, e.KubeConfig, 0o600); err != nil {
			panic(err)
		}
		if err := e.Client.Create(context.Background(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "parley-system"}}); err != nil {
			panic(err)
		}
	})
}

// startOperator runs the operator for a new namespace until the test ends.
func startOperator(t *testing.T) (namespace string) {
	t.Helper()
	namespace = env.Namespace(t, nil)
	scheme, err := controllers.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	options := controllers.ManagerOptions(scheme, 2, controllers.Scope{Operator: "parley-system",
		Namespaces: []string{namespace}})
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller.SkipNameValidation = ptr.To(true) // several managers in one process
	mgr, err := ctrl.NewManager(rest.CopyConfig(env.Config), options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := controllers.SetupWithManager(ctx, mgr, controllers.Options{Namespace: "parley-system",
		RuntimeImage: "example.com/parley:1"}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	create(t, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ada"}})
	return namespace
}

// invocation is a command that is running or has ended.
type invocation struct {
	out, errOut testenv.Log
	done        chan error
	stop        context.CancelFunc
}

func runAsync(t *testing.T, config, namespace string, args ...string) *invocation {
	t.Helper()
	return runAsyncWith(t, &bytes.Buffer{}, config, namespace, args...)
}

func runAsyncWith(t *testing.T, in io.Reader, config, namespace string, args ...string) *invocation {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &invocation{done: make(chan error, 1), stop: stop}
	cmd := withArgs(newRoot(genericiooptions.IOStreams{In: in, Out: &r.out, ErrOut: &r.errOut}),
		append([]string{"kubectl-parley", "--kubeconfig", config, "-n", namespace}, args...))
	go func() { r.done <- cmd.ExecuteContext(ctx) }()
	end := sync.OnceFunc(stop)
	t.Cleanup(end)
	return r
}

func (r *invocation) wait(t *testing.T) error {
	t.Helper()
	var err error
	testenv.Await(t, func() error {
		select {
		case err = <-r.done:
			return nil
		default:
			return fmt.Errorf("still running; stdout %q, stderr %q", r.out.String(), r.errOut.String())
		}
	})
	return err
}

func run(t *testing.T, namespace string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	r := runAsync(t, kubeconfig, namespace, args...)
	err = r.wait(t)
	return r.out.String(), r.errOut.String(), err
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := env.Client.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

func conversation(namespace, name string) *v1alpha1.Conversation {
	return &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.ConversationSpec{UserSettingsName: "ada"}}
}

func awaitState(t *testing.T, namespace, name string, state v1alpha1.ConversationState,
	reason string) *v1alpha1.Conversation {
	t.Helper()
	c := &v1alpha1.Conversation{}
	testenv.Await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, c); err != nil {
			return err
		}
		if c.Status.State != state || c.Status.Reason != reason {
			return fmt.Errorf("%s is %s %s (%s), want %s %s", name, c.Status.State, c.Status.Reason, c.Status.Message, state,
				reason)
		}
		return nil
	})
	return c
}
