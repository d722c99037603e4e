package installed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	contract "github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/testenv"
)

var (
	env      *testenv.Env
	auditDir string
	binaries string
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	for _, dir := range []*string{&auditDir, &binaries} {
		var err error
		if *dir, err = os.MkdirTemp("", "parley-installed-"); err != nil {
			panic(err)
		}
	}
	testenv.Main(m, func(e *testenv.Env) {
		env = e
		e.AtStop(func() { _ = os.RemoveAll(auditDir) })
		e.AtStop(func() { _ = os.RemoveAll(binaries) })
	}, testenv.WithAuditLog(auditDir), func(e *envtest.Environment) {
		// OpenShift enables this plugin. It allows blockOwnerDeletion only to users who may update
		// the owner's finalizers.
		e.ControlPlane.GetAPIServer().Configure().Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	})
}

// programs builds the programs one time for all tests.
var programs = sync.OnceValue(func() error {
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binaries+"/",
		"./cmd/manager", "./cmd/facade", "./cmd/archive")
	build.Dir = testenv.Path()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	return nil
})

type installation struct {
	t         *testing.T
	dir       string
	workloads map[string]manifests.Workload
	facadeURL string
	// metricsURL and onboardingURL are URLs of the manager.
	metricsURL, onboardingURL string
	logs                      map[string]*testenv.Log
	stop                      map[string]func()
}

// install applies a kustomization and starts Parley. CONFIG in the overlay is replaced with the
// path of config/.
func install(t *testing.T, overlay map[string]string, environment ...string) *installation {
	t.Helper()
	if err := programs(); err != nil {
		t.Fatal(err)
	}
	webhook := freeAddress(t)
	objects, workloads, err := manifests.FitToProcesses(kustomized(t, overlay), webhook)
	if err != nil {
		t.Fatal(err)
	}
	i := &installation{t: t, dir: t.TempDir(), workloads: workloads, logs: map[string]*testenv.Log{},
		stop: map[string]func(){}}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		rank := func(o *unstructured.Unstructured) int { return slices.Index([]string{"", "Namespace"}, o.GetKind()) }
		return rank(b) - rank(a)
	})
	for _, object := range objects {
		i.apply(object)
	}
	health, metrics, facade, archive := freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t)
	namespace := workloads["manager"].Namespace
	i.start("manager", environment,
		"--namespace="+namespace, "--webhook-cert-dir="+filepath.Join(i.dir, "webhook"), "--webhook-bind-address="+webhook,
		"--webhook-extra-dns-name=localhost", "--metrics-bind-address="+metrics, "--health-probe-bind-address="+health,
		"--shutdown-delay=0s")
	i.awaitReady("manager", "http://"+health+"/readyz")
	i.metricsURL, i.onboardingURL = "https://"+metrics+"/metrics", "https://"+webhook+"/onboard"
	i.mountSigningKey(objects)
	i.start("facade", environment,
		"--namespace="+namespace, "--bind-address="+facade, "--metrics-bind-address=0", "--shutdown-delay=0s",
		"--signing-key-dir="+filepath.Join(i.dir, "signing"), "--archive=http://"+archive)
	i.facadeURL = "http://" + facade
	i.startArchive(environment, archive)
	i.awaitReady("facade", i.facadeURL+"/ready")
	return i
}

func (i *installation) startArchive(environment []string, address string) {
	i.t.Helper()
	health := freeAddress(i.t)
	i.start("archive", environment,
		"--bind-address="+address, "--health-probe-bind-address="+health, "--metrics-bind-address=0",
		"--store=file://"+filepath.Join(i.dir, "archive"), "--signing-key-dir="+filepath.Join(i.dir, "verifying"))
	i.awaitReady("archive", "http://"+health+"/ready")
}

func kustomized(t *testing.T, overlay map[string]string) []*unstructured.Unstructured {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range overlay {
		dir := filepath.Join(root, name)
		config, err := filepath.Rel(dir, testenv.Path("config"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.ReplaceAll(text, "CONFIG", config)),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := manifests.Build(t.Context(), root, filepath.Join(assets(), "kubectl"), "kustomize")
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func assets() string {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir
	}
	return testenv.Path("bin", "k8s")
}

// apply applies an object, and deletes it after the test. It ignores CRDs, because they exist for
// all tests.
func (i *installation) apply(object *unstructured.Unstructured) {
	i.t.Helper()
	if object.GetKind() == "CustomResourceDefinition" {
		return
	}
	if err := env.Client.Apply(i.t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
		client.ForceOwnership, client.FieldOwner("admin")); err != nil {
		i.t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
	}
	if object.GetKind() != "Namespace" { // no controller runs that would delete its content
		i.t.Cleanup(func() { _ = env.Client.Delete(context.Background(), object) })
	}
}

func (i *installation) user(name string) string {
	w := i.workloads[name]
	return "system:serviceaccount:" + w.Namespace + ":" + w.ServiceAccount
}

func (i *installation) config(name string) *rest.Config {
	i.t.Helper()
	w := i.workloads[name]
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.ServiceAccount}}
	request := &authenticationv1.TokenRequest{}
	if err := env.Client.SubResource("token").Create(i.t.Context(), account, request); err != nil {
		i.t.Fatalf("token of %s: %v", name, err)
	}
	config := rest.AnonymousClientConfig(env.Config)
	config.BearerToken = request.Status.Token
	return config
}

func (i *installation) kubeconfig(name string) string {
	i.t.Helper()
	config := i.config(name)
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	path := filepath.Join(i.dir, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		i.t.Fatal(err)
	}
	return path
}

func (i *installation) start(name string, environment []string, args ...string) {
	i.t.Helper()
	log := &testenv.Log{}
	i.logs[name] = log
	args = slices.Concat(i.workloads[name].Args, []string{"--kubeconfig=" + i.kubeconfig(name)}, args)
	cmd := exec.Command(filepath.Join(binaries, name), args...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	i.stop[name] = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	t := i.t
	t.Cleanup(func() {
		i.stop[name]()
		if t.Failed() {
			t.Logf("%s:\n%s", name, log)
		}
	})
}

func (i *installation) awaitReady(name, url string) {
	i.t.Helper()
	testenv.Await(i.t, func() error {
		response, err := http.Get(url)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, i.logs[name])
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not ready: %s %s\n%s", name, response.Status, body, i.logs[name])
		}
		return nil
	})
}

// mountSigningKey writes the manager's keys as a kubelet would mount them. The facade gets the
// private key, the archive the public key.
func (i *installation) mountSigningKey(objects []*unstructured.Unstructured) {
	i.t.Helper()
	at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "Secret" && strings.Contains(o.GetName(), session.SigningSecret)
	})
	secret := &corev1.Secret{}
	testenv.Await(i.t, func() error {
		if err := env.Client.Get(i.t.Context(), client.ObjectKeyFromObject(objects[at]), secret); err != nil {
			return err
		}
		if len(secret.Data[session.SigningPrivateKey]) == 0 {
			return fmt.Errorf("the Secret %s has no key yet", secret.Name)
		}
		return nil
	})
	for dir, half := range map[string]string{"signing": session.SigningPrivateKey, "verifying": session.SigningPublicKey} {
		file := filepath.Join(i.dir, dir, half)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			i.t.Fatal(err)
		}
		if err := os.WriteFile(file, secret.Data[half], 0o600); err != nil {
			i.t.Fatal(err)
		}
	}
}

type person struct {
	*installation
	namespace, key string
}

// newPerson creates the UserSettings of a user, and waits for the session key.
func (i *installation) newPerson(namespace string) *person {
	i.t.Helper()
	create(i.t, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
	p := &person{installation: i, namespace: namespace}
	testenv.Await(i.t, func() error {
		secret := &corev1.Secret{}
		err := env.Client.Get(i.t.Context(), client.ObjectKey{Namespace: namespace,
			Name: v1alpha1.SessionKeySecretName("default")}, secret)
		p.key = string(secret.Data[v1alpha1.SessionKeySecretKey])
		return err
	})
	return p
}

// call repeats a request until the facade responds with this status. A facade needs some time until
// it knows a new user.
func (p *person) call(code int, method, path, body string) map[string]any {
	p.t.Helper()
	var answer map[string]any
	testenv.Await(p.t, func() error {
		request, err := http.NewRequestWithContext(p.t.Context(), method, p.facadeURL+path, bytes.NewReader([]byte(body)))
		if err != nil {
			return err
		}
		request.Header.Set(contract.KeyHeader, p.key)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != code {
			return fmt.Errorf("%s %s: %s %s, want %d: %w", method, path, response.Status, text, code, err)
		}
		answer = nil
		_ = json.Unmarshal(text, &answer)
		return nil
	})
	return answer
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := env.Client.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

func namespace(t *testing.T, name string) string {
	t.Helper()
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return name
}

func freeAddress(t *testing.T) string {
	t.Helper()
	const name = "server"
	ports, err := cluster.AssignPorts(filepath.Join(t.TempDir(), "ports"), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	return ports.Address(name)
}
