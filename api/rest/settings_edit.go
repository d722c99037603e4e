package rest

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	ac "github.com/parley-dev/parley/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// specEdit is what a request does to a spec. It is done twice: to what the facade owns, which is then applied, and
// to all that is stored, which tells what must come out of it.
type specEdit struct {
	spec *ac.UserSettingsSpecApplyConfiguration
	keys keyring
	// touched are the fields of the spec that the request names.
	touched []string
}

func editSpec(spec *ac.UserSettingsSpecApplyConfiguration, s *Settings, keys keyring) *specEdit {
	e := &specEdit{spec: spec, keys: keys}
	edit(e, "language", &spec.Language, s.Language)
	edit(e, "agent", &spec.Agent, s.Agent)
	edit(e, "maxIterations", &spec.MaxIterations, s.MaxIterations)
	edit(e, "securityAnalyzer", &spec.SecurityAnalyzer, s.SecurityAnalyzer)
	edit(e, "confirmationMode", &spec.ConfirmationMode, s.ConfirmationMode)
	edit(e, "llmModel", &spec.LLMModel, s.LLMModel)
	e.editKey("llmAPIKeyRef", &spec.LLMAPIKeyRef, s.LLMAPIKey, llmKey)
	edit(e, "llmBaseURL", &spec.LLMBaseURL, s.LLMBaseURL)
	edit(e, "remoteRuntimeResourceFactor", &spec.RemoteRuntimeResourceFactor, s.RemoteRuntimeResourceFactor)
	e.editSecretsStore(s.SecretsStore)
	edit(e, "enableDefaultCondenser", &spec.EnableDefaultCondenser, s.EnableDefaultCondenser)
	edit(e, "enableSoundNotifications", &spec.EnableSoundNotifications, s.EnableSoundNotifications)
	edit(e, "enableProactiveConversationStarters", &spec.EnableProactiveConversationStarters, s.EnableProactiveStarters)
	edit(e, "enableSolvabilityAnalysis", &spec.EnableSolvabilityAnalysis, s.EnableSolvabilityAnalysis)
	edit(e, "userConsentsToAnalytics", &spec.UserConsentsToAnalytics, s.UserConsentsToAnalytics)
	edit(e, "sandboxBaseContainerImage", &spec.SandboxBaseContainerImage, s.SandboxBaseContainerImage)
	edit(e, "sandboxRuntimeContainerImage", &spec.SandboxRuntimeContainerImage, s.SandboxRuntimeContainerImage)
	e.editMCPConfig(s.MCPConfig)
	e.editKey("searchAPIKeyRef", &spec.SearchAPIKeyRef, s.SearchAPIKey, searchKey)
	e.editKey("sandboxAPIKeyRef", &spec.SandboxAPIKeyRef, s.SandboxAPIKey, sandboxKey)
	edit(e, "maxBudgetPerTask", &spec.MaxBudgetPerTask, s.MaxBudgetPerTask)
	edit(e, "email", &spec.Email, s.Email)
	edit(e, "emailVerified", &spec.EmailVerified, s.EmailVerified)
	edit(e, "gitUserName", &spec.GitUserName, s.GitUserName)
	edit(e, "gitUserEmail", &spec.GitUserEmail, s.GitUserEmail)
	return e
}

func edit[T any](e *specEdit, name string, target **T, field Field[T]) {
	if field.Present {
		*target = field.Value
		e.touched = append(e.touched, name)
	}
}

func (e *specEdit) editKey(name string, target **ac.SecretKeyRefApplyConfiguration, key Key, what string) {
	switch {
	case key.isSet():
		*target = keyRef(e.keys.secret(what))
	case key.isCleared():
		*target = nil
	default:
		return
	}
	e.touched = append(e.touched, name)
}

func keyRef(secret string) *ac.SecretKeyRefApplyConfiguration {
	return ac.SecretKeyRef().WithName(secret).WithKey(keySecretKey)
}

func (e *specEdit) editSecretsStore(request UserSecrets) {
	if len(request.ProviderTokens) == 0 && len(request.CustomSecrets) == 0 {
		return
	}
	e.touched = append(e.touched, "secretsStore")
	if e.spec.SecretsStore == nil {
		e.spec.SecretsStore = ac.SecretsStore()
	}
	store := e.spec.SecretsStore
	for _, name := range sortedKeys(request.ProviderTokens) {
		e.editProviderToken(store, v1alpha1.GitProvider(name), request.ProviderTokens[name])
	}
	for _, name := range sortedKeys(request.CustomSecrets) {
		e.editCustomSecret(store, name, request.CustomSecrets[name])
	}
	if len(store.ProviderTokens) == 0 && len(store.CustomSecrets) == 0 {
		e.spec.SecretsStore = nil
	}
}

func (e *specEdit) editProviderToken(store *ac.SecretsStoreApplyConfiguration, provider v1alpha1.GitProvider, token *ProviderToken) {
	at := slices.IndexFunc(store.ProviderTokens, func(t ac.ProviderTokenApplyConfiguration) bool { return *t.Provider == provider })
	switch {
	case token == nil && at < 0:
		return
	case token == nil:
		store.ProviderTokens = slices.Delete(store.ProviderTokens, at, at+1)
		return
	case at < 0:
		at = len(store.ProviderTokens)
		store.WithProviderTokens(ac.ProviderToken().WithProvider(provider))
	}
	entry := &store.ProviderTokens[at]
	if token.Token.isSet() {
		entry.TokenRef = keyRef(e.keys.provider(string(provider)))
	}
	if token.UserID.Present {
		entry.UserID = token.UserID.Value
	}
	if token.Host.Present {
		entry.Host = token.Host.Value
	}
}

func (e *specEdit) editCustomSecret(store *ac.SecretsStoreApplyConfiguration, name string, secret *CustomSecret) {
	at := slices.IndexFunc(store.CustomSecrets, func(s ac.CustomSecretApplyConfiguration) bool { return *s.Name == name })
	switch {
	case secret == nil && at < 0:
		return
	case secret == nil:
		store.CustomSecrets = slices.Delete(store.CustomSecrets, at, at+1)
		return
	case at < 0:
		at = len(store.CustomSecrets)
		store.WithCustomSecrets(ac.CustomSecret().WithName(name))
	}
	entry := &store.CustomSecrets[at]
	if secret.Secret.isSet() {
		entry.SecretRef = keyRef(e.keys.custom(name))
	}
	if secret.Description.Present {
		entry.Description = secret.Description.Value
	}
}

func (e *specEdit) editMCPConfig(field Field[MCPConfig]) {
	if !field.Present {
		return
	}
	e.touched = append(e.touched, "mcpConfig")
	request := field.Value
	if request == nil || len(request.SSEServers)+len(request.StdioServers)+len(request.SHTTPServers) == 0 {
		e.spec.MCPConfig = nil
		return
	}
	old := e.spec.MCPConfig
	if old == nil {
		old = ac.MCPConfig()
	}
	config := ac.MCPConfig()
	config.SSEServers = e.remoteServers(sse, request.SSEServers, old.SSEServers)
	config.SHTTPServers = e.remoteServers(shttp, request.SHTTPServers, old.SHTTPServers)
	for _, server := range request.StdioServers {
		config.StdioServers = append(config.StdioServers, e.stdioServer(server, old.StdioServers))
	}
	e.spec.MCPConfig = config
}

func (e *specEdit) remoteServers(kind string, servers []MCPRemoteServer, old []ac.MCPRemoteServerApplyConfiguration) []ac.MCPRemoteServerApplyConfiguration {
	var list []ac.MCPRemoteServerApplyConfiguration
	for _, server := range servers {
		entry := ac.MCPRemoteServer().WithURL(server.URL)
		switch at := slices.IndexFunc(old, func(o ac.MCPRemoteServerApplyConfiguration) bool { return *o.URL == server.URL }); {
		case server.APIKey.isSet():
			entry.APIKeyRef = keyRef(e.keys.remoteTool(kind, server.URL))
		case at >= 0 && !server.APIKey.isCleared():
			entry.APIKeyRef = old[at].APIKeyRef
		}
		list = append(list, *entry)
	}
	return list
}

func (e *specEdit) stdioServer(server MCPStdioServer, old []ac.MCPStdioServerApplyConfiguration) ac.MCPStdioServerApplyConfiguration {
	entry := ac.MCPStdioServer().WithName(server.Name).WithCommand(server.Command).WithArgs(server.Args...)
	var oldEnv []ac.MCPEnvVarApplyConfiguration
	if at := slices.IndexFunc(old, func(o ac.MCPStdioServerApplyConfiguration) bool { return *o.Name == server.Name }); at >= 0 {
		oldEnv = old[at].Env
	}
	for _, variable := range server.Env {
		at := slices.IndexFunc(oldEnv, func(o ac.MCPEnvVarApplyConfiguration) bool { return *o.Name == variable.Name })
		switch {
		case variable.Value.isSet():
			entry.WithEnv(ac.MCPEnvVar().WithName(variable.Name).WithSecretRef(keyRef(e.keys.toolVariable(server.Name, variable.Name))))
		case variable.Value.isCleared():
			entry.WithEnv(ac.MCPEnvVar().WithName(variable.Name).WithValue(""))
		case at >= 0:
			entry.WithEnv(&oldEnv[at])
		}
	}
	return *entry
}

// defaults are those of the schema, for fields that a request clears.
func defaults(spec *ac.UserSettingsSpecApplyConfiguration) {
	for _, field := range []struct {
		target  **bool
		initial bool
	}{
		{&spec.EnableDefaultCondenser, true},
		{&spec.EnableSoundNotifications, false},
		{&spec.EnableProactiveConversationStarters, true},
		{&spec.EnableSolvabilityAnalysis, true},
	} {
		if *field.target == nil {
			*field.target = ptr.To(field.initial)
		}
	}
}

// defaulted are the fields with a default in the schema.
var defaulted = []string{"enableDefaultCondenser", "enableSoundNotifications", "enableProactiveConversationStarters", "enableSolvabilityAnalysis"}

// convert turns one form of the same JSON into another.
func convert(from, to any) error {
	data, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		return fmt.Errorf("convert %T to %T: %w", from, to, err)
	}
	return nil
}
