package controllers

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/lifecycletest"
)

const teamKey, teamToken, teamToolKey = "sk-of-the-team", "glpat-of-the-team", "tool-key-of-the-team"

// createTeam creates the UserSettings of a team, with a model, a git token and a tool server. It
// also creates the Secrets to which these UserSettings refer.
func createTeam(t *testing.T, ns string) *v1alpha1.UserSettings {
	t.Helper()
	requireAgents(t)
	team := userSettings(ns, "team")
	team.Spec = v1alpha1.UserSettingsSpec{Agent: ptr.To("frugal"), LLMModel: ptr.To("openai/gpt-5"),
		LLMAPIKeyRef: ref("llm"),
		SecretsStore: &v1alpha1.SecretsStore{ProviderTokens: []v1alpha1.ProviderToken{{Provider: v1alpha1.GitLab,
			Host: ptr.To("git.team.example"), TokenRef: ref("git")}}},
		MCPConfig: &v1alpha1.MCPConfig{SHTTPServers: []v1alpha1.MCPRemoteServer{{URL: "https://tool.team.example",
			APIKeyRef: ref("tool")}}}}
	create(t, secretWith(ns, "llm", teamKey), secretWith(ns, "git", teamToken), secretWith(ns, "tool", teamToolKey), team)
	return team
}

func heirOf(ns, team string, change ...func(*v1alpha1.UserSettingsSpec)) *v1alpha1.UserSettings {
	heir := userSettings(ns, "ada")
	heir.Spec.InheritFrom = &team
	for _, c := range change {
		c(&heir.Spec)
	}
	return heir
}

func TestASessionGetsInheritedKeysWithTheirAddresses(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	archive.manager(t, ns)
	team := createTeam(t, ns)
	heir := heirOf(ns, "team", func(s *v1alpha1.UserSettingsSpec) { s.Language = ptr.To("de") })
	create(t, heir)
	awaitSettings(t, heir, v1alpha1.ReasonReady)
	onGitLab := func(s *v1alpha1.ConversationSpec) {
		s.Repository, s.GitProvider = ptr.To("acme/site"), ptr.To(v1alpha1.GitLab)
	}
	create(t, makeConversation(ns, "first").With(onGitLab).Obj())
	kubelet{t, ns, "first"}.start()
	first := awaitState(t, ns, "first", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	data, doc := sessionSecret(t, first).Data, documentOf(t, ns, "first")
	for file, want := range map[string]string{session.LLMAPIKeyFile: teamKey, session.ProviderTokenFile: teamToken,
		doc.ToolServers.SHTTP[0].APIKeyFile: teamToolKey} {
		if string(data[file]) != want {
			t.Errorf("%s is %q", file, data[file])
		}
	}
	if doc.Repository.Host != "git.team.example" || doc.ToolServers.SHTTP[0].URL != "https://tool.team.example" ||
		*doc.Settings.LLMModel != "openai/gpt-5" || *doc.Settings.Language != "de" || doc.Agent.Name != "frugal" {
		t.Errorf("the session has %+v", doc)
	}

	// The next session gets the team's new key and new model. A running session keeps its model.
	llm := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "llm"}, llm); err != nil {
		t.Fatal(err)
	}
	change(t, llm, func(s *corev1.Secret) { s.Data["key"] = []byte("sk-rotated") })
	change(t, team, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("openai/gpt-6") })
	second := runningConversation(t, ns, "second")
	if got := string(sessionSecret(t, second).Data[session.LLMAPIKeyFile]); got != "sk-rotated" {
		t.Errorf("the next session has the key %q", got)
	}
	if got := *documentOf(t, ns, "second").Settings.LLMModel; got != "openai/gpt-6" {
		t.Errorf("the next session has the model %q", got)
	}
	// If the heir changes only its language, running sessions do not get the team's new model. If the
	// heir sets its own model, running sessions get the heir's model.
	change(t, heir, func(s *v1alpha1.UserSettings) { s.Spec.Language = ptr.To("fr") })
	awaitSettings(t, heir, v1alpha1.ReasonReady)
	if got := archive.sends(t, ns); got != "0 uploads, 0 patches" {
		t.Errorf("the running sessions were sent models: %s", got)
	}
	create(t, secretWith(ns, "own", "sk-of-the-heir"))
	change(t, heir, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel, s.Spec.LLMAPIKeyRef = ptr.To("a/own"), ref("own") })
	for _, c := range []*v1alpha1.Conversation{first, second} {
		archive.awaitModel(t, c, "a/own", "sk-of-the-heir")
	}
	if got := archive.sends(t, ns); got != "2 uploads, 2 patches" {
		t.Errorf("a model of the heir's own causes %s", got)
	}
	// The log must not contain values of the team's Secrets.
	if strings.Contains(logs.String(), teamKey) {
		t.Error("an inherited key is logged")
	}
}

func TestASessionWaitsForInheritedSettings(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	heir := heirOf(ns, "team")
	create(t, heir, makeConversation(ns, "c").Obj())
	says := func(parts ...string) {
		t.Helper()
		await(t, func() error {
			c := getConversation(t, ns, "c")
			for _, part := range parts {
				if c.Status.Reason != v1alpha1.ReasonSettingsNotReady || !strings.Contains(c.Status.Message, part) {
					return fmt.Errorf("%s: %s", c.Status.Reason, c.Status.Message)
				}
			}
			return nil
		})
	}
	says("UserSettings ada: spec.inheritFrom: UserSettings team do not exist")
	awaitSettings(t, heir, v1alpha1.ReasonSettingsNotFound)
	awaitCondition(t, heir, metav1.ConditionFalse)

	team := userSettings(ns, "team")
	team.Spec.InheritFrom = ptr.To("board")
	create(t, team)
	says("UserSettings team inherit from board")
	awaitSettings(t, heir, v1alpha1.ReasonInheritsTwice)

	change(t, team, func(s *v1alpha1.UserSettings) { s.Spec.InheritFrom, s.Spec.LLMAPIKeyRef = nil, ref("llm") })
	awaitSettings(t, heir, v1alpha1.ReasonReady)
	awaitCondition(t, heir, metav1.ConditionTrue)
	says("Secret llm does not exist")
	create(t, secretWith(ns, "llm", teamKey))
	kubelet{t, ns, "c"}.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

func awaitCondition(t *testing.T, settings *v1alpha1.UserSettings, want metav1.ConditionStatus) {
	t.Helper()
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(settings), settings); err != nil {
			return err
		}
		c := meta.FindStatusCondition(settings.Status.Conditions, v1alpha1.ConditionInheritFromResolved)
		if c == nil || c.Status != want {
			return fmt.Errorf("InheritFromResolved is %+v", c)
		}
		return nil
	})
}

func TestASessionThatLacksAModelContinuesWithAnInheritedModel(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	requireAgents(t)
	team := userSettings(ns, "team")
	team.Spec.Agent = ptr.To("needy")
	create(t, team, heirOf(ns, "team"), withTask(ns, "c").Obj())
	await(t, func() error {
		if turn := getConversation(t, ns, "c").Status.Turn; turn == nil || !strings.Contains(turn.Message, "model") {
			return fmt.Errorf("the turn is %+v", turn)
		}
		return nil
	})
	change(t, team, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("openai/gpt-5") })
	awaitTurn(t, ns, "c", "")
}

// An heir must not be able to send the keys of the team elsewhere. Each attack starts a session.
// The session must either not get the key, or get the key together with the address that the team
// chose.
func TestSettingsThatInheritCannotSendInheritedKeysToAnotherHost(t *testing.T) {
	t.Parallel()
	gitLab, gitHub := ptr.To(v1alpha1.GitLab), ptr.To(v1alpha1.GitHub)
	for _, attack := range []struct {
		name         string
		settings     func(*v1alpha1.UserSettingsSpec)
		conversation func(*v1alpha1.ConversationSpec)
		// absent is the value that the session must not get.
		absent string
	}{
		{name: "own base URL", absent: teamKey,
			settings: func(s *v1alpha1.UserSettingsSpec) { s.LLMBaseURL = ptr.To("https://evil.example") }},
		{name: "own model of another provider", absent: teamKey,
			settings: func(s *v1alpha1.UserSettingsSpec) { s.LLMModel = ptr.To("evil/model") }},
		{name: "own model of the same provider", absent: teamKey,
			settings: func(s *v1alpha1.UserSettingsSpec) { s.LLMModel = ptr.To("openai/gpt-4") }},
		{name: "own host of the git provider", absent: teamToken,
			settings: func(s *v1alpha1.UserSettingsSpec) {
				s.SecretsStore = &v1alpha1.SecretsStore{ProviderTokens: []v1alpha1.ProviderToken{{Provider: v1alpha1.GitLab,
					Host: ptr.To("evil.example")}}}
			},
			conversation: func(s *v1alpha1.ConversationSpec) {
				s.Repository, s.GitProvider = ptr.To("acme/site"), gitLab
			}},
		{name: "repository of another provider", absent: teamToken,
			conversation: func(s *v1alpha1.ConversationSpec) {
				s.Repository, s.GitProvider = ptr.To("acme/site"), gitHub
			}},
		{name: "own tool server without a key", absent: teamToolKey,
			settings: func(s *v1alpha1.UserSettingsSpec) {
				s.MCPConfig = &v1alpha1.MCPConfig{SSEServers: []v1alpha1.MCPRemoteServer{{URL: "https://tool.team.example"}}}
			}},
		{name: "tool servers of the Conversation", absent: teamToolKey,
			conversation: func(s *v1alpha1.ConversationSpec) {
				s.MCPConfig = &v1alpha1.MCPConfig{SHTTPServers: []v1alpha1.MCPRemoteServer{{URL: "https://evil.example"}}}
			}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			t.Parallel()
			ns := env.Namespace(t, nil)
			startManager(t, ns)
			createTeam(t, ns)
			conversation := makeConversation(ns, "c")
			if attack.conversation != nil {
				conversation = conversation.With(attack.conversation)
			}
			heir := heirOf(ns, "team")
			if attack.settings != nil {
				attack.settings(&heir.Spec)
			}
			create(t, heir, conversation.Obj())
			kubelet{t, ns, "c"}.pod()
			secret := sessionSecret(t, getConversation(t, ns, "c"))
			for file, value := range secret.Data {
				if bytes.Contains(value, []byte(attack.absent)) {
					t.Errorf("the session has the team's key in %s", file)
				}
			}
		})
	}
}

func TestAnInheritedKeyIsNotUsedWithTheModelOfAnotherProvider(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	createTeam(t, ns)
	create(t, heirOf(ns, "team"), withTask(ns, "c").With(choosing("evil/model", "frugal")).Obj())
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed)
	if !strings.HasPrefix(c.Status.Message, "spec.llmModel: must be a model of the same provider") {
		t.Error(c.Status.Message)
	}
	if err := gone(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-session"}}); err != nil {
		t.Error(err)
	}
}

func TestSettingsThatInheritCannotChooseAContainerImage(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	team, evil := createTeam(t, ns), "evil"
	for field, choose := range map[string]func(*v1alpha1.UserSettingsSpec){
		"spec.sandboxBaseContainerImage":    func(s *v1alpha1.UserSettingsSpec) { s.SandboxBaseContainerImage = &evil },
		"spec.sandboxRuntimeContainerImage": func(s *v1alpha1.UserSettingsSpec) { s.SandboxRuntimeContainerImage = &evil },
	} {
		own := userSettings(ns, "own")
		choose(&own.Spec)
		for name, settings := range map[string]*v1alpha1.UserSettings{"at once": heirOf(ns, "team", choose), "later": own} {
			err := env.Client.Create(t.Context(), settings)
			if name == "later" && err == nil {
				inherit := client.MergeFrom(settings.DeepCopy()) // a patch does not conflict with a status write
				settings.Spec.InheritFrom = ptr.To("team")
				err = env.Client.Patch(t.Context(), settings, inherit)
				_ = env.Client.Delete(t.Context(), own)
			}
			if err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("an image and inherited settings, set %s: %v", name, err)
			}
		}
	}
	change(t, team, func(s *v1alpha1.UserSettings) { s.Spec.SandboxBaseContainerImage = ptr.To("team.example/image:1") })
	create(t, heirOf(ns, "team"), makeConversation(ns, "c").Obj())
	if image := (kubelet{t, ns, "c"}).pod().Spec.Containers[0].Image; image != "team.example/image:1" {
		t.Errorf("the session has the image %s", image)
	}
}

func TestSettingsThatInheritCannotSetVariablesOfTheRuntime(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	createTeam(t, ns)
	heir := heirOf(ns, "team", func(s *v1alpha1.UserSettingsSpec) {
		s.SecretsStore = &v1alpha1.SecretsStore{}
		for _, name := range []string{"HTTPS_PROXY", "SSL_CERT_FILE", "LLM_BASE_URL"} {
			s.SecretsStore.CustomSecrets = append(s.SecretsStore.CustomSecrets, v1alpha1.CustomSecret{Name: name,
				SecretRef: *lifecycletest.Ref("proxy")})
		}
	})
	create(t, secretWith(ns, "proxy", "http://evil.example"), heir, makeConversation(ns, "c").Obj())
	container := kubelet{t, ns, "c"}.pod().Spec.Containers[0]
	for _, variable := range container.Env {
		if strings.HasSuffix(strings.ToUpper(variable.Name), "PROXY") || variable.Name == "SSL_CERT_FILE" ||
			variable.Name == "LLM_BASE_URL" {
			t.Errorf("the runtime has the variable %s", variable.Name)
		}
	}
	secret := sessionSecret(t, getConversation(t, ns, "c"))
	if string(secret.Data[session.LLMAPIKeyFile]) != teamKey {
		t.Error("the session does not have the team's key")
	}
	if doc := documentOf(t, ns, "c"); doc.Settings.LLMBaseURL != nil || *doc.Settings.LLMModel != "openai/gpt-5" {
		t.Errorf("the key is sent to %v", doc.Settings.ModelEndpoint())
	}
}

func TestSettingsThatInheritCannotExposeAnInheritedToken(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	createTeam(t, ns)
	heir := heirOf(ns, "team", func(s *v1alpha1.UserSettingsSpec) { s.ExposeGitTokenToAgent = ptr.To(true) })
	create(t, heir, makeConversation(ns, "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Repository, s.GitProvider = ptr.To("acme/site"), ptr.To(v1alpha1.GitLab)
	}).Obj())
	kubelet{t, ns, "c"}.pod()
	doc := documentOf(t, ns, "c")
	if doc.Repository.TokenFile == "" || ptr.Deref(doc.Settings.ExposeGitTokenToAgent, false) {
		t.Errorf("the session has the token file %q, exposed: %v", doc.Repository.TokenFile,
			doc.Settings.ExposeGitTokenToAgent)
	}
}
