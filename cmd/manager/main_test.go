package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
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
	"testing"
	"time"

	admissionapi "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const system = "parley-system"

var env *testenv.Env

// asProcess is the environment variable that makes the test binary run as the manager.
const asProcess = "PARLEY_TEST_MANAGER"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		main()
		return
	}
	testenv.Main(m, func(e *testenv.Env) { env = e })
}

func install(t *testing.T, files ...string) {
	t.Helper()
	for _, file := range files {
		data, err := os.ReadFile(testenv.Path("config", filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if object.Object == nil {
				continue
			}
			if err := client.IgnoreAlreadyExists(env.Client.Create(t.Context(), object)); err != nil {
				t.Fatalf("create %s %s: %v", object.GetKind(), object.GetName(), err)
			}
		}
	}
}

func installAll(t *testing.T) {
	t.Helper()
	install(t, "namespace/namespace.yaml", "rbac/manager/role.yaml", "rbac/manager/bindings.yaml",
		"rbac/manager/leader_election.yaml",
		"rbac/users/roles.yaml", "manager/signing.yaml", "webhook/secret.yaml", "webhook/manifests.yaml",
		"webhook/service.yaml")
}

func await(t *testing.T, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still: %v", err)
		case <-tick.C:
		}
	}
}

// freeAddress returns a free address on 127.0.0.2. Outgoing connections use ports of 127.0.0.1, so
// they cannot take the address before the test listens on it.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

var insecure = &http.Client{Transport: &http.Transport{
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the metrics certificate is self-signed
}}

func get(url, token string) (int, string, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := insecure.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

func token(t *testing.T, name, role string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
	if err := env.Client.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	if role != "" {
		if err := env.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: system, Name: name}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	review := &authenticationv1.TokenRequest{}
	if err := env.Client.SubResource("token").Create(t.Context(), account, review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Token
}

// asManager makes the next manager use its ServiceAccount's identity.
func asManager(t *testing.T) {
	t.Helper()
	// RBAC identifies a ServiceAccount by its user name.
	user, err := env.AddUser(envtest.User{Name: serviceAccount(system, "parley-manager")}, env.Config)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
}

type addresses struct{ metrics, health, webhook string }

func leaseOf(holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "parley-manager"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](3600),
			AcquireTime: ptr.To(metav1.NowMicro()), RenewTime: ptr.To(metav1.NowMicro()),
		},
	}
}

// leadElsewhere creates the leader's lease with another replica as its holder.
func leadElsewhere(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	lease := leaseOf("another")
	if err := env.Client.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	return lease
}

// start starts a manager and waits until it is ready. Each manager is a process of its own, because
// controller names must be unique in a process.
func start(t *testing.T, args ...string) (at addresses, stop func(), done <-chan error) {
	t.Helper()
	at = addresses{freeAddress(t), freeAddress(t), freeAddress(t)}
	manager := exec.Command(os.Args[0], append(args, "--namespace="+system, "--runtime-image=example.com/parley:1",
		"--workers=2", "--metrics-bind-address="+at.metrics, "--health-probe-bind-address="+at.health,
		"--webhook-bind-address="+at.webhook, "--webhook-cert-dir="+t.TempDir(), "--shutdown-delay=20s")...)
	manager.Env = append(os.Environ(), asProcess+"=1")
	log := &bytes.Buffer{}
	manager.Stdout, manager.Stderr = log, log
	if err := manager.Start(); err != nil {
		t.Fatal(err)
	}
	ended, over := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- manager.Wait()
		close(over)
	}()
	t.Cleanup(func() {
		_ = manager.Process.Kill()
		<-over
		if t.Failed() {
			t.Log(log)
		}
	})
	await(t, func() error {
		if code, body, err := get("http://"+at.health+"/readyz", ""); err != nil || code != http.StatusOK {
			return fmt.Errorf("readyz: %d %s %w", code, body, err)
		}
		return nil
	})
	return at, func() {
		if err := manager.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}, ended
}

// This test runs the whole manager, with its own identity and role.
func TestTheManagerRunsAndShutsDownFast(t *testing.T) {
	installAll(t)
	asManager(t)
	lease := leadElsewhere(t)
	at, stop, done := start(t)
	configuration := &admissionv1.ValidatingWebhookConfiguration{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Name: "parley-webhook"}, configuration); err != nil {
		t.Fatal(err)
	}
	for _, w := range configuration.Webhooks {
		if len(w.ClientConfig.CABundle) == 0 {
			t.Errorf("ready, but the API server does not trust %s", w.Name)
		}
	}

	metrics, reader := "https://"+at.metrics+"/metrics", token(t, "prometheus", "parley-metrics-reader")
	const count = `parley_conversations{state="RUNNING"} 0`
	// Only the leader counts conversations, so that the sum of the metric over all replicas is
	// correct.
	if code, body, err := get(metrics, reader); err != nil || code != http.StatusOK || strings.Contains(body,
		"parley_conversations{") {
		t.Errorf("a follower counts the conversations or has no metrics: %d %v", code, err)
	}
	if err := env.Client.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		if code, body, err := get(metrics, reader); err != nil || !strings.Contains(body, count) {
			return fmt.Errorf("the leader does not count the conversations: %d %w", code, err)
		}
		return nil
	})

	// The manifests contain an empty Secret. The permissions of the manager suffice to fill it.
	await(t, func() error {
		secret := &corev1.Secret{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: system, Name: session.SigningSecret},
			secret); err != nil {
			return err
		}
		_, err := session.ParseSigningKeys(secret.Data[session.SigningPrivateKey])
		return err
	})

	for name, tc := range map[string]struct {
		token string
		code  int
	}{
		"anonymous users":        {"", http.StatusUnauthorized},
		"users without the role": {token(t, "unprivileged", ""), http.StatusForbidden},
		"metrics readers":        {reader, http.StatusOK},
	} {
		t.Run("metrics for "+name, func(t *testing.T) {
			if code, _, err := get(metrics, tc.token); err != nil || code != tc.code {
				t.Errorf("got %d, want %d: %v", code, tc.code, err)
			}
		})
	}

	stop()
	// The manager must release the lease. Otherwise the next leader would wait until the lease
	// expires.
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
			return err
		}
		if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
			return fmt.Errorf("the lease is still held by %s", *lease.Spec.HolderIdentity)
		}
		return nil
	})
	// Another replica may now be the leader. Callers that have not noticed the stop still get a
	// response from this manager.
	if code, _, err := get("https://"+at.webhook+"/validate-parley-dev-v1alpha1-conversation", ""); err != nil ||
		code != http.StatusOK {
		t.Errorf("the webhook of a stopping manager answers %d: %v", code, err)
	}
	if err := <-done; err != nil {
		t.Errorf("the manager exited with %v", err)
	}

	t.Run("a follower without earlier calls still answers", func(t *testing.T) {
		if err := env.Client.Delete(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
		leadElsewhere(t)
		at, stop, done := start(t)
		stop()
		// Wait until the health endpoint is closed: the manager's watches have then stopped too. The
		// webhook must still answer.
		await(t, func() error {
			if _, _, err := get("http://"+at.health+"/readyz", ""); err == nil {
				return errors.New("the manager has not stopped yet")
			}
			return nil
		})
		if allowed, err := admits(at.webhook, "usersettings", "UserSettings", `{"agent": "CodeActAgent"}`); err != nil ||
			!allowed {
			t.Errorf("allowed: %t, %v", allowed, err)
		}
		if err := <-done; err != nil {
			t.Errorf("the manager exited with %v", err)
		}
	})
}

// admits sends a new object to a webhook, and returns whether the webhook admits the object. The
// webhook stops when the manager's --shutdown-delay is over, so the timeout of the request is
// shorter.
func admits(address, resource, kind, spec string) (bool, error) {
	body := fmt.Sprintf(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
		"uid": "1", "operation": "CREATE", "namespace": "default", "userInfo": {"username": "somebody"},
		"kind": {"group": "parley.dev", "version": "v1alpha1", "kind": %[2]q},
		"resource": {"group": "parley.dev", "version": "v1alpha1", "resource": %[1]q},
		"object": {"apiVersion": "parley.dev/v1alpha1", "kind": %[2]q,
			"metadata": {"namespace": "default", "name": "asked"}, "spec": %[3]s}}}`, resource, kind, spec)
	asking := &http.Client{Transport: insecure.Transport, Timeout: 15 * time.Second}
	response, err := asking.Post("https://"+address+"/validate-parley-dev-v1alpha1-"+resource, "application/json",
		strings.NewReader(body))
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	var review admissionapi.AdmissionReview
	if err := json.NewDecoder(response.Body).Decode(&review); err != nil || review.Response == nil {
		return false, fmt.Errorf("no answer: %w", err)
	}
	if !review.Response.Allowed {
		err = errors.New(review.Response.Result.Message)
	}
	return review.Response.Allowed, err
}
