package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

const (
	root        = "../.."
	testTimeout = 3 * time.Minute
)

// installation is a directory in which the program under test runs.
type installation struct {
	bin, state, log string
	port            int
}

func newInstallation(t *testing.T) installation {
	t.Helper()
	i := installation{bin: t.TempDir(), state: filepath.Join(t.TempDir(), "state"), log: t.TempDir()}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", i.bin+"/", "./cmd/manager", "./cmd/facade",
		"./cmd/archive", "./cmd/supervisor", "./cmd/runtime", "./hack/local", "./hack/test/toolserver")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, output)
	}
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = filepath.Join(root, "bin/k8s")
	}
	assets, err := filepath.Abs(assets)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(assets, "kube-apiserver")); err != nil {
		t.Fatalf("no Kubernetes to test with; make k8s builds it: %v", err)
	}
	ports, err := cluster.AssignPorts(filepath.Join(t.TempDir(), "ports.json"), []string{"facade"})
	if err != nil {
		t.Fatal(err)
	}
	i.port = ports["facade"]
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	t.Setenv("PORT", strconv.Itoa(i.port))
	t.Chdir(root)
	return i
}

// running is the program under test after it has printed its banner.
type running struct {
	installation
	ctx context.Context // ends with the program
}

func (i installation) start(t *testing.T) running {
	t.Helper()
	supervisor, ctx := cluster.Supervise(t.Context(), i.log)
	t.Cleanup(func() { supervisor.Stop(nil) })
	startCtx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	err := supervisor.Start(startCtx, cluster.Process{
		Name: "local", Path: filepath.Join(i.bin, "local"), Grace: time.Minute,
		Args: []string{"--state-dir=" + i.state, "--bin-dir=" + i.bin},
		Ready: func(context.Context) error {
			if !strings.Contains(i.output(), "Parley is ready") {
				return errors.New("no banner yet")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, i.output())
	}
	return running{i, ctx}
}

func (i installation) output() string {
	content, _ := os.ReadFile(filepath.Join(i.log, "local.log"))
	return string(content)
}

func (r running) signal(t *testing.T, name string, sig syscall.Signal) {
	t.Helper()
	for _, p := range r.processes() {
		if p.name == name {
			if err := syscall.Kill(p.pid, sig); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no process %s", name)
}

func (r running) awaitEnd(t *testing.T) syscall.WaitStatus {
	t.Helper()
	select {
	case <-r.ctx.Done():
	case <-time.After(testTimeout):
		t.Fatalf("has not ended\n%s", r.output())
	}
	var death *cluster.Death
	if !errors.As(context.Cause(r.ctx), &death) {
		t.Fatal(context.Cause(r.ctx))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := cluster.Retry(ctx, 20*time.Millisecond, func(context.Context) error {
		if left := r.processes(); len(left) > 0 {
			return fmt.Errorf("left running: %v", left)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return death.Status
}

type process struct {
	pid  int
	name string
}

// processes returns the processes that have the state directory in their arguments. It omits
// zombies, because they have no arguments.
func (i installation) processes() []process {
	var found []process
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		content, _ := os.ReadFile(file)
		program, arguments, _ := strings.Cut(string(content), "\x00")
		if strings.Contains(arguments, i.state) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			found = append(found, process{pid, filepath.Base(program)})
		}
	}
	return found
}

func (i installation) client(t *testing.T) client.WithWatch {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(i.state, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (i installation) sessionKey(t *testing.T) string {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(i.state, "session-key"))
	if err != nil || len(key) == 0 {
		t.Fatalf("session key: %q, %v", key, err)
	}
	return string(key)
}

func (i installation) signsInOnce(t *testing.T) {
	t.Helper()
	_, rest, _ := strings.Cut(i.output(), "/signin#code=")
	code, _, _ := strings.Cut(rest, "\n")
	facade := fmt.Sprintf("http://127.0.0.1:%d", i.port)
	for try, want := range []int{http.StatusOK, http.StatusUnauthorized} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, facade+"/api/signin",
			strings.NewReader(`{"code": "`+code+`", "replace": true}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Origin", facade)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("use %d of the link gets the status %s", try+1, answer.Status)
		}
	}
}

func TestLocalClusterStartsStopsAndRestarts(t *testing.T) {
	i := newInstallation(t)
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "note"}}

	first := i.start(t)
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/alive", i.port))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("/alive answers %s", answer.Status)
	}
	if err := i.client(t).Create(t.Context(), note); err != nil {
		t.Fatal(err)
	}
	i.addAgent(t, "CodeActAgent", writer)
	key := i.sessionKey(t)
	if !strings.Contains(i.output(), key) {
		t.Error("the banner does not show the session key")
	}
	i.signsInOnce(t)
	first.signal(t, "local", syscall.SIGINT)
	if status := first.awaitEnd(t); !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("after SIGINT: status %d\n%s", status, i.output())
	}

	second := i.start(t)
	if err := i.client(t).Get(t.Context(), client.ObjectKeyFromObject(note), note); err != nil {
		t.Errorf("the data is gone: %v", err)
	}
	catalogue := &corev1.ConfigMap{}
	if err := i.client(t).Get(t.Context(), client.ObjectKey{Namespace: "parley-system", Name: v1alpha1.AgentCatalogueName},
		catalogue); err != nil || catalogue.Data["CodeActAgent"] != writer {
		t.Errorf("the agent is %q (%v)", catalogue.Data["CodeActAgent"], err)
	}
	if again := i.sessionKey(t); again != key {
		t.Error("the session key changed over a restart")
	}
	second.signal(t, "local", syscall.SIGTERM)
	if status := second.awaitEnd(t); !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("after SIGTERM: status %d\n%s", status, i.output())
	}

	for _, victim := range []string{"etcd", "kube-apiserver", "manager"} {
		run := i.start(t)
		run.signal(t, victim, syscall.SIGKILL)
		if status := run.awaitEnd(t); !status.Exited() || status.ExitStatus() == 0 {
			t.Errorf("after the death of %s: status %d", victim, status)
		}
		if !strings.Contains(i.output(), victim+" died") {
			t.Errorf("the output does not report the death of %s:\n%s", victim, i.output())
		}
	}

	last := i.start(t)
	last.signal(t, "local", syscall.SIGKILL)
	last.awaitEnd(t)
}

func TestErrorForAUsedPortSuggestsAnotherPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	o := options{stateDir: t.TempDir(), port: taken.Addr().(*net.TCPAddr).Port}
	err = run(t.Context(), nil, o, io.Discard)
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(o.port)) || !strings.Contains(err.Error(), "PORT=") {
		t.Errorf("got %v", err)
	}
}
