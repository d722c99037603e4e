package objects

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

func TestASessionGetsOnlyTheSecretsItNeeds(t *testing.T) {
	settings := everySecret()
	for name, tc := range map[string]struct {
		conversation aConversation
		want         []string
	}{
		"no token without a repository": {
			makeConversation("ns", "c"),
			[]string{"llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"the token of the repository's provider": {
			makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
				s.Repository, s.GitProvider = ptr.To("o/r"), ptr.To(v1alpha1.GitLab)
			}),
			[]string{"gitlab", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"GitHub's token if no provider is named": {
			makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) { s.Repository = ptr.To("o/r") }),
			[]string{"github", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"the token for the host of a URL without a provider": {
			makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
				s.Repository = ptr.To(
					"https://Git.Example.com/o/r")
			}),
			[]string{"github", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"the token for the public host of a URL without a provider": {
			makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
				s.Repository = ptr.To(
					"https://gitlab.com/o/r")
			}),
			[]string{"gitlab", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"no token for an unknown host": {
			makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
				s.Repository = ptr.To(
					"https://example.com/o/r")
			}),
			[]string{"llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"the token of the task's provider": {
			makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
				s.SuggestedTask = &v1alpha1.SuggestedTask{GitProvider: v1alpha1.GitHub, TaskType: v1alpha1.OpenIssue, Repo: "o/r",
					IssueNumber: 1, Title: "t"}
			}),
			[]string{"github", "llm", "npm", "sandbox", "search", "shttp", "sse", "stdio"},
		},
		"its own tool servers in place of the settings'": {
			makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
				s.MCPConfig = &v1alpha1.MCPConfig{SSEServers: []v1alpha1.MCPRemoteServer{{URL: "https://mine.example.com",
					APIKeyRef: ref("mine")}}}
			}),
			[]string{"llm", "mine", "npm", "sandbox", "search"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, files := Document(tc.conversation.Conversation, &settings, lifecycle.Bounds{}, "")
			var got []string
			for _, f := range files {
				got = append(got, f.Ref.Ref.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTheSessionDocumentHoldsTheWholeRequest(t *testing.T) {
	settings := everySecret()
	c := makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Repository, s.GitProvider, s.SelectedBranch = ptr.To("o/r"), ptr.To(v1alpha1.GitHub), ptr.To("dev")
		s.InitialUserMsg, s.ConversationInstructions = ptr.To("hello"), ptr.To("be brief")
		s.Images = []v1alpha1.ConversationImage{imageAt("https://example.com/a.png"), imageIn("screens", "login.png")}
		s.OneShot = true
	})
	doc, files := Document(c.Conversation, &settings, Class{}.Bounds().For(&c.Spec), "")
	in := SecretInputs{Document: doc, Files: files, Sources: map[string]*corev1.Secret{}, Key: "the-key"}
	for _, f := range files {
		in.Sources[f.Ref.Ref.Name] = &corev1.Secret{Data: map[string][]byte{
			f.Ref.Ref.Key: []byte("secret-of-" + f.Ref.Ref.Name)}}
	}
	secret, err := Secret(c.Conversation, in, at(0))
	if err != nil {
		t.Fatal(err)
	}
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

func TestOnlyMergeConflictTasksCloneTheHistory(t *testing.T) {
	for task, history := range map[v1alpha1.TaskType]bool{v1alpha1.MergeConflicts: true, v1alpha1.FailingChecks: false,
		v1alpha1.OpenIssue: false} {
		c := makeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
			s.SuggestedTask = &v1alpha1.SuggestedTask{GitProvider: v1alpha1.GitHub, TaskType: task, Repo: "o/r", IssueNumber: 1,
				Title: "t"}
		})
		if doc, _ := Document(c.Conversation, &v1alpha1.UserSettingsSpec{}, lifecycle.Bounds{}, ""); !doc.Task ||
			doc.History != history {
			t.Errorf("%s: task %t, history %t", task, doc.Task, doc.History)
		}
	}
}

func TestTheSearchToolNeedsAKeyAndAServer(t *testing.T) {
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
		"beside the user's own servers": {settings: everySecret(), server: server,
			want: []session.RemoteServer{{URL: "https://shttp.example.com", APIKeyFile: "mcp.shttp.0"},
				{URL: "https://open.example.com"}, search}},
	} {
		t.Run(name, func(t *testing.T) {
			doc, files := Document(makeConversation("ns", "c").Conversation, &tc.settings, lifecycle.Bounds{}, tc.server)
			if !slices.Equal(doc.ToolServers.SHTTP, tc.want) || doc.SearchUnavailable != tc.unavailable {
				t.Errorf("got %+v, unavailable %t", doc.ToolServers.SHTTP, doc.SearchUnavailable)
			}
			hasKey := slices.ContainsFunc(files, func(f SecretFile) bool { return f.Key == session.SearchAPIKeyFile })
			if hasKey != (tc.settings.SearchAPIKeyRef != nil) {
				t.Errorf("the session has the search key: %t", hasKey)
			}
		})
	}
}
