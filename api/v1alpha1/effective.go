package v1alpha1

import (
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

// EffectiveRepository returns the repository of a session and its provider. Without
// spec.repository, it is the repository of the suggested task or microagent. It is empty if none is
// set.
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
