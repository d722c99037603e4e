package controllers

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	documents "github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const (
	// managerUser has only the manager's roles, so that tests detect a missing permission.
	managerUser  = "system:serviceaccount:parley-system:parley-manager"
	pollInterval = 20 * time.Millisecond
)

var (
	env         *testenv.Env
	auditDir    string
	logs        = &testenv.Log{}
	managerREST *rest.Config
)

func TestMain(m *testing.M) {
	var err error
	if auditDir, err = os.MkdirTemp("", "parley-audit-"); err != nil {
		panic(err)
	}
	// Log with the highest verbosity, because tests check that even such logs contain no secrets.
	ctrl.SetLogger(zap.New(zap.UseDevMode(true), zap.WriteTo(logs), zap.Level(zapcore.Level(-127))))
	testenv.Main(m, func(e *testenv.Env) {
		env = e
		e.AtStop(func() { _ = os.RemoveAll(auditDir) })
		if managerREST, err = managerConfig(); err != nil {
			panic(err)
		}
		if err := createSigningKey(); err != nil {
			panic(err)
		}
		if err := restrictStatuses(); err != nil {
			panic(err)
		}
	}, testenv.WithAuditLog(auditDir))
}

func managerConfig() (*rest.Config, error) {
	user, err := env.AddUser(envtest.User{Name: managerUser}, env.Config)
	if err != nil {
		return nil, err
	}
	manifest, err := os.ReadFile(testenv.Path("config", "rbac", "manager", "role.yaml"))
	if err != nil {
		return nil, err
	}
	roles, err := documents.Decode(manifest)
	if err != nil {
		return nil, err
	}
	// The manager reads SessionClasses from its cache, so its role has only the verbs list and
	// watch for them. Some tests use a client without a cache, which needs the verb get.
	uncached, err := documents.Decode(
		[]byte(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: uncached-reads},
		rules: [{apiGroups: [parley.dev], resources: [sessionclasses], verbs: [get]}]}`))
	if err != nil {
		return nil, err
	}
	for _, role := range append(roles, uncached...) {
		if role.GetKind() != "ClusterRole" {
			continue
		}
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.GetName()},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.GetName()},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: managerUser}},
		}
		for _, o := range []client.Object{role, binding} {
			if err := env.Client.Create(context.Background(), o); err != nil {
				return nil, err
			}
		}
	}
	return user.Config(), nil
}

// createSigningKey creates the operator's signing key, so that no session start has to wait for it.
func createSigningKey() error {
	ctx := context.Background()
	if err := env.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "parley-system"}}); err != nil {
		return err
	}
	_, err := (&signingKeyReconciler{client: env.Client, clock: clock.RealClock{},
		name: client.ObjectKey{Namespace: "parley-system", Name: session.SigningSecret}}).ensure(ctx)
	return err
}

func restrictStatuses() error {
	manifest, err := os.ReadFile(testenv.Path("config", "policy", "status.yaml"))
	if err != nil {
		return err
	}
	policy, err := documents.Decode(manifest)
	if err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "parley-system", Name: "parley-manager"}}
	if err := env.Client.Create(context.Background(), account); err != nil {
		return err
	}
	for _, object := range policy {
		if err := env.Client.Create(context.Background(), object); err != nil {
			return err
		}
	}
	return nil
}

// startManager runs the controllers for one namespace until the end of the test, or until the
// caller calls stop.
func startManager(t *testing.T, namespace string, change ...func(*rest.Config)) (stop func()) {
	t.Helper()
	return startManagerIn(t, "parley-system", namespace, change...)
}

func startManagerIn(t *testing.T, operator, namespace string, change ...func(*rest.Config)) (stop func()) {
	t.Helper()
	return startManagerWith(t, 4, operator, namespace, change...)
}

func startManagerWith(t *testing.T, workers int, operator, namespace string,
	change ...func(*rest.Config)) (stop func()) {
	t.Helper()
	return startManagerOptions(t, workers, namespace, Options{Namespace: operator, RuntimeImage: "example.com/parley:1"},
		change...)
}

func startManagerOptions(t *testing.T, workers int, namespace string, sessions Options,
	change ...func(*rest.Config)) (stop func()) {
	t.Helper()
	cfg := rest.CopyConfig(managerREST)
	cfg.QPS = -1
	for _, c := range change {
		c(cfg)
	}
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	if sessions.Namespaces == nil { // an empty list means all namespaces
		sessions.Namespaces = []string{namespace}
	}
	options := ManagerOptions(scheme, workers, Scope{Operator: sessions.Namespace, Namespaces: []string{namespace}})
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller.SkipNameValidation = ptr.To(true) // several managers in one process
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := SetupWithManager(ctx, mgr, sessions); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	t.Cleanup(stop)
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the cache did not fill")
	}
	return stop
}

func await(t *testing.T, check func() error) {
	t.Helper()
	testenv.Await(t, check)
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := env.Client.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// change updates an object, with retries after conflicts.
func change[T client.Object](t *testing.T, o T, change func(T)) {
	t.Helper()
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return env.Client.Update(t.Context(), o)
	})
}

func gone(t *testing.T, o client.Object) error {
	err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%T %s exists", o, o.GetName())
}

func getConversation(t *testing.T, namespace, name string) *v1alpha1.Conversation {
	t.Helper()
	c := &v1alpha1.Conversation{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func awaitState(t *testing.T, namespace, name string, state v1alpha1.ConversationState,
	reason string) *v1alpha1.Conversation {
	t.Helper()
	var c *v1alpha1.Conversation
	await(t, func() error {
		c = getConversation(t, namespace, name)
		if c.Status.State != state || c.Status.Reason != reason {
			return fmt.Errorf("%s is %s %s (%s), want %s %s", name, c.Status.State, c.Status.Reason, c.Status.Message, state,
				reason)
		}
		return nil
	})
	return c
}
