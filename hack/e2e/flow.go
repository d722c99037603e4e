package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// keyHeader carries a user's session key to the facade, and a session's to the session.
const keyHeader = "X-Session-API-Key"

// user is somebody who uses the facade.
type user struct {
	namespace string
	key       string
	secrets   []string // values that nobody else may see
}

// newUser makes a user as an admin does: empty settings, whose key is handed over.
func (t *t) newUser() *user {
	u := &user{namespace: t.newNamespace()}
	t.must(t.client.Create(t.ctx, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: "default"}}))
	t.eventually(func(ctx context.Context) error {
		settings := &v1alpha1.UserSettings{}
		if err := t.client.Get(ctx, client.ObjectKey{Namespace: u.namespace, Name: "default"}, settings); err != nil {
			return err
		}
		if settings.Status.SessionKeyHash == "" {
			return fmt.Errorf("no session key yet")
		}
		secret := &corev1.Secret{}
		if err := t.client.Get(ctx, client.ObjectKey{Namespace: u.namespace, Name: v1alpha1.SessionKeySecretName("default")}, secret); err != nil {
			return err
		}
		u.key = string(secret.Data[v1alpha1.SessionKeySecretKey])
		return nil
	})
	return u
}

// call sends a request to the facade, through its Service, and decodes the answer.
func (t *t) call(u *user, method, path string, body any) map[string]any {
	service := &corev1.Service{}
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: parleyNamespace, Name: "parley-facade"}, service))
	content, err := json.Marshal(body)
	t.must(err)
	var answer map[string]any
	attempt := 0
	t.eventually(func(ctx context.Context) error {
		if attempt++; attempt > 1 {
			time.Sleep(500 * time.Millisecond) // who knocks in vain too often has to wait
		}
		request, err := http.NewRequestWithContext(ctx, method, "http://"+service.Spec.ClusterIP+path, bytes.NewReader(content))
		if err != nil {
			return err
		}
		request.Header.Set(keyHeader, u.key)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		// A user who was just made is not known at once; nor is an agent.
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
		}
		return json.Unmarshal(text, &answer)
	})
	return answer
}

// startOverHTTP stores settings with a secret of every kind, and starts a session for a repository.
func (t *t) startOverHTTP(u *user, id string) (*v1alpha1.Conversation, repository) {
	t.addWriter()
	llm, token, custom, tool := secretValue(), secretValue(), secretValue(), secretValue()
	u.secrets = []string{llm, token, custom, tool}
	repo := t.gitServer(token)
	t.call(u, http.MethodPost, "/api/settings", map[string]any{
		"agent": writer, "llm_model": "example/model", "llm_api_key": llm,
		"sandbox_base_container_image": debianImage,
		"git_user_name":                "Ada", "git_user_email": "ada@example.com",
		"secrets_store": map[string]any{
			"provider_tokens": map[string]any{"github": map[string]any{"token": token, "host": repo.host}},
			"custom_secrets":  map[string]any{"CUSTOM": map[string]any{"secret": custom}},
		},
		"mcp_config": map[string]any{"stdio_servers": []any{
			map[string]any{"name": "tools", "command": "toolserver", "env": map[string]any{"TOOL_KEY": tool}},
		}},
	})
	answer := t.call(u, http.MethodPost, "/api/conversations", map[string]any{
		"conversation_id": id, "repository": repo.url, "git_provider": "github", "selected_branch": repo.branch,
		"initial_user_msg": "Write this down.",
	})
	if answer["conversation_id"] != id || answer["conversation_status"] != string(v1alpha1.StateStarting) {
		t.errorf("the conversation was answered with %v", answer)
	}
	return &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: id}}, repo
}

func conversationOverHTTP(t *t) {
	u := t.newUser()
	c, repo := t.startOverHTTP(u, "flow")
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if got := t.call(u, http.MethodGet, "/api/conversations/flow", nil); got["status"] != string(v1alpha1.StateRunning) {
		t.errorf("the facade says %v", got)
	}
	if got := t.shell(c, "cd widgets && cat branch.txt && git rev-parse HEAD"); got != "feature\n"+repo.commit {
		t.errorf("the clone has %q, and not the branch feature at %s", got, repo.commit)
	}
	if got := t.shell(c, "cat widgets/agent-was-here"); !strings.Contains(got, "Write this down.") {
		t.errorf("the agent wrote %q", got)
	}
	status := t.status(c)
	if status.Workspace.Branch != repo.branch || status.Workspace.Commit != repo.commit || status.Agent.State != session.AgentRunning {
		t.errorf("the session says %+v", status)
	}
	t.callTool(c)
	t.shell(c, "touch widgets/finish")
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
}

// sessionURL is reached from the node, which a pod must let in for its probes.
func (t *t) sessionURL(c *v1alpha1.Conversation, path string) string {
	return fmt.Sprintf("http://%s:%d%s", t.podOf(c).Status.PodIP, session.Port, path)
}

// withKey adds the session's key to each request.
type withKey string

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(keyHeader, string(k))
	return http.DefaultTransport.RoundTrip(r)
}

func (t *t) status(c *v1alpha1.Conversation) session.Status {
	var status session.Status
	for key, want := range map[string]int{"wrong": http.StatusUnauthorized, t.sessionKey(c): http.StatusOK} {
		response, err := (&http.Client{Transport: withKey(key)}).Get(t.sessionURL(c, session.StatusPath))
		t.must(err)
		if response.StatusCode != want {
			t.errorf("%s answers %s, want %d", session.StatusPath, response.Status, want)
		}
		if want == http.StatusOK {
			t.must(json.NewDecoder(response.Body).Decode(&status))
		}
		_ = response.Body.Close()
	}
	return status
}

// callTool uses the session's tools as an MCP client does.
func (t *t) callTool(c *v1alpha1.Conversation) {
	tools, err := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil).Connect(t.ctx, &mcp.StreamableClientTransport{
		Endpoint: t.sessionURL(c, session.ToolsPath), HTTPClient: &http.Client{Transport: withKey(t.sessionKey(c))},
	}, nil)
	t.must(err)
	defer tools.Close()
	list, err := tools.ListTools(t.ctx, nil)
	t.must(err)
	if len(list.Tools) != 1 || list.Tools[0].Name != "tools_echo" {
		t.fatalf("the tools are %v", list.Tools)
	}
	result, err := tools.CallTool(t.ctx, &mcp.CallToolParams{Name: "tools_echo", Arguments: map[string]any{"text": "hello"}})
	t.must(err)
	content, err := json.Marshal(result.StructuredContent)
	t.must(err)
	if result.IsError || string(content) != `{"hasKey":true,"text":"hello"}` {
		t.errorf("the tool answered %s", content)
	}
}
