package v1alpha1

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NextRestart returns a new value for restartAt: the current second or, if that value was already
// used, an earlier second. A later second would delay the restart.
func (c *Conversation) NextRestart(now time.Time) metav1.Time {
	at := metav1.NewTime(now.Truncate(time.Second))
	for at.Equal(c.Spec.RestartAt) || at.Equal(c.Status.RestartedAt) {
		at = metav1.NewTime(at.Add(-time.Second))
	}
	return at
}

// EffectiveRepository returns the repository of a session and its git provider. A value that is not
// set in the spec itself comes from the suggested task or the microagent. Both results may be
// empty.
func (s *ConversationSpec) EffectiveRepository() (repository string, provider GitProvider) {
	switch {
	case s.SuggestedTask != nil:
		repository, provider = s.SuggestedTask.Repo, s.SuggestedTask.GitProvider
	case s.CreateMicroagent != nil:
		repository = s.CreateMicroagent.Repo
		if s.CreateMicroagent.GitProvider != nil {
			provider = *s.CreateMicroagent.GitProvider
		}
	}
	if s.Repository != nil {
		repository = *s.Repository
	}
	if s.GitProvider != nil {
		provider = *s.GitProvider
	}
	return repository, provider
}

// EffectiveMCPConfig returns the tool servers of the Conversation, or else of the settings.
func (s *ConversationSpec) EffectiveMCPConfig(settings *UserSettingsSpec) *MCPConfig {
	if s.MCPConfig != nil {
		return s.MCPConfig
	}
	return settings.MCPConfig
}

// EffectiveSettings returns the settings with the agent and the model of the Conversation.
func (s *ConversationSpec) EffectiveSettings(settings *UserSettingsSpec) *UserSettingsSpec {
	effective := *settings
	effective.Agent = cmp.Or(s.Agent, settings.Agent)
	effective.LLMModel = cmp.Or(s.LLMModel, settings.LLMModel)
	return &effective
}

// ModelProblem says why a session must not use the Conversation's model with these settings. It is
// empty if the session may use the model. If the settings have no base URL, the provider of the
// model determines the host that receives the API key. The Conversation's model must then have the
// same provider as the model in the settings, to which the API key belongs.
func (s *ConversationSpec) ModelProblem(settings *UserSettingsSpec) string {
	if s.LLMModel == nil || settings.LLMBaseURL != nil {
		return ""
	}
	provider := providerOf(*s.LLMModel)
	switch {
	case provider == "":
		return "must name the provider, as provider/model, such as openai/gpt-5, because the settings have no base URL"
	case settings.LLMAPIKeyRef == nil:
		return ""
	case settings.LLMModel == nil || providerOf(*settings.LLMModel) != provider:
		return "must be a model of the same provider as llmModel in the UserSettings, because the API key " +
			"belongs to that provider: choose another model or other UserSettings"
	}
	return ""
}
