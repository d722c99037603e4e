package controllers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func ref(name string) *v1alpha1.SecretKeyRef { return &v1alpha1.SecretKeyRef{Name: name, Key: "key"} }

// everySecret are settings that refer to a Secret wherever they can.
func everySecret() v1alpha1.UserSettingsSpec {
	return v1alpha1.UserSettingsSpec{
		LLMAPIKeyRef: ref("llm"), SearchAPIKeyRef: ref("search"), SandboxAPIKeyRef: ref("sandbox"),
		SecretsStore: &v1alpha1.SecretsStore{
			ProviderTokens: []v1alpha1.ProviderToken{
				{Provider: v1alpha1.GitHub, TokenRef: ref("github"), UserID: ptr.To("ada"), Host: ptr.To("git.example.com")},
				{Provider: v1alpha1.GitLab, TokenRef: ref("gitlab")},
			},
			CustomSecrets: []v1alpha1.CustomSecret{{Name: "NPM_TOKEN", SecretRef: *ref("npm"),
				Description: ptr.To("for publishing")}},
		},
		MCPConfig: &v1alpha1.MCPConfig{
			SSEServers: []v1alpha1.MCPRemoteServer{{URL: "https://sse.example.com", APIKeyRef: ref("sse")}},
			SHTTPServers: []v1alpha1.MCPRemoteServer{{URL: "https://shttp.example.com", APIKeyRef: ref("shttp")},
				{URL: "https://open.example.com"}},
			StdioServers: []v1alpha1.MCPStdioServer{{Name: "files", Command: "mcp-files", Args: []string{"--root", "/workspace"},
				Env: []v1alpha1.MCPEnvVar{
					{Name: "PLAIN", Value: ptr.To("yes")}, {Name: "TOKEN", SecretRef: ref("stdio")},
				}}},
		},
	}
}

func TestASessionGetsTheSecretsItNeedsAndNoOthers(t *testing.T) {
	settings := everySecret()
	for name, tc := range map[string]struct {
		conversation aConversation
		want         []string
	}{
		"without a repository no token": {
			makeConversation("ns", "c"),
			[]string{"llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"the token of the repository's provider": {
			makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) {
				s.Repository, s.GitProvider = ptr.To("o/r"), ptr.To(v1alpha1.GitLab)
			}),
			[]string{"gitlab", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"GitHub's token where no provider is named": {
			makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) { s.Repository = ptr.To("o/r") }),
			[]string{"github", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"the token for the host of a URL without a provider": {
			makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) {
				s.Repository = ptr.To(
					"https://Git.Example.com/o/r")
			}),
			[]string{"github", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"the token for the public host of a URL without a provider": {
			makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) {
				s.Repository = ptr.To(
					"https://gitlab.com/o/r")
			}),
			[]string{"gitlab", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"no token for the host of nobody's": {
			makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) {
				s.Repository = ptr.To(
					"https://example.com/o/r")
			}),
			[]string{"llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"the token of the task's provider": {
			makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) {
				s.SuggestedTask = &v1alpha1.SuggestedTask{GitProvider: v1alpha1.GitHub, TaskType: v1alpha1.OpenIssue, Repo: "o/r",
					IssueNumber: 1, Title: "t"}
			}),
			[]string{"github", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"its own tool servers in place of the settings'": {
			makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) {
				s.MCPConfig = &v1alpha1.MCPConfig{SSEServers: []v1alpha1.MCPRemoteServer{{URL: "https://mine.example.com",
					APIKeyRef: ref("mine")}}}
			}),
			[]string{"llm", "mine", "npm", "sandbox", "search"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, files := buildDocument(tc.conversation.Conversation, &settings, bounds{})
			var got []string
			for _, f := range files {
				got = append(got, f.ref.Ref.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTheSessionDocumentSaysEverythingThatWasAsked(t *testing.T) {
	settings := everySecret()
	c := makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) {
		s.Repository, s.GitProvider, s.SelectedBranch = ptr.To("o/r"), ptr.To(v1alpha1.GitHub), ptr.To("dev")
		s.InitialUserMsg, s.ConversationInstructions = ptr.To("hello"), ptr.To("be brief")
		s.Images = []v1alpha1.ConversationImage{imageAt("https://example.com/a.png"), imageIn("screens", "login.png")}
		s.OneShot = true
	})
	doc, files := buildDocument(c.Conversation, &settings, class{}.bounds(&c.Spec))
	values := map[string][]byte{}
	for _, f := range files {
		values[f.file] = []byte("secret-of-" + f.ref.Ref.Name)
	}
	document, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	secret := buildSessionSecret(c.Conversation, document, values, "the-key", "inputs")
	text := string(secret.Data[session.DocumentFile])
	if strings.Contains(text, "secret-of-") || strings.Contains(text, "the-key") {
		t.Errorf("the document holds a secret: %s", text)
	}
	for file, want := range map[string]string{
		session.KeyFile: "the-key", session.LLMAPIKeyFile: "secret-of-llm", session.SearchAPIKeyFile: "secret-of-search",
		session.SandboxAPIKeyFile: "secret-of-sandbox", session.ProviderTokenFile: "secret-of-github",
		doc.CustomSecrets[0].ValueFile: "secret-of-npm", doc.ToolServers.SSE[0].APIKeyFile: "secret-of-sse",
		doc.ToolServers.SHTTP[0].APIKeyFile: "secret-of-shttp", doc.ToolServers.Stdio[0].Env[1].ValueFile: "secret-of-stdio",
	} {
		if got := string(secret.Data[file]); got != want {
			t.Errorf("file %s holds %q, want %q", file, got, want)
		}
	}
	var read session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &read); err != nil {
		t.Fatal(err)
	}
	golden(t, "document", read)
}

func TestATaskThatMergesNeedsTheHistory(t *testing.T) {
	for task, history := range map[v1alpha1.TaskType]bool{v1alpha1.MergeConflicts: true, v1alpha1.FailingChecks: false,
		v1alpha1.OpenIssue: false} {
		c := makeConversation("ns", "c").with(func(s *v1alpha1.ConversationSpec) {
			s.SuggestedTask = &v1alpha1.SuggestedTask{GitProvider: v1alpha1.GitHub, TaskType: task, Repo: "o/r", IssueNumber: 1,
				Title: "t"}
		})
		if doc, _ := buildDocument(c.Conversation, &v1alpha1.UserSettingsSpec{}, bounds{}); !doc.Task ||
			doc.History != history {
			t.Errorf("%s: task %t, history %t", task, doc.Task, doc.History)
		}
	}
}

func TestAUserWithASearchKeyGetsTheSearchToolOrIsToldThatThereIsNone(t *testing.T) {
	const server = "https://search.example.com/mcp"
	search := session.RemoteServer{Name: "search", URL: server, APIKeyFile: session.SearchAPIKeyFile}
	for name, tc := range map[string]struct {
		settings    v1alpha1.UserSettingsSpec
		server      string
		want        []session.RemoteServer
		unavailable bool
	}{
		"no key":              {settings: v1alpha1.UserSettingsSpec{}, server: server},
		"a key and no server": {settings: v1alpha1.UserSettingsSpec{SearchAPIKeyRef: ref("search")}, unavailable: true},
		"a key and a server": {settings: v1alpha1.UserSettingsSpec{SearchAPIKeyRef: ref("search")}, server: server,
			want: []session.RemoteServer{search}},
		"beside the user's own": {settings: everySecret(), server: server,
			want: []session.RemoteServer{{URL: "https://shttp.example.com", APIKeyFile: "mcp.shttp.0"},
				{URL: "https://open.example.com"}, search}},
	} {
		t.Run(name, func(t *testing.T) {
			doc, files := buildDocument(makeConversation("ns", "c").Conversation, &tc.settings, bounds{})
			addSearch(&doc, tc.server)
			if !slices.Equal(doc.ToolServers.SHTTP, tc.want) || doc.SearchUnavailable != tc.unavailable {
				t.Errorf("got %+v, unavailable %t", doc.ToolServers.SHTTP, doc.SearchUnavailable)
			}
			if hasKey := slices.ContainsFunc(files,
				func(f secretFile) bool { return f.file == session.SearchAPIKeyFile }); hasKey != (tc.settings.SearchAPIKeyRef != nil) {
				t.Errorf("the session has the key: %t", hasKey)
			}
		})
	}
}

func TestSecretsArriveByteForByte(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	const sshKey = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
	settings := userSettings(ns, "ada")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{CustomSecrets: []v1alpha1.CustomSecret{{Name: "SSH_KEY",
		SecretRef: *ref("ssh")}}}
	create(t, secretWith(ns, "ssh", sshKey), settings)
	create(t, &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "talk"},
		Spec: v1alpha1.ConversationSpec{UserSettingsName: "ada"}})
	secret := &corev1.Secret{}
	await(t, func() error {
		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName("talk")}, secret)
	})
	if got := string(secret.Data["custom.0"]); got != sshKey {
		t.Errorf("the session gets %q", got)
	}
}

func TestAKeyThatNoVariableCanHoldIsRefusedByName(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{CustomSecrets: []v1alpha1.CustomSecret{{Name: "CERTIFICATES",
		SecretRef: *ref("certificates")}}}
	secret := secretWith(ns, "certificates", strings.Repeat("x", session.MaxSecret+1))
	create(t, secret, settings, makeConversation(ns, "c").obj())
	const names = "spec.secretsStore.customSecrets[0].secretRef: the key key of Secret certificates "
	says := func(message string) {
		t.Helper()
		await(t, func() error {
			if c := theConversation(t, ns, "c"); c.Status.Reason != v1alpha1.ReasonSettingsNotReady ||
				c.Status.Message != message {
				return fmt.Errorf("%s: %s", c.Status.Reason, c.Status.Message)
			}
			s := &v1alpha1.UserSettings{}
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(settings), s); err != nil {
				return err
			}
			for _, condition := range []string{v1alpha1.ConditionCustomSecretsResolved, v1alpha1.ConditionReady} {
				if c := meta.FindStatusCondition(s.Status.Conditions, condition); c == nil || c.Reason != v1alpha1.ReasonKeyUnfit ||
					c.Message != message {
					return fmt.Errorf("%s: %+v", condition, c)
				}
			}
			return nil
		})
	}
	says(names + "is longer than 100 KiB")
	for _, binary := range []string{"a\x00b", "\xff\xfe"} {
		change(t, secret, func(s *corev1.Secret) { s.Data = map[string][]byte{"key": []byte(binary)} })
		says(names + "is not text: it has to be in UTF-8, without zero bytes")
	}
	change(t, secret, func(s *corev1.Secret) {
		s.Data = map[string][]byte{"key": []byte(strings.Repeat("x", session.MaxSecret))}
	})
	kubelet{t, ns, "c"}.pod()
}

func TestPricesReachTheSession(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil) // the operator's as well, as far as this manager knows
	startManagerIn(t, ns, ns)
	prices := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.ModelsName},
		Data: map[string]string{"ours": "good: {input: 1, output: 2.50}\nbad: {input: much}"}}
	create(t, prices, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.AgentCatalogueName},
		Data: map[string]string{"coder": "command: [coder]"}})
	free, bound := userSettings(ns, "free"), userSettings(ns, "bound")
	free.Spec.Agent, bound.Spec.Agent, bound.Spec.MaxBudgetPerTask = ptr.To("coder"), ptr.To("coder"), ptr.To("1.50")
	create(t, free, bound)
	for _, name := range []string{"free", "bound"} {
		create(t, makeConversation(ns, name).with(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = name }).obj())
	}
	models := func(name string) session.Models {
		t.Helper()
		kubelet{t, ns, name}.pod()
		secret, doc := &corev1.Secret{}, session.Document{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName(name)},
			secret); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil {
			t.Fatal(err)
		}
		return doc.Models
	}
	// Without a budget a mistake is in nobody's way.
	if got := models("free"); len(got) != 1 || got["good"] != (session.Model{Input: "1", Output: "2.5"}) {
		t.Errorf("the session has %+v", got)
	}
	c := awaitState(t, ns, "bound", v1alpha1.StateStarting, v1alpha1.ReasonSettingsNotReady)
	if !strings.Contains(c.Status.Message, `ours: model bad: "much" is not a price`) {
		t.Errorf("message %q", c.Status.Message)
	}
	change(t, prices, func(m *corev1.ConfigMap) { m.Data["ours"] = "good: {input: 1, output: '2.50'}" })
	if got := models("bound"); got["good"] != (session.Model{Input: "1", Output: "2.50"}) {
		t.Errorf("the session has %+v", got)
	}
}
