package main

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
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/test/sessionclient"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// writer is an agent that writes its message to a file. It ends when a file "finish" exists.
const writer = `command: [/bin/sh, -c, "cat > agent-was-here; while [ ! -e finish ]; do sleep 0.1; done"]`

func TestASessionStartedOverHTTPRunsItsAgentInACloneAndCompletes(t *testing.T) {
	i := newInstallation(t)
	run := i.start(t)
	c := i.client(t)
	i.addAgent(t, "Writer", writer)
	repository, commit := makeRepository(t)
	i.post(t, "/api/settings", map[string]any{
		"agent": "Writer", "llm_model": "example/model", "llm_api_key": "not-a-real-key",
		"mcp_config": map[string]any{"stdio_servers": []any{
			map[string]any{"name": "tools", "command": filepath.Join(i.bin, "toolserver")},
		}},
	})
	states := watchStates(t, c, "flow")
	i.post(t, "/api/conversations", map[string]any{
		"conversation_id": "flow", "repository": "file://" + repository, "selected_branch": "feature",
		"initial_user_msg": "Write this down.",
	})
	awaitState(t, states, v1alpha1.StateStarting)
	awaitState(t, states, v1alpha1.StateRunning)

	pod := &corev1.Pod{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: v1alpha1.SessionName("flow")},
		pod); err != nil {
		t.Fatal(err)
	}
	clone := i.clone("flow", repository)
	if head := git(t, clone, "rev-parse", "HEAD"); head != commit {
		t.Errorf("the clone is at %s, want %s", head, commit)
	}
	callTool(t, c, pod)
	testenv.Await(t, func() error {
		text, err := os.ReadFile(filepath.Join(clone, "agent-was-here"))
		if err == nil && !strings.Contains(string(text), "Write this down.") {
			err = fmt.Errorf("the agent wrote %q", text)
		}
		return err
	})
	if got := i.kubectl(t, "exec", pod.Name, "-c", "session", "--", "sh", "-c",
		"pwd; env | grep -c PARLEY_SECRET || true"); got != filepath.Dir(clone)+"\n0\n" {
		t.Errorf("a command in the pod says %q", got)
	}
	if got := i.kubectl(t, "logs", pod.Name, "-c", "session"); !strings.Contains(got, "msg=") {
		t.Errorf("the log is %q", got)
	}
	if err := os.WriteFile(filepath.Join(clone, "finish"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if end := awaitState(t, states, v1alpha1.StateStopped); end.Reason != v1alpha1.ReasonCompleted {
		t.Errorf("stopped for the reason %s: %s", end.Reason, end.Message)
	}

	i.keepsFiles(t, c, repository)
	run.signal(t, "local", syscall.SIGINT)
	run.awaitEnd(t)
}

func (i installation) clone(session, repository string) string {
	return filepath.Join(i.state, "volumes", "default", session+"-workspace",
		filepath.Base(strings.TrimSuffix(repository, ".git")))
}

func (i installation) keepsFiles(t *testing.T, c client.WithWatch, repository string) {
	t.Helper()
	states := watchStates(t, c, "kept")
	i.post(t, "/api/conversations", map[string]any{"conversation_id": "kept", "repository": "file://" + repository})
	awaitState(t, states, v1alpha1.StateRunning)
	file := filepath.Join(i.clone("kept", repository), "edited")
	if err := os.WriteFile(file, []byte("work"), 0o600); err != nil {
		t.Fatal(err)
	}
	i.post(t, "/api/conversations/kept/stop", nil)
	awaitState(t, states, v1alpha1.StateStopped)
	i.post(t, "/api/conversations/kept/start", map[string]any{})
	testenv.Await(t, func() error {
		kept := &v1alpha1.Conversation{}
		err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kept"}, kept)
		if err == nil && kept.Status.State != v1alpha1.StateRunning {
			err = fmt.Errorf("the session is %s", kept.Status.State)
		}
		return err
	})
	if text, err := os.ReadFile(file); err != nil || string(text) != "work" {
		t.Errorf("after a stop and a start the file has %q, %v", text, err)
	}
}

func (i *installation) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(i.state, "kubeconfig"))
	output, err := command.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return string(output)
}

func (i installation) addAgent(t *testing.T, name, entry string) {
	t.Helper()
	c, catalogue := i.client(t), &corev1.ConfigMap{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "parley-system", Name: v1alpha1.AgentCatalogueName},
		catalogue); err != nil {
		t.Fatal(err)
	}
	catalogue.Data[name] = entry
	if err := c.Update(t.Context(), catalogue); err != nil {
		t.Fatal(err)
	}
}

// post sends a request to the facade. It retries, because the facade may not know a new agent yet.
func (i installation) post(t *testing.T, path string, body any) {
	t.Helper()
	content, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = cluster.Retry(ctx, 500*time.Millisecond, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d%s", i.port, path),
			bytes.NewReader(content))
		if err != nil {
			return err
		}
		request.Header.Set("X-Session-API-Key", i.sessionKey(t))
		request.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", answer.Status, text)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("POST %s: %v", path, err)
	}
}

func watchStates(t *testing.T, c client.WithWatch, name string) <-chan v1alpha1.ConversationStatus {
	t.Helper()
	watch, err := c.Watch(t.Context(), &v1alpha1.ConversationList{}, client.InNamespace("default"),
		client.MatchingFields{"metadata.name": name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Stop)
	states := make(chan v1alpha1.ConversationStatus, 100)
	go func() {
		for event := range watch.ResultChan() {
			if conversation, ok := event.Object.(*v1alpha1.Conversation); ok {
				states <- conversation.Status
			}
		}
	}()
	return states
}

// awaitState waits for a status with this state. It fails if the session skips this state.
func awaitState(t *testing.T, states <-chan v1alpha1.ConversationStatus,
	want v1alpha1.ConversationState) v1alpha1.ConversationStatus {
	t.Helper()
	order := []v1alpha1.ConversationState{"", v1alpha1.StateStarting, v1alpha1.StateRunning, v1alpha1.StateStopped}
	deadline := time.After(time.Minute)
	for {
		select {
		case got := <-states:
			if got.State == want {
				return got
			}
			if slices.Index(order, got.State) > slices.Index(order, want) {
				t.Fatalf("is %s (%s: %s) without having been %s", got.State, got.Reason, got.Message, want)
			}
		case <-deadline:
			t.Fatalf("does not become %s", want)
		}
	}
}

func callTool(t *testing.T, c client.Client, pod *corev1.Pod) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	tools, err := sessionclient.Tools(t.Context(), fmt.Sprintf("http://%s:%d%s", pod.Status.PodIP, session.Port,
		session.ToolsPath),
		sessionclient.WithHeader(sessionclient.KeyHeader, string(secret.Data[session.KeyFile])))
	if err != nil {
		t.Fatal(err)
	}
	defer tools.Close()
	list, err := tools.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "tools_echo" {
		t.Fatalf("the tools are %+v, %v", list, err)
	}
	result, err := tools.CallTool(t.Context(), &mcp.CallToolParams{Name: "tools_echo",
		Arguments: map[string]any{"text": "hello"}})
	if err != nil || result.IsError {
		t.Fatalf("the tool answered %+v, %v", result, err)
	}
}

func makeRepository(t *testing.T) (path, commit string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "widgets")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	git(t, path, "init", "--quiet", "--initial-branch=main")
	git(t, path, "commit", "--quiet", "--allow-empty", "--message=Begin")
	git(t, path, "checkout", "--quiet", "-b", "feature")
	git(t, path, "commit", "--quiet", "--allow-empty", "--message=Add a feature")
	commit = git(t, path, "rev-parse", "HEAD")
	git(t, path, "checkout", "--quiet", "main")
	return path, commit
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=test", "-c",
		"user.email=test@example.com"}, args...)...)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v: %s", args[0], err, output)
	}
	return strings.TrimSpace(string(output))
}
