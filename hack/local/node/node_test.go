package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

var env *testenv.Env

// TestMain also acts as the session's process: the node under test runs this test binary. The
// variable STUB selects how the process behaves.
func TestMain(m *testing.M) {
	if behaviour, isStub := os.LookupEnv("STUB"); isStub {
		stub(behaviour)
		return
	}
	testenv.Main(m, func(e *testenv.Env) { env = e })
}

func stub(behaviour string) {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	if behaviour == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	go func() {
		http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "stub") })
		http.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) { os.Exit(3) })
		http.HandleFunc("/done", func(http.ResponseWriter, *http.Request) {
			end, _ := json.Marshal(session.Termination{Reason: v1alpha1.ReasonCompleted, Message: "stub is done"})
			_ = os.WriteFile(os.Getenv("PARLEY_TERMINATION_LOG"), end, 0o600)
			os.Exit(0)
		})
		http.HandleFunc("/environ", func(w http.ResponseWriter, _ *http.Request) {
			dir, _ := os.Getwd()
			fmt.Fprintln(w, strings.Join(append(os.Environ(), "PWD="+dir), "\n"))
		})
		if err := http.ListenAndServe(os.Getenv("PARLEY_BIND_ADDRESS"), nil); err != nil {
			os.Exit(4)
		}
	}()
	<-terminated
	os.Exit(0)
}

type testNode struct {
	*Node
	t         *testing.T
	namespace string
	stop      func()
}

func startNode(t *testing.T, namespace, state string) *testNode {
	t.Helper()
	return startNodeWith(t, env.Config, namespace, state)
}

func startNodeWith(t *testing.T, config *rest.Config, namespace, state string) *testNode {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n, err := Start(ctx, Options{
		Name: "local", Client: client, Program: program, State: state, Logs: t.TempDir(), Say: t.Logf,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := func() { cancel(); n.Wait() }
	t.Cleanup(stop)
	return &testNode{n, t, namespace, stop}
}

func newTestNode(t *testing.T) *testNode {
	t.Helper()
	return startNode(t, env.Namespace(t, nil), t.TempDir())
}

func (n *testNode) sessionPod(name, behaviour string) *corev1.Pod {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("session")},
		}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name, Labels: map[string]string{
			v1alpha1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelComponent: v1alpha1.ComponentSession,
		}},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyOnFailure,
			AutomountServiceAccountToken:  ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			InitContainers:                []corev1.Container{{Name: "install-runtime", Image: "example.com/parley:1"}},
			Containers: []corev1.Container{{
				Name: "session", Image: "example.com/parley:1", Command: []string{session.BinDir + "/supervisor"},
				WorkingDir: session.WorkspaceDir,
				Env: []corev1.EnvVar{
					{Name: "STUB", Value: behaviour}, {Name: "HOME", Value: session.HomeDir},
					{Name: "FROM_SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: "key",
					}}},
				},
				Ports:        []corev1.ContainerPort{{Name: "session", ContainerPort: session.Port}},
				StartupProbe: probe(session.AlivePath), ReadinessProbe: probe(session.ReadyPath),
				LivenessProbe: probe(session.AlivePath),
				VolumeMounts: []corev1.VolumeMount{
					{Name: "session", MountPath: session.Dir}, {Name: "workspace", MountPath: session.WorkspaceDir},
					{Name: "home", MountPath: session.HomeDir},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "session", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}},
				{Name: "home", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "workspace", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}},
			},
		},
	}
}

func (n *testNode) create(o client.Object) {
	n.t.Helper()
	if err := env.Client.Create(n.t.Context(), o); err != nil {
		n.t.Fatal(err)
	}
}

func (n *testNode) createWithSecret(pod *corev1.Pod) {
	n.t.Helper()
	n.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		Data: map[string][]byte{"key": []byte("s3cret")}})
	n.create(pod)
}

func (n *testNode) addImages(pod *corev1.Pod) {
	n.t.Helper()
	var sources []corev1.VolumeProjection
	for name, image := range map[string]struct{ path, data string }{"one": {"0.png", "first"}, "two": {"2.png",
		"second"}} {
		n.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name},
			BinaryData: map[string][]byte{"image": []byte(image.data)}})
		sources = append(sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: []corev1.KeyToPath{{Key: "image",
				Path: image.path}},
		}})
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "images",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}})
	mounts := &pod.Spec.Containers[0].VolumeMounts
	*mounts = append(*mounts, corev1.VolumeMount{Name: "images", MountPath: session.ImagesDir})
}

func (n *testNode) await(pod *corev1.Pod, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	n.t.Helper()
	current := &corev1.Pod{}
	testenv.Await(n.t, func() error {
		if err := env.Client.Get(n.t.Context(), client.ObjectKeyFromObject(pod), current); err != nil || wanted(current) {
			return err
		}
		return fmt.Errorf("pod is not %s: %+v", what, current.Status)
	})
	return current
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// get sends a request to a pod's process. It returns an empty text if the request ended the
// process.
func (n *testNode) get(pod *corev1.Pod, path string) string {
	n.t.Helper()
	answer, err := http.Get(fmt.Sprintf("http://%s:%d%s", pod.Status.PodIP, session.Port, path))
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
}

func TestAPodReportsWhyItEnded(t *testing.T) {
	n := newTestNode(t)
	pod := n.sessionPod("ends", "obedient")
	n.createWithSecret(pod)
	running := n.await(pod, "ready", ready)
	container := running.Status.ContainerStatuses[0]
	if running.Spec.NodeName != "local" || running.Status.Phase != corev1.PodRunning || !*container.Started ||
		!container.Ready {
		t.Errorf("a ready pod has status %+v", running.Status)
	}
	n.get(running, "/done")
	ended := n.await(pod, "over", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	state := ended.Status.ContainerStatuses[0].State.Terminated
	if state == nil || state.ExitCode != 0 || state.FinishedAt.IsZero() {
		t.Fatalf("ended with %+v", state)
	}
	if end, said := session.ParseTermination(state.Message); !said || end.Message != "stub is done" {
		t.Errorf("ended with %+v", end)
	}
	if ready(ended) {
		t.Error("an ended pod is ready")
	}
	eventually(t, "secrets are off the disk", func() bool {
		_, err := os.Stat(filepath.Join(n.podDir(ended), "session"))
		return os.IsNotExist(err)
	})
}

func TestProcessGetsLocalPathsButNotTheNodesEnvironment(t *testing.T) {
	t.Setenv("NODE_SECRET", "not for sessions")
	n := newTestNode(t)
	pod := n.sessionPod("paths", "obedient")
	n.addImages(pod)
	n.createWithSecret(pod)
	running := n.await(pod, "ready", ready)
	environ := n.get(running, "/environ")
	for _, want := range []string{
		"PARLEY_SESSION_DIR=" + filepath.Join(n.podDir(running), "session"),
		"GIT_CEILING_DIRECTORIES=" + n.podDir(running),
		"HOME=" + filepath.Join(n.podDir(running), "home"),
		"PARLEY_IMAGES_DIR=" + filepath.Join(n.podDir(running), "images"),
		"PARLEY_WORKSPACE=" + n.claimDir(n.namespace, "paths"),
		"PWD=" + n.claimDir(n.namespace, "paths"),
		"FROM_SECRET=s3cret",
	} {
		if !strings.Contains(environ, want+"\n") {
			t.Errorf("no %s in\n%s", want, environ)
		}
	}
	if strings.Contains(environ, "NODE_SECRET") || strings.Contains(environ, "KUBEBUILDER") {
		t.Errorf("the node's environment leaks:\n%s", environ)
	}
	for _, dir := range []string{n.podDir(running), filepath.Join(n.podDir(running), "session"), n.claimDir(n.namespace,
		"paths")} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
	if value, err := os.ReadFile(filepath.Join(n.podDir(running), "session", "key")); string(value) != "s3cret" {
		t.Errorf("the Secret's file holds %q, %v", value, err)
	}
	for file, want := range map[string]string{"0.png": "first", "2.png": "second"} {
		if value, err := os.ReadFile(filepath.Join(n.podDir(running), "images", file)); string(value) != want {
			t.Errorf("the image %s is %q, %v", file, value, err)
		}
	}
}

func TestCrashedProcessIsRestarted(t *testing.T) {
	n := newTestNode(t)
	pod := n.sessionPod("crashes", "obedient")
	n.createWithSecret(pod)
	n.get(n.await(pod, "ready", ready), "/crash")
	again := n.await(pod, "restarted", func(p *corev1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	last := again.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if last == nil || last.ExitCode != 3 || last.Reason != "Error" {
		t.Errorf("last state is %+v", last)
	}
}

func TestDeletingAPodRemovesItsProcessAndDirectoryButNotItsVolume(t *testing.T) {
	n := newTestNode(t)
	pod := n.sessionPod("goes", "stubborn")
	n.createWithSecret(pod)
	running := n.await(pod, "ready", ready)
	if err := env.Client.Delete(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod is gone", func() bool {
		return apierrors.IsNotFound(env.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}))
	})
	if answer := n.get(running, "/alive"); answer != "" {
		t.Error("its process still answers")
	}
	eventually(t, "its directory is gone", func() bool {
		_, err := os.Stat(n.podDir(running))
		return os.IsNotExist(err)
	})
	if _, err := os.Stat(n.claimDir(n.namespace, "goes")); err != nil {
		t.Errorf("the workspace went, too: %v", err)
	}
}

func TestAPodIsReportedAsLostAfterTheNodeRestarts(t *testing.T) {
	namespace, state := env.Namespace(t, nil), t.TempDir()
	first := startNode(t, namespace, state)
	pod := first.sessionPod("lost", "obedient")
	first.createWithSecret(pod)
	running := first.await(pod, "ready", ready)
	first.stop()
	if first.get(running, "/alive") != "" {
		t.Error("its process outlives the node")
	}
	second := startNode(t, namespace, state)
	lost := second.await(pod, "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if lost.Status.Reason != "NodeLost" || ready(lost) {
		t.Errorf("status is %+v", lost.Status)
	}
}

func TestAPodWhoseImageHasItsOwnRuntimeIsRefused(t *testing.T) {
	n := newTestNode(t)
	pod := n.sessionPod("foreign", "")
	pod.Spec.Containers[0].Command = nil
	pod.Spec.Containers[0].Image = "example.com/own:3"
	n.createWithSecret(pod)
	n.await(pod, "waiting", func(p *corev1.Pod) bool { return waits(p, "ErrImageNeverPull", "example.com/own:3") })
}

func waits(pod *corev1.Pod, reason, says string) bool {
	if len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	w := pod.Status.ContainerStatuses[0].State.Waiting
	return w != nil && w.Reason == reason && strings.Contains(w.Message, says)
}

func TestPodReportsAMissingSecretAndStartsWhenTheSecretExists(t *testing.T) {
	n := newTestNode(t)
	pod := n.sessionPod("misses", "obedient")
	n.create(pod)
	n.await(pod, "waiting", func(p *corev1.Pod) bool { return waits(p, "ContainerCreating", "volume session: ") })
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	n.create(secret)
	n.await(pod, "waiting", func(p *corev1.Pod) bool {
		return waits(p, "CreateContainerConfigError",
			"variable FROM_SECRET: ")
	})
	secret.Data = map[string][]byte{"key": []byte("s3cret")}
	if err := env.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	n.await(pod, "ready", ready)
}

// failing makes the selected requests fail. If losesResponse is true, a selected request reaches
// the API server, but its response is lost.
type failing struct {
	http.RoundTripper
	fails         func(*http.Request) bool
	losesResponse bool
}

func (f failing) RoundTrip(r *http.Request) (*http.Response, error) {
	fails := f.fails(r)
	if fails && !f.losesResponse {
		return nil, errors.New("no route to host")
	}
	answer, err := f.RoundTripper.RoundTrip(r)
	if fails && err == nil {
		_ = answer.Body.Close()
		return nil, errors.New("connection reset")
	}
	return answer, err
}

func TestAFailedBindingOfAPodToTheNodeIsRetried(t *testing.T) {
	for name, answers := range map[string]bool{"the request is lost": false, "the answer is lost": true} {
		t.Run(name, func(t *testing.T) {
			var failed atomic.Bool
			config := rest.CopyConfig(env.Config)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return failing{next, func(r *http.Request) bool {
					return strings.HasSuffix(r.URL.Path, "/binding") && failed.CompareAndSwap(false, true)
				}, answers}
			})
			n := startNodeWith(t, config, env.Namespace(t, nil), t.TempDir())
			pod := n.sessionPod("bound", "obedient")
			n.createWithSecret(pod)
			n.await(pod, "ready", ready)
			if !failed.Load() {
				t.Error("no binding failed")
			}
		})
	}
}

func TestANodeKillsOnlyProcessesOfItsSessions(t *testing.T) {
	dir := t.TempDir()
	start := func(variable string) *exec.Cmd {
		cmd := exec.Command("sleep", "600")
		cmd.Env = []string{variable}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	own, other := start("PARLEY_SESSION_DIR="+dir+"/uid/session"), start("PARLEY_SESSION_DIR="+dir+"-2/uid/session")
	editor := start("PWD=" + dir + "/uid/home")
	Kill(dir)
	// Only the process in the variable own must get SIGKILL from Kill. The SIGTERM below ends the
	// other two processes. If the killed process still exists at that time, Linux nevertheless reports
	// SIGKILL as the cause of its end.
	for cmd, want := range map[*exec.Cmd]syscall.Signal{own: syscall.SIGKILL, other: syscall.SIGTERM,
		editor: syscall.SIGTERM} {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if got := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != want {
			t.Errorf("the process with %s was ended by %s, want %s", cmd.Env, got, want)
		}
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testenv.Await(t, func() error {
		if !holds() {
			return fmt.Errorf("timed out waiting until %s", what)
		}
		return nil
	})
}
