// Package integration_test uses sessions through the facade. The API server, the manager, the
// facade, the runtime and the agent are real processes. Only the model is a stub, which answers
// from a script.
package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const testTimeout = 30 * time.Second

// suite contains the processes that all tests share.
var suite struct {
	*facadeenv.Env
	dir     string
	facade  *facadeenv.Facade
	manager *managerProcess
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code, err := runSuite(m)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	if suite.dir, err = os.MkdirTemp("", "parley-integration-"); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(suite.dir) }()
	if err := build("manager", "facade", "archive", "supervisor", "runtime", "agent", "kubectl-parley"); err != nil {
		return 0, err
	}
	if suite.Env, err = facadeenv.Start(suite.dir, false); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, suite.Stop()) }()
	if suite.manager, err = startManager(); err != nil {
		return 0, err
	}
	defer suite.manager.kill()
	stopNode, err := startNode()
	if err != nil {
		return 0, err
	}
	defer stopNode()
	archive, err := startArchive(suite.ArchiveAddress)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, archive.Stop()) }()
	if suite.facade, err = startFacade("--archive=https://"+suite.ArchiveAddress, archiveCA()); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, suite.facade.Stop()) }()
	return m.Run(), nil
}

func program(name string) string { return filepath.Join(suite.dir, "bin", name) }

// startArchive starts an archive with the certificate that the manager issued.
func startArchive(address string) (*facadeenv.Facade, error) {
	file := func(name string) string { return filepath.Join(suite.SigningKeyDir, name) }
	err := cluster.Retry(context.Background(), 50*time.Millisecond, func(ctx context.Context) error {
		if err := suite.MountSigningKey(ctx); err != nil {
			return err
		}
		_, err := os.Stat(file(session.ArchiveKey)) // missing until the manager has created it
		return err
	})
	if err != nil {
		return nil, err
	}
	return suite.StartArchive(address, program("archive"), archiveDir(),
		"--tls-cert-file="+file(session.ArchiveCertificate), "--tls-key-file="+file(session.ArchiveKey))
}

func archiveCA() string {
	return "--archive-ca-file=" + filepath.Join(suite.SigningKeyDir, session.AuthorityCertificates)
}

func archiveDir() string { return filepath.Join(suite.dir, "archive") }

func startFacade(args ...string) (*facadeenv.Facade, error) {
	return suite.StartFacade(program("facade"), append([]string{"--user-rate=0"}, args...)...)
}

func build(names ...string) error {
	for _, name := range names {
		command := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program(name),
			"./cmd/"+name)
		command.Dir = testenv.Path()
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, output)
		}
	}
	return nil
}

// startNode starts a node that runs sessions as processes. It also installs the agent catalogue.
func startNode() (stop func(), err error) {
	data, err := os.ReadFile(testenv.Path("config", "agents", "catalogue.yaml"))
	if err != nil {
		return nil, err
	}
	catalogue := &corev1.ConfigMap{}
	if err := yaml.UnmarshalStrict(data, catalogue); err != nil {
		return nil, err
	}
	if err := suite.Client.Create(context.Background(), catalogue); err != nil {
		return nil, err
	}
	pods, err := kubernetes.NewForConfig(suite.Config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	force := make(chan struct{})
	running, err := node.Start(ctx, node.Options{
		Name: "local", Client: pods, Program: program("supervisor"), State: filepath.Join(suite.dir, "state"),
		Logs: filepath.Join(suite.dir, "logs"),
		Say:  func(string, ...any) {},
	}, force)
	return func() { cancel(); close(force); running.Wait() }, err
}

type person struct {
	// If idempotencyKey is set, every request contains it.
	idempotencyKey       string
	namespace, name, key string
	url                  string
	model                *scriptedmodel.Server
}

// newPerson creates a user who has a scripted model.
func newPerson(t *testing.T, settings map[string]any, steps ...scriptedmodel.Step) *person {
	t.Helper()
	p, model := newcomer(t, steps...)
	stored := map[string]any{"llm_model": "scripted/model", "llm_base_url": model, "llm_api_key": "a-key"}
	for name, value := range settings {
		stored[name] = value
	}
	p.wants(t, 200, "POST", "/api/settings", jsonOf(t, stored))
	return p
}

// newcomer creates a user with empty settings. It returns the URL of a scripted model for this
// user.
func newcomer(t *testing.T, steps ...scriptedmodel.Step) (p *person, model string) {
	t.Helper()
	p = &person{namespace: suite.Namespace(t, nil), name: "ada", url: suite.facade.URL,
		model: scriptedmodel.New(scriptedmodel.Script{Steps: steps})}
	server := httptest.NewServer(p.model)
	t.Cleanup(server.Close)
	if err := suite.Client.Create(t.Context(), &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace,
		Name: p.name}}); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, func() error {
		var secret corev1.Secret
		err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace,
			Name: v1alpha1.SessionKeySecretName(p.name)}, &secret)
		p.key = string(secret.Data[v1alpha1.SessionKeySecretKey])
		if err == nil {
			if code, body := p.do(t, "GET", "/api/conversations", ""); code != http.StatusOK {
				err = fmt.Errorf("answered %d %s", code, body)
			}
		}
		return err
	})
	return p, server.URL
}

func jsonOf(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func decode[T any](t *testing.T, text string) (value T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

func (p *person) request(ctx context.Context, method, path, body string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err == nil {
		request.Header.Set(rest.KeyHeader, p.key)
		if p.idempotencyKey != "" {
			request.Header.Set(session.IdempotencyHeader, p.idempotencyKey)
		}
	}
	return request, err
}

// withKey returns a copy of the person. The copy sends this idempotency key with every request.
func (p *person) withKey(t *testing.T, key string) *person {
	t.Helper()
	same := *p
	same.idempotencyKey = key
	return &same
}

func (p *person) do(t *testing.T, method, path, body string) (code int, answer string) {
	t.Helper()
	return p.try(t.Context(), method, path, body)
}

// try sends a request. The code is 0 if there is no response.
func (p *person) try(ctx context.Context, method, path, body string) (code int, answer string) {
	request, err := p.request(ctx, method, path, body)
	if err != nil {
		return 0, err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, strings.TrimSpace(string(text))
}

func (p *person) wants(t *testing.T, code int, method, path, body string) string {
	t.Helper()
	got, answer := p.do(t, method, path, body)
	if got != code {
		t.Fatalf("%s %s: answered %d %s, want %d", method, path, got, answer, code)
	}
	return answer
}

func (p *person) converse(t *testing.T, id string, request map[string]any) {
	t.Helper()
	all := map[string]any{"conversation_id": id}
	for name, value := range request {
		all[name] = value
	}
	p.wants(t, 200, "POST", "/api/conversations", jsonOf(t, all))
	p.awaitState(t, id, v1alpha1.StateRunning)
}

func (p *person) awaitState(t *testing.T, id string, state v1alpha1.ConversationState) {
	t.Helper()
	testenv.Await(t, func() error {
		answer := p.wants(t, 200, "GET", "/api/conversations/"+id, "")
		var c rest.Conversation
		if err := json.Unmarshal([]byte(answer), &c); err != nil || c.Status != string(state) {
			return fmt.Errorf("the conversation is %s", answer)
		}
		return nil
	})
}

func (p *person) events(t *testing.T, id string) (events []session.Event) {
	t.Helper()
	var all struct{ Trajectory []session.Event }
	if err := json.Unmarshal([]byte(p.wants(t, 200, "GET", "/api/conversations/"+id+"/trajectory", "")),
		&all); err != nil {
		t.Fatal(err)
	}
	return all.Trajectory
}

func (p *person) awaitAgent(t *testing.T, id string, state session.State) {
	t.Helper()
	testenv.Await(t, func() error {
		code, answer := p.do(t, "GET", "/api/conversations/"+id+"/trajectory", "")
		var all struct{ Trajectory []session.Event }
		if err := json.Unmarshal([]byte(answer), &all); code != http.StatusOK || err != nil {
			return fmt.Errorf("answered %d %s", code, answer)
		}
		last := session.State("")
		for _, e := range all.Trajectory {
			if said := e.StateOf(); said != "" {
				last = said
			}
		}
		if last != state {
			return fmt.Errorf("the agent is %s", last)
		}
		return nil
	})
}

func (p *person) conversation(t *testing.T, id string) *v1alpha1.Conversation {
	t.Helper()
	c := &v1alpha1.Conversation{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: id}, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func bash(command string) scriptedmodel.Call {
	return scriptedmodel.Call{Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{"command": command,
		"security_risk": "LOW"})}
}

func podUID(t *testing.T, p *person, id string) string {
	t.Helper()
	pod := &corev1.Pod{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: v1alpha1.SessionName(id)},
		pod); err != nil {
		t.Fatal(err)
	}
	return string(pod.UID)
}
