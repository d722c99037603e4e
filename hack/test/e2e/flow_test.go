package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/sessionclient"
)

type user struct {
	namespace string
	key       string
	secrets   []string // values that must stay hidden from others
}

// newUser creates a user as an admin does: with empty UserSettings. The manager generates the
// session key.
func (t *t) newUser() *user {
	u := &user{namespace: t.newNamespace()}
	t.settings(u.namespace, nil)
	t.retry(func(ctx context.Context) (err error) {
		u.key, err = parley.SessionKey(ctx, t.client, client.ObjectKey{Namespace: u.namespace, Name: "default"})
		return err
	})
	return u
}

func (t *t) facadeURL() string {
	service := &corev1.Service{}
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: parleyNamespace, Name: "parley-facade"}, service))
	return "http://" + service.Spec.ClusterIP
}

// call sends a request to the facade and decodes the response. It retries after the statuses in
// retryOn. Any other status than 200 fails the check.
func (t *t) call(u *user, method, path string, body, into any, retryOn ...int) {
	url := t.facadeURL() + path
	t.retry(func(ctx context.Context) error {
		err := parley.Send(ctx, http.DefaultClient, method, url, u.key, body, into)
		if refusal, is := errors.AsType[*parley.Refusal](err); is && slices.Contains(retryOn, refusal.Code) {
			return err
		}
		t.must(err)
		return nil
	})
}

// post sends a POST request to the facade. It retries after status 401, because the facade may not
// know a new user yet.
func (t *t) post(u *user, path string, body, into any) {
	t.call(u, http.MethodPost, path, body, into, http.StatusUnauthorized)
}

// converse stores settings over HTTP, starts a conversation, and waits until it runs.
func (t *t) converse(u *user, settings rest.Settings, id, message string) *v1alpha1.Conversation {
	t.post(u, "/api/settings", settings, &rest.Stored{})
	request := rest.ConversationRequest{ConversationID: &id}
	if message != "" {
		request.InitialUserMsg = &message
	}
	t.post(u, "/api/conversations", request, &rest.ConversationResponse{})
	c := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: id}}
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	return c
}

// startOverHTTP stores settings with secrets of every kind. It then starts a conversation with a
// repository.
func (t *t) startOverHTTP(u *user, id string) (*v1alpha1.Conversation, repository) {
	t.addWriter()
	llm, token, custom, tool := secretValue(), secretValue(), secretValue(), secretValue()
	u.secrets = []string{llm, token, custom, tool}
	repo := t.gitServer(token)
	t.post(u, "/api/settings", rest.Settings{
		Agent: rest.Set(writer), LLMModel: rest.Set("example/model"), LLMAPIKey: rest.NewKey(llm),
		GitUserName: rest.Set("Ada"), GitUserEmail: rest.Set("ada@example.com"),
		SecretsStore: rest.Set(rest.UserSecrets{
			ProviderTokens: map[string]*rest.ProviderToken{"github": {Token: rest.NewKey(token), Host: rest.Set(repo.host)}},
			CustomSecrets:  map[string]*rest.CustomSecret{"CUSTOM": {Secret: rest.NewKey(custom)}},
		}),
		MCPConfig: rest.Set(rest.MCPConfig{StdioServers: []rest.MCPStdioServer{
			{Name: "tools", Command: "toolserver", Env: map[string]rest.Key{"TOOL_KEY": rest.NewKey(tool)}},
		}}),
	}, &rest.Stored{})
	var created rest.ConversationResponse
	t.post(u, "/api/conversations", rest.ConversationRequest{
		ConversationID: &id, Repository: &repo.url, GitProvider: ptr.To("github"), SelectedBranch: &repo.branch,
		InitialUserMsg: ptr.To("Write this down."),
	}, &created)
	if created.ConversationID != id || created.ConversationStatus != string(v1alpha1.StateStarting) {
		t.Errorf("the facade answered the creation with %+v", created)
	}
	return &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: id}}, repo
}

func conversationOverHTTP(t *t) {
	u := t.newUser()
	c, repo := t.startOverHTTP(u, "flow")
	t.await(c, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	// The facade may see the new state a moment later than this check, because it has its own
	// watch.
	t.retry(func(context.Context) error {
		var shown rest.Conversation
		t.call(u, http.MethodGet, "/api/conversations/flow", nil, &shown, http.StatusUnauthorized)
		if shown.Status != string(v1alpha1.StateRunning) {
			return fmt.Errorf("the facade says %+v", shown)
		}
		return nil
	})
	if got := t.shell(c, "cd widgets && cat branch.txt && git rev-parse HEAD"); got != "feature\n"+repo.commit {
		t.Errorf("the clone has %q, want the branch feature at %s", got, repo.commit)
	}
	if got := t.shell(c, "cat widgets/agent-was-here"); !strings.Contains(got, "Write this down.") {
		t.Errorf("the agent wrote %q", got)
	}
	status := t.status(c)
	if status.Workspace.Branch != repo.branch || status.Workspace.Commit != repo.commit ||
		status.Agent.State != session.AgentRunning {
		t.Errorf("the session says %+v", status)
	}
	t.callTool(c)
	t.shell(c, "touch widgets/finish")
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
}

// sessionURL returns a URL of the session's pod. The check can connect to it, because network
// policies never block connections from the pod's own node.
func (t *t) sessionURL(c *v1alpha1.Conversation, path string) string {
	return fmt.Sprintf("http://%s:%d%s", t.podOf(c).Status.PodIP, session.Port, path)
}

func (t *t) status(c *v1alpha1.Conversation) session.Status {
	var status session.Status
	for key, want := range map[string]int{"wrong": http.StatusUnauthorized, t.sessionKey(c): http.StatusOK} {
		response, err := sessionclient.WithHeader(sessionclient.KeyHeader, key).Get(t.sessionURL(c, session.StatusPath))
		t.must(err)
		if response.StatusCode != want {
			t.Errorf("%s answers %s, want %d", session.StatusPath, response.Status, want)
		}
		if want == http.StatusOK {
			t.must(json.NewDecoder(response.Body).Decode(&status))
		}
		_ = response.Body.Close()
	}
	return status
}

func (t *t) callTool(c *v1alpha1.Conversation) {
	tools, err := sessionclient.Tools(t.ctx, t.sessionURL(c, session.ToolsPath),
		sessionclient.WithHeader(sessionclient.KeyHeader, t.sessionKey(c)))
	t.must(err)
	defer tools.Close()
	list, err := tools.ListTools(t.ctx, nil)
	t.must(err)
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	// The first three tools exist because the user has a token for the Git host.
	want := []string{"comment", "create_pull_request", "read_git_host", "tools_echo"}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Fatalf("the tools are %v", names)
	}
	result, err := tools.CallTool(t.ctx, &mcp.CallToolParams{Name: "tools_echo",
		Arguments: map[string]any{"text": "hello"}})
	t.must(err)
	content, err := json.Marshal(result.StructuredContent)
	t.must(err)
	if result.IsError || string(content) != `{"hasKey":true,"text":"hello"}` {
		t.Errorf("the tool answered %s", content)
	}
}
