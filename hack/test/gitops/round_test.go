//go:build gitops

package gitops

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const (
	settingsManifest = `apiVersion: parley.dev/v1alpha1
kind: UserSettings
metadata: {name: ada}
spec:
  llmModel: example/from-git
  llmAPIKeyRef: {name: llm, key: key}
`
	conversationManifest = `apiVersion: parley.dev/v1alpha1
kind: Conversation
metadata: {name: c}
spec:
  userSettingsName: ada
  idleTimeout: 1h
  workspace: {size: 1Gi}
`
)

type tool struct {
	// name is the name of the tool's program. checks is the path of Parley's health checks for this
	// tool, relative to config/gitops.
	name, checks string
	// owner is the tool's field manager.
	owner string
	// words contains the tool's own word for each kstatus value.
	words map[string]string
}

var tools = []tool{
	{"argocd", "argocd/health.lua", "argocd-controller", map[string]string{"Current": "Healthy",
		"InProgress": "Progressing", "Failed": "Degraded", "Terminating": "Progressing"}},
	{"flux", "flux/sessions.yaml", "kustomize-controller", map[string]string{"Current": "Current",
		"InProgress": "InProgress", "Failed": "Failed", "Terminating": "Terminating"}},
}

func (u tool) command(t *testing.T, flags ...string) *exec.Cmd {
	command := exec.CommandContext(t.Context(), testenv.Path("bin", "gitops", u.name), append(flags, "-script="+
		testenv.Path("config", "gitops", filepath.FromSlash(u.checks)))...)
	command.Stderr = os.Stderr
	return command
}

type found struct {
	Drifted []string
	Done    map[string]string
	Health  map[string]struct{ Status, Message string }
}

// round is a cluster, a Git repository, and the tool that syncs the cluster with the repository.
type round struct {
	*facadeenv.Env
	tool
	t         *testing.T
	git       *gitServer
	namespace string
	admin     string // path of the admin's kubeconfig
}

// TestEachGitOpsToolComputesTheHealthOfEveryState runs the tools' own code. Its results must match
// the results of TestEveryStateHasTheExpectedHealthInEachGitOpsTool, which evaluates the health checks without the
// tools.
func TestEachGitOpsToolComputesTheHealthOfEveryState(t *testing.T) {
	for _, u := range tools {
		t.Run(u.name, u.computesEveryState)
	}
}

func (u tool) computesEveryState(t *testing.T) {
	var names, wanted []string
	objects := &bytes.Buffer{}
	for _, s := range readStates(t) {
		object, err := json.Marshal(s.Object)
		if err != nil {
			t.Fatal(err)
		}
		argo, flux := s.health()
		want := u.words[string(flux)]
		if u.name == "argocd" && s.Turn != "" {
			want = argo
		}
		names, wanted = append(names, s.Name), append(wanted, want)
		objects.Write(append(object, '\n'))
	}
	command := u.command(t)
	command.Stdin = objects
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := json.NewDecoder(bytes.NewReader(output))
	for i, name := range names {
		var answer struct{ Status, Message string }
		if err := answers.Decode(&answer); err != nil {
			t.Fatal(err)
		}
		if answer.Status != wanted[i] {
			t.Errorf("%s: %s (%s), want %s", name, answer.Status, answer.Message, wanted[i])
		}
	}
	t.Logf("%d states", len(names))
}

func TestSessionsAreDeployedFromGit(t *testing.T) {
	for _, u := range tools {
		t.Run(u.name, u.deploysSessions)
	}
}

func (u tool) deploysSessions(t *testing.T) {
	r := newRound(t, u)
	r.git.commit(map[string]string{"settings.yaml": settingsManifest, "conversation.yaml": conversationManifest})

	if got := r.compare(); !slices.Contains(got.Drifted, "Conversation/c") || !slices.Contains(got.Drifted,
		"UserSettings/ada") {
		t.Errorf("before the first apply: %+v", got)
	}
	r.apply()
	r.expect("InProgress", "SettingsNotReady")
	r.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "llm"},
		StringData: map[string]string{"key": "k"}})
	r.expect("InProgress", "Scheduling")
	r.kubelet(corev1.ConditionFalse, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}})
	r.expect("InProgress", "PullingImage")
	r.kubelet(corev1.ConditionTrue, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	r.expect("Current", "Running")

	t.Log("a commit suspends and resumes it")
	r.git.commit(map[string]string{"conversation.yaml": conversationManifest + "  suspend: true\n"})
	if got := r.compare(); len(got.Drifted) != 1 || got.Drifted[0] != "Conversation/c" {
		t.Errorf("after the commit: %+v", got)
	}
	r.apply()
	r.expect("Current", "Suspended")
	r.git.commit(map[string]string{"conversation.yaml": conversationManifest})
	r.apply()
	r.expect("InProgress", "Scheduling")
	r.kubelet(corev1.ConditionTrue, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	r.expect("Current", "Running")

	t.Log("a manual change is reverted")
	conv := r.conversation()
	conv.Spec.IdleTimeout = &metav1.Duration{Duration: 2 * time.Hour}
	if err := r.Client.Update(t.Context(), conv); err != nil {
		t.Fatal(err)
	}
	r.until(func(got found) error {
		if !slices.Equal(got.Drifted, []string{"Conversation/c"}) {
			return fmt.Errorf("drifted: %v", got.Drifted)
		}
		return nil
	})
	r.apply()
	r.expect("Current", "Running")
	if got := r.conversation().Spec.IdleTimeout.Duration; got != time.Hour {
		t.Errorf("idleTimeout is %s", got)
	}

	r.checkHTTPWrites()

	t.Log("a failure is reported, and an object removed from Git is pruned")
	r.kubelet(corev1.ConditionFalse, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Message: `{"reason":"Failed","message":"no such branch"}`, FinishedAt: metav1.Now()}})
	r.expect("Failed", "Failed: no such branch")
	r.git.commit(map[string]string{"conversation.yaml": ""})
	r.apply()
	testenv.Await(t, func() error {
		err := r.Client.Get(t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "c"}, &v1alpha1.Conversation{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the Conversation still exists: %v", err)
	})
	if got := r.compare(); len(got.Drifted) != 0 || got.Health["UserSettings/ada"].Status != r.words["Current"] {
		t.Errorf("at the end: %+v", got)
	}
}

// checkHTTPWrites checks that a user can set a field over HTTP if Git does not set the field, but
// cannot change a field that Git sets.
func (r *round) checkHTTPWrites() {
	r.t.Log("a user sets over HTTP a field that Git does not set")
	key := &corev1.Secret{}
	testenv.Await(r.t, func() error {
		return r.Client.Get(r.t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "ada-session-key"}, key)
	})
	facade := filepath.Join(r.t.TempDir(), "facade")
	if err := facadeenv.Build(facade); err != nil {
		r.t.Fatal(err)
	}
	running, err := r.StartFacade(facade)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = running.Stop() }()
	post := func(body string) (int, string) {
		request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, running.URL+"/api/settings",
			strings.NewReader(body))
		if err != nil {
			r.t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("X-Session-API-Key", string(key.Data["key"]))
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			r.t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text)
	}
	testenv.Await(r.t, func() error {
		if code, text := post(`{"language": "de"}`); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	if code, text := post(`{"llm_model": "example/over-http"}`); code != http.StatusConflict || !strings.Contains(text,
		r.owner) {
		r.t.Errorf("setting a field of Git: %d %s", code, text)
	}
	if got := r.compare(); len(got.Drifted) != 0 {
		r.t.Errorf("the user's field counts as drift: %v", got.Drifted)
	}
	r.git.commit(map[string]string{"settings.yaml": settingsManifest + "  maxIterations: 50\n"})
	r.apply()
	settings := &v1alpha1.UserSettings{}
	if err := r.Client.Get(r.t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "ada"}, settings); err != nil {
		r.t.Fatal(err)
	}
	if spec := settings.Spec; *spec.Language != "de" || *spec.LLMModel != "example/from-git" || *spec.MaxIterations != 50 {
		r.t.Errorf("language %s, model %s, iterations %d", *spec.Language, *spec.LLMModel, *spec.MaxIterations)
	}
	if code, _ := post(`{"language": "fr"}`); code != http.StatusOK {
		r.t.Errorf("setting the user's own field: %d", code)
	}
}

func newRound(t *testing.T, u tool) *round {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	dir := t.TempDir()
	env, err := facadeenv.Start(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	// Argo CD uses foreground deletion: the garbage collector deletes the owned objects, and then
	// their owner. The test therefore starts the garbage collector.
	env.StartControllerManager(t, "garbage-collector-controller", "persistentvolumeclaim-protection-controller")
	r := &round{Env: env, tool: u, t: t, git: newGitServer(t), namespace: env.Namespace(t, nil), admin: filepath.Join(dir,
		"admin")}
	if err := os.WriteFile(r.admin, env.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *round) compare(flags ...string) (answer found) {
	r.t.Helper()
	output, err := r.command(r.t, append(flags, "-kubeconfig="+r.admin, "-namespace="+r.namespace, "-repository="+
		r.git.url)...).Output()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := json.Unmarshal(output, &answer); err != nil {
		r.t.Fatal(err)
	}
	return answer
}

func (r *round) apply() { r.t.Helper(); r.t.Logf("applied: %v", r.compare("-apply").Done) }

func (r *round) until(check func(found) error) {
	r.t.Helper()
	testenv.Await(r.t, func() error { return check(r.compare()) })
}

// expect waits until the session has this health and nothing differs from the repository.
func (r *round) expect(status, message string) {
	r.t.Helper()
	r.until(func(got found) error {
		// Flux reports no message, so the Conversation's status must contain the expected message.
		if state := r.conversation().Status; !strings.Contains(state.Reason+": "+state.Message, message) {
			return fmt.Errorf("%s: %s, want %s", state.Reason, state.Message, message)
		}
		if h := got.Health["Conversation/c"]; h.Status != r.words[status] || h.Message != "" && !strings.Contains(h.Message,
			message) {
			return fmt.Errorf("%s %s, want %s %s", h.Status, h.Message, r.words[status], message)
		}
		if len(got.Drifted) != 0 {
			return fmt.Errorf("drifted: %v", got.Drifted)
		}
		return nil
	})
	r.t.Logf("%s: %s", status, message)
}

func (r *round) create(o client.Object) {
	r.t.Helper()
	if err := r.Client.Create(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
}

func (r *round) conversation() *v1alpha1.Conversation {
	r.t.Helper()
	conv := &v1alpha1.Conversation{}
	if err := r.Client.Get(r.t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "c"}, conv); err != nil {
		r.t.Fatal(err)
	}
	return conv
}

// kubelet writes the pod's status as a kubelet would. The times in this status are a minute in the
// past, because the operator reports a step of a start only after a few seconds.
func (r *round) kubelet(ready corev1.ConditionStatus, state corev1.ContainerState) {
	r.t.Helper()
	then := metav1.NewTime(time.Now().Add(-time.Minute))
	testenv.Await(r.t, func() error {
		pod := &corev1.Pod{}
		if err := r.Client.Get(r.t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "c-session"}, pod); err != nil {
			return err
		}
		if pod.DeletionTimestamp != nil {
			return errors.New("the pod is being deleted")
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = nil
		for kind, status := range map[corev1.PodConditionType]corev1.ConditionStatus{
			corev1.PodScheduled: corev1.ConditionTrue, corev1.PodReadyToStartContainers: corev1.ConditionTrue,
			corev1.PodReady: ready} {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status,
				LastTransitionTime: then})
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "session", State: state}}
		if state.Terminated != nil {
			pod.Status.Phase = corev1.PodSucceeded
		}
		return r.Client.Status().Update(r.t.Context(), pod)
	})
}
