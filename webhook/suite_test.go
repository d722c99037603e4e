package webhook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const (
	facadeUser  = "system:serviceaccount:parley-system:parley-facade"
	managerUser = "system:serviceaccount:parley-system:parley-manager"
	soon        = 30 * time.Second

	operatorNamespace = "parley-system"
)

var (
	env *testenv.Env
	// cached is the client of the manager that serves the webhook.
	cached client.Client
)

func TestMain(m *testing.M) {
	if testenv.Fuzzing() {
		os.Exit(m.Run())
	}
	code, err := run(m)
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		code = 1
	}
	os.Exit(code)
}

// run starts an API server and a manager, runs the tests, and stops both. It stops the manager
// first, because the API server cannot stop before the manager's watches have ended.
func run(m *testing.M) (code int, err error) {
	if env, err = testenv.Start(testenv.WithWebhooks); err != nil {
		return 0, fmt.Errorf("start the API server: %w", err)
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	mgr, server, err := newManager()
	if err != nil {
		return 0, fmt.Errorf("create the manager: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-stopped)
	}()
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, soon, true, func(context.Context) (bool, error) {
		return server.StartedChecker()(nil) == nil, nil
	})
	if err != nil {
		return 0, fmt.Errorf("wait for the webhook server: %w", err)
	}
	return m.Run(), nil
}

func newManager() (ctrl.Manager, ctrlwebhook.Server, error) {
	options := &env.WebhookInstallOptions
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir,
	})
	mgr, err := ctrl.NewManager(env.Config, ctrl.Options{
		Scheme: env.Scheme, WebhookServer: server, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, nil, err
	}
	cached = mgr.GetClient()
	byName := func(o client.Object) []string { return []string{o.(*v1alpha1.Conversation).Spec.UserSettingsName} }
	err = mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Conversation{}, v1alpha1.IndexUserSettingsName,
		byName)
	if err != nil {
		return nil, nil, err
	}
	byInherited := func(o client.Object) (names []string) {
		if name := o.(*v1alpha1.UserSettings).Spec.InheritFrom; name != nil {
			names = append(names, *name)
		}
		return names
	}
	err = mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.UserSettings{}, v1alpha1.IndexInheritFrom,
		byInherited)
	if err != nil {
		return nil, nil, err
	}
	return mgr, server, SetupWithManager(context.Background(), mgr, Options{FacadeUser: facadeUser,
		ManagerUser: managerUser, Namespace: operatorNamespace})
}

// actor is a client that acts as a user and records warnings.
type actor struct {
	client.Client
	mutex    sync.Mutex
	warnings []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (p *actor) HandleWarningHeader(_ int, _ string, text string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.warnings = append(p.warnings, text)
}

func admin(t *testing.T) *actor {
	t.Helper()
	return connect(t, &actor{}, rest.CopyConfig(env.Config))
}

// user returns an actor with the usual rights on Parley's objects in a namespace, and with the
// given rules.
func user(t *testing.T, name, namespace string, rules ...rbacv1.PolicyRule) *actor {
	t.Helper()
	config := rest.CopyConfig(env.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name}
	grant(t, name, namespace, append(rules, rbacv1.PolicyRule{
		APIGroups: []string{"parley.dev"}, Resources: []string{"usersettings", "conversations"},
		Verbs: []string{"get", "create", "update", "delete"},
	}))
	return connect(t, &actor{}, config)
}

func connect(t *testing.T, p *actor, config *rest.Config) *actor {
	t.Helper()
	config.WarningHandler = p
	var err error
	if p.Client, err = client.New(config, client.Options{Scheme: env.Scheme,
		Mapper: env.Client.RESTMapper()}); err != nil {
		t.Fatal(err)
	}
	return p
}

// get returns the right to read the named objects. Without names, it covers all objects of the
// resource.
func get(resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"get"},
		ResourceNames: names}
}

// use returns the right to start sessions with the named settings.
func use(name string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"parley.dev"}, Resources: []string{"usersettings"},
		Verbs: []string{"use"}, ResourceNames: []string{name}}
}

// grant assigns rights in a namespace, and waits until the API server's authorizer knows them.
func grant(t *testing.T, name, namespace string, rules []rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{GenerateName: "t-", Namespace: namespace}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: rules}
	if err := env.Client.Create(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}
	if err := env.Client.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	// All rules are in one Role and take effect together. It is enough to wait for the last rule.
	rule := rules[len(rules)-1]
	eventually(t, func() (bool, error) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: name,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: rule.Resources[0],
			},
		}}
		err := env.Client.Create(t.Context(), review)
		return review.Status.Allowed, err
	})
}

func eventually(t *testing.T, condition func() (bool, error)) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, soon, true,
		func(context.Context) (bool, error) { return condition() })
	if err != nil {
		t.Fatal(err)
	}
}

func object(t *testing.T, kind, namespace, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	o.SetNamespace(namespace)
	o.SetGenerateName("t-")
	setSpec(t, o, spec)
	return o
}

func setSpec(t *testing.T, o *unstructured.Unstructured, spec string) {
	t.Helper()
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatalf("the test's spec is not valid YAML: %v", err)
	}
	o.Object["spec"] = fields
}

// create uses strict field validation, so that no test passes because of a typo.
func (p *actor) create(t *testing.T, o client.Object) error {
	t.Helper()
	return p.Create(t.Context(), o, client.FieldValidation("Strict"))
}

func mustCreate[O client.Object](t *testing.T, o O) O {
	t.Helper()
	if err := admin(t).create(t, o); err != nil {
		t.Fatal(err)
	}
	return o
}

func secret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		StringData: map[string]string{"k": "v"},
	}
}

func managedSecret(namespace, name, label, value string) *corev1.Secret {
	managed := secret(namespace, name)
	managed.Type = v1alpha1.SecretTypeUserKey
	managed.Labels = map[string]string{label: value}
	return managed
}

func configMap(namespace, name, events string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"events.json": events},
	}
}
