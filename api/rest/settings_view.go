package rest

import (
	"encoding/json"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// storedSettings is what a user is shown of their settings.
func storedSettings(spec *v1alpha1.UserSettingsSpec) StoredSettings {
	view := StoredSettings{
		Language:                     spec.Language,
		Agent:                        spec.Agent,
		MaxIterations:                spec.MaxIterations,
		SecurityAnalyzer:             spec.SecurityAnalyzer,
		ConfirmationMode:             spec.ConfirmationMode,
		LLMModel:                     spec.LLMModel,
		LLMBaseURL:                   spec.LLMBaseURL,
		RemoteRuntimeResourceFactor:  spec.RemoteRuntimeResourceFactor,
		EnableDefaultCondenser:       ptr.Deref(spec.EnableDefaultCondenser, true),
		EnableSoundNotifications:     ptr.Deref(spec.EnableSoundNotifications, false),
		EnableProactiveStarters:      ptr.Deref(spec.EnableProactiveConversationStarters, true),
		EnableSolvabilityAnalysis:    ptr.Deref(spec.EnableSolvabilityAnalysis, true),
		UserConsentsToAnalytics:      spec.UserConsentsToAnalytics,
		SandboxBaseContainerImage:    spec.SandboxBaseContainerImage,
		SandboxRuntimeContainerImage: spec.SandboxRuntimeContainerImage,
		MCPConfig:                    storedMCPConfig(spec.MCPConfig),
		Email:                        spec.Email,
		EmailVerified:                spec.EmailVerified,
		GitUserName:                  spec.GitUserName,
		GitUserEmail:                 spec.GitUserEmail,
		LLMAPIKeySet:                 spec.LLMAPIKeyRef != nil,
		SearchAPIKeySet:              spec.SearchAPIKeyRef != nil,
		SandboxAPIKeySet:             spec.SandboxAPIKeyRef != nil,
		ProviderTokensSet:            map[string]*string{},
		SecretsStore: StoredSecrets{
			ProviderTokens: map[string]StoredProviderToken{},
			CustomSecrets:  map[string]StoredCustomSecret{},
		},
	}
	if spec.MaxBudgetPerTask != nil {
		view.MaxBudgetPerTask = ptr.To(json.Number(*spec.MaxBudgetPerTask))
	}
	if store := spec.SecretsStore; store != nil {
		for _, token := range store.ProviderTokens {
			view.SecretsStore.ProviderTokens[string(token.Provider)] = StoredProviderToken{UserID: token.UserID, Host: token.Host}
			if token.TokenRef != nil {
				view.ProviderTokensSet[string(token.Provider)] = token.Host
			}
		}
		for _, secret := range store.CustomSecrets {
			view.SecretsStore.CustomSecrets[secret.Name] = StoredCustomSecret{Description: secret.Description}
		}
	}
	return view
}

func storedMCPConfig(config *v1alpha1.MCPConfig) *StoredMCPConfig {
	if config == nil {
		return nil
	}
	view := &StoredMCPConfig{
		SSEServers:   storedRemoteServers(config.SSEServers),
		StdioServers: []StoredMCPStdioServer{},
		SHTTPServers: storedRemoteServers(config.SHTTPServers),
	}
	for _, server := range config.StdioServers {
		env := map[string]*string{}
		for _, variable := range server.Env {
			env[variable.Name] = nil
		}
		args := server.Args
		if args == nil {
			args = []string{}
		}
		view.StdioServers = append(view.StdioServers, StoredMCPStdioServer{Name: server.Name, Command: server.Command, Args: args, Env: env})
	}
	return view
}

func storedRemoteServers(servers []v1alpha1.MCPRemoteServer) []StoredMCPRemoteServer {
	view := []StoredMCPRemoteServer{}
	for _, server := range servers {
		view = append(view, StoredMCPRemoteServer{URL: server.URL, APIKeySet: server.APIKeyRef != nil})
	}
	return view
}
