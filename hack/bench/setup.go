package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/testenv"
	"github.com/parley-dev/parley/webhook"
)

const (
	facadeUser = "system:serviceaccount:parley-system:parley-facade"
	namespace  = "default"
	user       = "bench"
	patience   = time.Minute
)

// bench is an API server with the webhook, and the facade in front of it.
type bench struct {
	env      *testenv.Env
	asFacade *rest.Config
	facade   *exec.Cmd
	url      string
	dir      string
	stopping context.CancelFunc
	stopped  chan error
}

func start(program, keyHash string) (*bench, error) {
	env, err := testenv.Start(testenv.WithWebhooks)
	if err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	b := &bench{env: env, stopped: make(chan error, 1)}
	for _, step := range []func() error{
		b.startWebhook, b.install,
		func() error { return b.createUser(keyHash) },
		func() error { return b.startFacade(program) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, b.stop())
		}
	}
	return b, nil
}

func (b *bench) stop() error {
	if b.facade != nil {
		_ = b.facade.Process.Signal(syscall.SIGTERM)
		_ = b.facade.Wait()
	}
	var err error
	if b.stopping != nil {
		b.stopping()
		err = <-b.stopped
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
	return errors.Join(err, b.env.Stop())
}

func (b *bench) startWebhook() error {
	options := &b.env.WebhookInstallOptions
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir})
	mgr, err := ctrl.NewManager(b.env.Config, ctrl.Options{Scheme: b.env.Scheme, WebhookServer: server, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	var ctx context.Context
	ctx, b.stopping = context.WithCancel(context.Background())
	if err := webhook.SetupWithManager(mgr, webhook.Options{FacadeUser: facadeUser, Namespace: "parley-system"}); err != nil {
		return err
	}
	go func() { b.stopped <- mgr.Start(ctx) }()
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return server.StartedChecker()(nil) == nil, nil
	})
}

// install gives the facade the rights that it has in a cluster.
func (b *bench) install() error {
	for _, file := range []string{"rbac/facade/role.yaml", "policy/facade.yaml"} {
		data, err := os.ReadFile(testenv.Path("config", filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := documents.Decode(object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if err := b.env.Client.Create(context.Background(), object); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "parley-facade"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "parley-facade"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: facadeUser}},
	}
	return b.env.Client.Create(context.Background(), binding)
}

// createUser makes settings with a key. No operator runs, so that nothing but the requests is measured.
func (b *bench) createUser(keyHash string) error {
	model := "ollama/small"
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user}, Spec: v1alpha1.UserSettingsSpec{LLMModel: &model}}
	if err := b.env.Client.Create(context.Background(), settings); err != nil {
		return err
	}
	settings.Status.SessionKeyHash = keyHash
	return b.env.Client.Status().Update(context.Background(), settings)
}

func (b *bench) startFacade(program string) error {
	identity, err := b.env.AddUser(envtest.User{Name: facadeUser}, b.env.Config)
	if err != nil {
		return err
	}
	b.asFacade = identity.Config()
	b.asFacade.QPS = -1
	kubeconfig, err := identity.KubeConfig()
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "parley-bench-"); err != nil {
		return err
	}
	file := filepath.Join(b.dir, "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	_ = listener.Close()
	b.url = "http://" + address
	b.facade = exec.Command(program, "--kubeconfig="+file, "--bind-address="+address, "--metrics-bind-address=0", "--user-rate=0", "--shutdown-delay=0s")
	if err := b.facade.Start(); err != nil {
		b.facade = nil
		return err
	}
	return wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		answer, err := http.Get(b.url + "/ready")
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil && answer.StatusCode == http.StatusOK, nil
	})
}

const (
	repository = "example/widgets"
	message    = "The tests of the parser fail on Windows. Find out why and mend it."
)

func (b *bench) send(connection *http.Client, method, path, body, key string) error {
	request, err := http.NewRequest(method, b.url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("X-Session-API-Key", key)
	answer, err := connection.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered %d %s", answer.StatusCode, text)
	}
	return err
}

func newConnection() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

func (b *bench) httpCreator(key string) operation {
	connection := newConnection()
	body := fmt.Sprintf(`{"repository": %q, "git_provider": "github", "selected_branch": "main", "initial_user_msg": %q}`, repository, message)
	return func(context.Context) error {
		return b.send(connection, http.MethodPost, "/api/conversations", body, key)
	}
}

// directCreator creates the object that the facade makes of the request, with the same rights.
func (b *bench) directCreator() (operation, error) {
	kind := v1alpha1.SchemeGroupVersion.WithKind("Conversation")
	conversations, err := dynamic.NewForConfig(b.asFacade)
	if err != nil {
		return nil, err
	}
	resource := conversations.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: "conversations"}).Namespace(namespace)
	return func(ctx context.Context) error {
		object := &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{
				"name":        strings.ReplaceAll(string(uuid.NewUUID()), "-", ""),
				"labels":      map[string]any{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
				"annotations": map[string]any{"parley.dev/created-at": time.Now().UTC().Format(time.RFC3339Nano)},
			},
			"spec": map[string]any{
				"userSettingsName": user, "repository": repository, "gitProvider": "github", "selectedBranch": "main", "initialUserMsg": message,
			},
		}}
		object.SetGroupVersionKind(kind)
		_, err := resource.Create(ctx, object, metav1.CreateOptions{})
		return err
	}, nil
}

func (b *bench) httpGetter(key string) (operation, error) {
	var list v1alpha1.ConversationList
	if err := b.env.Client.List(context.Background(), &list, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return nil, err
	}
	connection, path := newConnection(), "/api/conversations/"+list.Items[0].Name
	return func(context.Context) error { return b.send(connection, http.MethodGet, path, "", key) }, nil
}
