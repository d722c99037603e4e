package v1alpha1

import (
	"cmp"
	"slices"
)

// Inherit returns the effective settings: these settings, completed with the values of other
// settings. Values that belong together are inherited together, so that an inherited key is sent
// only to the address that was chosen with it.
//
// The model, its base URL and its API key are one group. If these settings have one of them, none
// is inherited. The token of a git provider is inherited with its host and user ID. A remote tool
// server is inherited with its API key. Container images always come from the inherited settings,
// because an image that the user chooses could read or divert the inherited keys.
//
// These values are not inherited:
//   - custom secrets, the session key, owner, class, email address, git identity and
//     exposeSecretsToModel, because they are personal
//   - fields with a default in the schema, because they always have a value
//   - stdio tool servers with secret variables, because the session's user controls the files that
//     such a server uses
func (s *UserSettingsSpec) Inherit(from *UserSettingsSpec) *UserSettingsSpec {
	effective, from := s.DeepCopy(), from.DeepCopy()
	effective.Language = cmp.Or(s.Language, from.Language)
	effective.Agent = cmp.Or(s.Agent, from.Agent)
	effective.MaxIterations = cmp.Or(s.MaxIterations, from.MaxIterations)
	effective.MaxBudgetPerTask = cmp.Or(s.MaxBudgetPerTask, from.MaxBudgetPerTask)
	effective.SecurityAnalyzer = cmp.Or(s.SecurityAnalyzer, from.SecurityAnalyzer)
	effective.ConfirmationMode = cmp.Or(s.ConfirmationMode, from.ConfirmationMode)
	effective.RemoteRuntimeResourceFactor = cmp.Or(s.RemoteRuntimeResourceFactor, from.RemoteRuntimeResourceFactor)
	effective.SearchAPIKeyRef = cmp.Or(s.SearchAPIKeyRef, from.SearchAPIKeyRef)
	effective.SandboxBaseContainerImage = from.SandboxBaseContainerImage
	effective.SandboxRuntimeContainerImage = from.SandboxRuntimeContainerImage
	effective.SandboxAPIKeyRef = cmp.Or(s.SandboxAPIKeyRef, from.SandboxAPIKeyRef)
	effective.inheritModel(from)
	effective.inheritTokens(from)
	effective.inheritTools(from.MCPConfig)
	return effective
}

// inheritModel inherits the model, its base URL and its API key, unless s has one of these three
// values. The reasoning effort and the temperature suit the inherited model, so they are inherited
// only together with the model.
func (s *UserSettingsSpec) inheritModel(from *UserSettingsSpec) {
	if s.OwnsModel() {
		return
	}
	s.LLMModel, s.LLMBaseURL, s.LLMAPIKeyRef = from.LLMModel, from.LLMBaseURL, from.LLMAPIKeyRef
	s.LLMReasoningEffort = cmp.Or(s.LLMReasoningEffort, from.LLMReasoningEffort)
	s.LLMTemperature = cmp.Or(s.LLMTemperature, from.LLMTemperature)
}

// OwnsModel reports whether these settings have a model, a base URL or an API key of their own. If
// they have one of the three, they inherit none of them.
func (s *UserSettingsSpec) OwnsModel() bool {
	return s.LLMModel != nil || s.LLMBaseURL != nil || s.LLMAPIKeyRef != nil
}

// inheritTokens inherits the tokens of the git providers for which these settings have no entry.
func (s *UserSettingsSpec) inheritTokens(from *UserSettingsSpec) {
	if from.SecretsStore == nil {
		return
	}
	own := cmp.Or(s.SecretsStore, &SecretsStore{})
	tokens, inherited := slices.Clone(own.ProviderTokens), false
	for _, token := range from.SecretsStore.ProviderTokens {
		ofProvider := func(t ProviderToken) bool { return t.Provider == token.Provider }
		if slices.ContainsFunc(own.ProviderTokens, ofProvider) {
			continue
		}
		tokens, inherited = append(tokens, token), inherited || token.TokenRef != nil
	}
	if inherited {
		s.ExposeGitTokenToAgent = exposeInherited(s.ExposeGitTokenToAgent, from.ExposeGitTokenToAgent,
			len(own.ProviderTokens) > 0)
	}
	if len(tokens) > len(own.ProviderTokens) {
		s.SecretsStore = &SecretsStore{ProviderTokens: tokens, CustomSecrets: own.CustomSecrets}
	}
}

// exposeInherited returns the value of exposeGitTokenToAgent for a session that inherits git
// tokens. own is the value in the user's settings, and from is the value in the inherited settings.
// The result applies to all tokens of the session:
//   - false, if own or from is false;
//   - else nil, if from is nil, or if own is nil and the user has git tokens: the class then decides;
//   - else true.
func exposeInherited(own, from *bool, ownTokens bool) *bool {
	switch {
	case own != nil && !*own:
		return own
	case from == nil || !*from, own != nil, !ownTokens:
		return from
	}
	return nil
}

func (s *UserSettingsSpec) inheritTools(from *MCPConfig) {
	if from == nil {
		return
	}
	merged := *cmp.Or(s.MCPConfig.DeepCopy(), &MCPConfig{})
	own := slices.Concat(merged.SSEServers, merged.SHTTPServers)
	remote := func(servers, inherited []MCPRemoteServer) []MCPRemoteServer {
		for _, server := range inherited {
			if !slices.ContainsFunc(own, func(o MCPRemoteServer) bool { return o.URL == server.URL }) {
				servers = append(servers, server)
			}
		}
		return servers
	}
	merged.SSEServers = remote(merged.SSEServers, from.SSEServers)
	merged.SHTTPServers = remote(merged.SHTTPServers, from.SHTTPServers)
	for _, server := range from.StdioServers {
		hasSecret := slices.ContainsFunc(server.Env, func(v MCPEnvVar) bool { return v.SecretRef != nil })
		known := slices.ContainsFunc(merged.StdioServers, func(o MCPStdioServer) bool { return o.Name == server.Name })
		if !hasSecret && !known {
			merged.StdioServers = append(merged.StdioServers, server)
		}
	}
	if len(merged.SSEServers)+len(merged.SHTTPServers)+len(merged.StdioServers) > 0 {
		s.MCPConfig = &merged
	}
}
