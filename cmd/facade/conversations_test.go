package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// everyConversationField is a request with all fields that one request may combine. It has no
// agent, because there is no agent catalogue.
const everyConversationField = `{
	"repository": "example/widgets", "git_provider": "github", "selected_branch": "main",
	"initial_user_msg": "Mend the parser.\nIt is broken.", "image_urls": ["https://example.com/a.png",
		"data:image/png;base64,AAAA"],
	"suggested_task": {"git_provider": "github", "task_type": "FAILING_CHECKS", "repo": "example/widgets",
		"issue_number": "7", "title": "Speed the parser up"},
	"conversation_instructions": "Keep to the style.", "llm_model": "ollama/large",
	"mcp_config": {"sse_servers": [{"url": "https://tools.example.com/sse", "api_key": "conv-key-1"}],
		"stdio_servers": [{"name": "files", "command": "mcp-files", "args": "--root /w", "env": {"TOKEN": "conv-key-2",
			"PLAIN": ""}}]},
	"conversation_id": "every-field"}`

func TestEveryFieldOfAConversationIsStored(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/conversations", everyConversationField).wants(t, 200).
		says(t, `{"status": "ok", "conversation_id": "every-field", "message": null, "conversation_status": "STARTING"}`)
	c := ada.conversation(t, "every-field")
	spec := c.Spec
	if spec.UserSettingsName != "ada" || *spec.Repository != "example/widgets" || *spec.GitProvider != v1alpha1.GitHub ||
		*spec.SelectedBranch != "main" ||
		*spec.InitialUserMsg != "Mend the parser.\nIt is broken." || len(spec.Images) != 2 ||
		*spec.ConversationInstructions != "Keep to the style." || *spec.LLMModel != "ollama/large" ||
		*spec.SuggestedTask != (v1alpha1.SuggestedTask{GitProvider: v1alpha1.GitHub, TaskType: v1alpha1.FailingChecks,
			Repo: "example/widgets", IssueNumber: 7, Title: "Speed the parser up"}) {
		t.Errorf("stored %s", jsonOf(t, spec))
	}
	if c.Annotations[v1alpha1.AnnotationIncomplete] != "" || spec.TTLAfterStopped != nil {
		t.Errorf("it is marked as incomplete: %v, %v", c.Annotations, spec.TTLAfterStopped)
	}
	for secret, value := range map[string]string{
		spec.MCPConfig.SSEServers[0].APIKeyRef.Name:          "conv-key-1",
		spec.MCPConfig.StdioServers[0].Env[1].SecretRef.Name: "conv-key-2",
	} {
		if got := ada.secret(t, secret); got != value {
			t.Errorf("%s holds %q, want %q", secret, got, value)
		}
	}
	ada.get(t, "/api/conversations/every-field").wants(t, 200).lacks(t, "conv-key-1", "conv-key-2")

	t.Run("the operator finds its keys", func(t *testing.T) {
		await(t, func() error {
			if pod := (&corev1.Pod{}); suite.Client.Get(t.Context(), client.ObjectKey{Namespace: c.Namespace,
				Name: v1alpha1.SessionName(c.Name)}, pod) != nil {
				c := ada.conversation(t, "every-field")
				return fmt.Errorf("no pod: %s %s", c.Status.Reason, c.Status.Message)
			}
			return nil
		})
	})
	t.Run("its keys are deleted with it", func(t *testing.T) {
		secret := &corev1.Secret{}
		key := client.ObjectKey{Namespace: ada.namespace, Name: spec.MCPConfig.SSEServers[0].APIKeyRef.Name}
		if err := suite.Client.Get(t.Context(), key, secret); err != nil || !metav1.IsControlledBy(secret, c) {
			t.Errorf("owners %v (%v)", secret.OwnerReferences, err)
		}
	})
}

func TestAReplayIsStoredInAConfigMap(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/conversations", `{"conversation_id": "again", "replay_json": "[{\"id\": 1}]"}`).wants(t, 200)
	c := ada.conversation(t, "again")
	replay := &corev1.ConfigMap{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: c.Spec.ReplayJSONRef.Name},
		replay); err != nil {
		t.Fatal(err)
	}
	if replay.Data[c.Spec.ReplayJSONRef.Key] != `[{"id": 1}]` || !metav1.IsControlledBy(replay, c) ||
		!ptr.Deref(replay.Immutable, false) {
		t.Errorf("the replay is %+v", replay)
	}
	ada.post(t, "/api/conversations", `{"conversation_id": "again", "replay_json": "[{\"id\": 1}]"}`).wants(t, 200)
	ada.post(t, "/api/conversations", `{"conversation_id": "again", "replay_json": "[{\"id\": 2}]"}`).wants(t, 409)
}

func TestAnIDIsGeneratedIfMissing(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	id := ada.post(t, "/api/conversations", `{}`).wants(t, 200).field(t, "conversation_id").(string)
	if !regexp.MustCompile(`^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`).MatchString(id) {
		t.Errorf("%s is not a version 4 UUID", id)
	}
}

func TestAnExistingConversationIsJoined(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	bob := newPersonIn(t, ada.namespace, "bob")
	bob.post(t, "/api/settings", `{"llm_model": "ollama/small"}`).wants(t, 200)
	body := func(change string) string {
		fields := map[string]any{"conversation_id": "talk", "initial_user_msg": "hello",
			"mcp_config": map[string]any{"sse_servers": []any{map[string]any{"url": "https://a.example.com", "api_key": "k"}}}}
		_ = json.Unmarshal([]byte(change), &fields)
		return jsonOf(t, fields)
	}
	ada.post(t, "/api/conversations", body(`{}`)).wants(t, 200)
	const clash = `{"detail": "A different conversation with this ID exists: choose another ID. If the ` +
		`conversation is yours, send only the ID to join it"}`
	t.Run("the same request joins", func(t *testing.T) {
		ada.post(t, "/api/conversations", body(`{}`)).wants(t, 200).says(t,
			`{"status": "ok", "conversation_id": "talk", "message": null, "conversation_status": "STARTING"}`)
	})
	t.Run("a request with only the ID joins", func(t *testing.T) {
		ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	})
	t.Run("the answer has the current status", func(t *testing.T) {
		ada.post(t, "/api/conversations/talk/stop", "").wants(t, 200)
		await(t, func() error {
			if status := ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200).field(t,
				"conversation_status"); status != "STOPPED" {
				return fmt.Errorf("it is %s", status)
			}
			return nil
		})
	})
	t.Run("a different request is refused", func(t *testing.T) {
		for _, change := range []string{
			`{"initial_user_msg": "other"}`, `{"initial_user_msg": null}`, `{"repository": "o/r"}`,
			`{"image_urls": ["data:image/png;base64,AA=="]}`, `{"initial_user_msg": null, "replay_json": "[]"}`,
			`{"mcp_config": null}`, `{"mcp_config": {"sse_servers": ["https://a.example.com"]}}`,
		} {
			ada.post(t, "/api/conversations", body(change)).wants(t, 409).says(t, clash)
		}
	})
	// Another user gets the same text as the owner, so that the response does not reveal who owns
	// the conversation.
	t.Run("another user is refused", func(t *testing.T) {
		bob.post(t, "/api/conversations", body(`{}`)).wants(t, 409).says(t, clash)
		bob.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 409).says(t, clash)
	})
	t.Run("joining does not replace a key", func(t *testing.T) {
		other := body(`{"mcp_config": {"sse_servers": [{"url": "https://a.example.com", "api_key": "another"}]}}`)
		ada.post(t, "/api/conversations", other).wants(t, 200)
		if got := ada.secret(t, ada.conversation(t, "talk").Spec.MCPConfig.SSEServers[0].APIKeyRef.Name); got != "k" {
			t.Errorf("the key became %q", got)
		}
	})
}

// A request joins an existing conversation with the same ID. Fields that no request can set, such
// as the class, need not match.
func TestAConversationCreatedByKubectlCanBeJoined(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	create(t, &v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "theirs"},
		Spec: v1alpha1.ConversationSpec{
			UserSettingsName: ada.name, InitialUserMsg: ptr.To("hello"),
			SessionClassName: ptr.To("large"), OneShot: true, Workspace: &v1alpha1.Workspace{Size: "1Gi"},
			IdleTimeout: &metav1.Duration{Duration: time.Hour},
		},
	})
	ada.post(t, "/api/conversations", `{"conversation_id": "theirs", "initial_user_msg": "hello"}`).wants(t, 200)
	ada.post(t, "/api/conversations", `{"conversation_id": "theirs", "initial_user_msg": "other"}`).wants(t, 409)
}

func TestAOneShotRequestJoinsOnlyAOneShotConversation(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	const once, open = `{"conversation_id": "once", "initial_user_msg": "hello", "one_shot": true}`,
		`{"conversation_id": "open", "initial_user_msg": "hello"}`
	for _, body := range []string{once, once, open} { // the second request is a retry
		ada.post(t, "/api/conversations", body).wants(t, 200)
	}
	for name, want := range map[string]bool{"once": true, "open": false} {
		if got := ada.conversation(t, name).Spec.OneShot; got != want {
			t.Errorf("oneShot of %s is %t", name, got)
		}
	}
	ada.post(t, "/api/conversations", strings.Replace(once, "once", "open", 1)).wants(t, 409)
	ada.post(t, "/api/conversations", `{"one_shot": true}`).wants(t, 422)
	ada.post(t, "/api/conversations", `{"one_shot": "often", "initial_user_msg": "hello"}`).wants(t, 422).
		complains(t, "body.one_shot: bool_parsing")
}

func TestReadingAFileRequiresItsName(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	for _, query := range []string{"", "?file=", "?path=README.md"} {
		ada.get(t, "/api/conversations/talk/select-file"+query).wants(t, 422).complains(t, "query.file: missing")
	}
}

func TestAnIdempotencyKeyCreatesOnlyOneConversation(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	bob := newPersonIn(t, ada.namespace, "bob")
	bob.post(t, "/api/settings", `{"llm_model": "ollama/small"}`).wants(t, 200)
	id := func(p *person, key, body string) any {
		return p.post(t, "/api/conversations", body, "Idempotency-Key", key).wants(t, 200).field(t, "conversation_id")
	}
	first := id(ada, "k1", `{"initial_user_msg": "hello"}`)
	if again := id(ada, "k1", `{"initial_user_msg": "hello"}`); again != first {
		t.Errorf("the second is %s, the first %s", again, first)
	}
	if other := id(ada, "k2", `{"initial_user_msg": "hello"}`); other == first {
		t.Error("another key gives the same conversation")
	}
	if other := id(bob, "k1", `{"initial_user_msg": "hello"}`); other == first {
		t.Error("another user's key gives the same conversation")
	}
	ada.post(t, "/api/conversations", `{"initial_user_msg": "other"}`, "Idempotency-Key", "k1").wants(t, 409)
	ada.post(t, "/api/conversations", `{}`, "Idempotency-Key", strings.Repeat("k", 256)).wants(t, 422).complains(t,
		"header.idempotency-key: string_too_long")
}

func TestAUserSeesOnlyTheirOwnConversations(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	bob := newPersonIn(t, ada.namespace, "bob")
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	for _, path := range []string{"/api/conversations/talk", "/api/conversations/absent",
		"/api/conversations/Not_A_Label"} {
		bob.get(t, path).wants(t, 200).says(t, `null`)
		bob.do(t, "DELETE", path, "").wants(t, 200).says(t, `false`)
		bob.do(t, "PATCH", path, `{"title": "mine"}`).wants(t, 404).says(t,
			`{"status": "error", "message": "Conversation not found", "msg_id": "CONVERSATION$NOT_FOUND"}`)
		bob.post(t, path+"/start", "").wants(t, 404).says(t, `{"detail": "Conversation not found"}`)
		bob.post(t, path+"/stop", "").wants(t, 404)
		bob.post(t, path+"/message", `{"message": "hello"}`).wants(t, 404)
		bob.post(t, path+"/events", `{}`).wants(t, 404)
		for _, part := range []string{"events", "events/stream", "trajectory", "list-files", "select-file", "zip-directory",
			"git/changes", "git/diff", "config", "vscode-url", "web-hosts", "microagents"} {
			bob.get(t, path+"/"+part).wants(t, 404).says(t, `{"detail": "Conversation not found"}`)
		}
	}
	bob.get(t, "/api/conversations").wants(t, 200).says(t, `{"results": [], "next_page_id": null}`)
	ada.get(t, "/api/conversations/talk").wants(t, 200)
}

// The facade returns a request body with which a client can create a copy of the conversation. The
// body contains the whole first message, but no keys.
func TestTheFacadeReturnsABodyThatCreatesACopyOfAConversation(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/settings", `{"llm_model": "ollama/small"}`).wants(t, 200)
	ada.post(t, "/api/conversations", `{"conversation_id": "talk", "repository": "o/wrong", "selected_branch": "main",
		"initial_user_msg": "Line one\nLine two", "llm_model": "ollama/large", "agent": "coder",
		"mcp_config": {"sse_servers": [{"url": "https://tools.example.com", "api_key": "never-shown"}],
			"shttp_servers": [], "stdio_servers": []}}`).wants(t, 200)
	ada.get(t, "/api/conversations/talk/request").wants(t, 200).lacks(t, "never-shown").says(t, `{"repository": "o/wrong",
		"git_provider": null, "selected_branch": "main", "initial_user_msg": "Line one\nLine two", "image_urls": [],
		"suggested_task": null, "create_microagent": null, "conversation_instructions": null,
		"agent": "coder", "llm_model": "ollama/large", "not_copied": ["MCP servers"]}`)
	bob := newPersonIn(t, ada.namespace, "bob")
	bob.get(t, "/api/conversations/talk/request").wants(t, 404)
	ada.get(t, "/api/conversations/none/request").wants(t, 404)
}

func TestAConversationIsStoppedStartedAndDeleted(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	answers := func(state, message string) string {
		return `{"status": "ok", "conversation_id": "talk", "message": ` + message + `, "conversation_status": "` + state +
			`"}`
	}
	is := func(state, reason string) {
		t.Helper()
		await(t, func() error {
			if c := ada.conversation(t, "talk"); string(c.Status.State) != state || reason != "" && c.Status.Reason != reason {
				return fmt.Errorf("it is %s %s", c.Status.State, c.Status.Reason)
			}
			return nil
		})
	}
	is("STARTING", "")
	ada.post(t, "/api/conversations/talk/start", "").wants(t, 200).says(t, answers("STARTING", "null"))
	ada.post(t, "/api/conversations/talk/stop", `{"ignored": 1}`).wants(t, 200).says(t, answers("STARTING",
		`"Conversation stopped successfully"`))
	is("STOPPED", v1alpha1.ReasonSuspended)
	ada.post(t, "/api/conversations/talk/stop", "").wants(t, 200).says(t, answers("STOPPED",
		`"Conversation was not running"`))
	ada.post(t, "/api/conversations/talk/events", `{"action": "change_agent_state", "args": {"agent_state": `+
		`"paused"}}`).wants(t, 409).says(t, `{"detail": "The conversation is not running: start it first"}`)
	ada.post(t, "/api/conversations/talk/start", "").wants(t, 200).says(t, answers("STARTING", "null"))
	if body := ada.get(t, "/api/conversations/talk").wants(t, 200).body; !strings.Contains(body, `"status":"STARTING"`) {
		t.Errorf("right after the start the answer is %s", body)
	}
	is("STARTING", "")
	if ada.conversation(t, "talk").Spec.RestartAt != nil {
		t.Error("a stopped conversation has a restartAt")
	}

	t.Run("an ended conversation starts again", func(t *testing.T) {
		pod := &corev1.Pod{}
		await(t, func() error {
			return suite.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: v1alpha1.SessionName("talk")},
				pod)
		})
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "session",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		if err := suite.Client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		await(t, func() error {
			if c := ada.conversation(t, "talk"); c.Status.State != v1alpha1.StateStopped {
				return fmt.Errorf("it is %s", c.Status.State)
			}
			return nil
		})
		// The request takes effect immediately, although spec.restartAt plans a later restart.
		later := fmt.Sprintf(`{"spec": {"restartAt": %q}}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		if err := suite.Client.Patch(t.Context(), ada.conversation(t, "talk"), client.RawPatch(types.MergePatchType,
			[]byte(later))); err != nil {
			t.Fatal(err)
		}
		ada.post(t, "/api/conversations/talk/start", "").wants(t, 200).says(t, answers("STARTING", "null"))
		is("STARTING", "")
	})
	t.Run("a deleted conversation is gone", func(t *testing.T) {
		ada.do(t, "DELETE", "/api/conversations/talk", "").wants(t, 200).says(t, `true`)
		ada.do(t, "DELETE", "/api/conversations/talk", "").wants(t, 200).says(t, `false`)
		ada.get(t, "/api/conversations/talk").wants(t, 200).says(t, `null`)
		ada.get(t, "/api/conversations").wants(t, 200).says(t, `{"results": [], "next_page_id": null}`)
	})
}

func TestConversationsAreListedNewestFirstInPages(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	for i := range 7 {
		body := fmt.Sprintf(`{"conversation_id": "c%d", "repository": "o/r%d"}`, i, i%2)
		if i == 3 {
			body = `{"conversation_id": "c3", "suggested_task": {"git_provider": "gitlab", "task_type": "OPEN_ISSUE", "repo": ` +
				`"o/r1", "issue_number": 3, "title": "A task"}}`
		}
		if i == 5 {
			body = `{"conversation_id": "c5", "create_microagent": {"repo": "o/r1", "git_provider": "github"}}`
		}
		ada.post(t, "/api/conversations", body).wants(t, 200)
	}
	pages := func(query string) (all string) {
		t.Helper()
		next := ""
		for {
			var page rest.ConversationPage
			reply := ada.get(t, "/api/conversations?"+query+next).wants(t, 200)
			if err := json.Unmarshal([]byte(reply.body), &page); err != nil {
				t.Fatal(err)
			}
			for _, c := range page.Results {
				all += c.ConversationID + " "
			}
			if page.NextPageID == nil {
				return strings.TrimSpace(all)
			}
			all += "| "
			next = "&page_id=" + *page.NextPageID
		}
	}
	for query, want := range map[string]string{
		"":                                    "c6 c5 c4 c3 c2 c1 c0",
		"limit=3":                             "c6 c5 c4 | c3 c2 c1 | c0",
		"limit=7":                             "c6 c5 c4 c3 c2 c1 c0",
		"limit=2&selected_repository=o/r1":    "c5 c3 | c1",
		"selected_repository=o/nothing":       "",
		"conversation_trigger=suggested_task": "c3",
		"conversation_trigger=gui&limit=2":    "c6 c4 | c2 c1 | c0",
		"conversation_trigger=microagent_management":                   "c5",
		"conversation_trigger=suggested_task&selected_repository=o/r0": "",
		"query=+a+TASK":               "c3",
		"query=O/R1&limit=2":          "c5 c3 | c1",
		"query=nothing":               "",
		"status=STARTING&limit=7":     "c6 c5 c4 c3 c2 c1 c0",
		"status=RUNNING":              "",
		"attention=true":              "",
		"attention=false&query=o%2Fr": "c6 c5 c4 c3 c2 c1 c0",
	} {
		if got := pages(query); got != want {
			t.Errorf("%q lists %q, want %q", query, got, want)
		}
	}
	for query, complaint := range map[string]string{
		"limit=x": "query.limit: int_parsing", "limit=0": "query.limit: greater_than_equal",
		"limit=101": "query.limit: less_than_equal",
		"page_id=x": "query.page_id: value_error", "conversation_trigger=x": "query.conversation_trigger: enum",
		"status=running": "query.status: enum", "attention=maybe": "query.attention: bool_parsing",
		"query=" + strings.Repeat("x", 201): "query.query: string_too_long",
	} {
		ada.get(t, "/api/conversations?"+query).wants(t, 422).complains(t, complaint)
	}

	var c rest.Conversation
	if err := json.Unmarshal([]byte(ada.get(t, "/api/conversations/c3").wants(t, 200).body), &c); err != nil {
		t.Fatal(err)
	}
	if c.Title != "A task" || *c.SelectedRepository != "o/r1" || *c.GitProvider != "gitlab" ||
		c.Trigger != "suggested_task" ||
		time.Since(c.CreatedAt) > time.Minute || c.LastUpdatedAt.Before(c.CreatedAt) {
		t.Errorf("shown as %+v", c)
	}
}

func TestConversationsWithIncompleteSettingsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, settings string
		code           int
		msgID          string
	}{
		{"nothing stored", ``, 400, "CONFIGURATION$SETTINGS_NOT_FOUND"},
		{"a model without a key", `{"llm_model": "example/large"}`, 400, "STATUS$ERROR_LLM_AUTHENTICATION"},
		{"a model whose key was cleared", `{"llm_model": "example/large", "llm_api_key": ""}`, 400,
			"STATUS$ERROR_LLM_AUTHENTICATION"},
		{"a model with a key", `{"llm_model": "example/large", "llm_api_key": "k"}`, 200, ""},
		{"a model that needs no key", `{"llm_model": "ollama/small"}`, 200, ""},
		{"a model with a base URL", `{"llm_model": "example/large", "llm_base_url": "http://llm.example.com"}`, 200,
			""},
		{"no model", `{"language": "en"}`, 200, ""},
		{"an explicit default", `{"enable_default_condenser": true}`, 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ada := newPerson(t, "ada")
			if c.settings != "" {
				ada.post(t, "/api/settings", c.settings).wants(t, 200)
			}
			// The cache of the facade may not contain the posted settings yet. The facade must find them
			// anyway.
			reply := ada.post(t, "/api/conversations", `{}`).wants(t, c.code)
			if c.code == 400 && (reply.field(t, "msg_id") != c.msgID || reply.field(t, "status") != "error") {
				t.Errorf("answered %s", reply.body)
			}
		})
	}
}

func TestAConversationIsNotCreatedIfTheNameOfItsSecretIsTaken(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	name := v1alpha1.ManagedName("taken", v1alpha1.ManagedSessionTool, "sse", "https://a.example.com")
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: name}})
	reply := ada.post(t, "/api/conversations", `{"conversation_id": "taken", "mcp_config": {"sse_servers": [{"url": `+
		`"https://a.example.com", "api_key": "k"}]}}`)
	reply.wants(t, 409)
	err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: "taken"},
		&v1alpha1.Conversation{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the conversation exists (%v)", err)
	}
}
