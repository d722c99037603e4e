package settings

import (
	"fmt"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// view returns the effective settings as a rest.StoredSettings. own are the settings without the
// inherited values.
func view(own, effective *v1alpha1.UserSettingsSpec) (map[string]any, error) {
	compared, err := newInheritance(own, effective)
	if err != nil {
		return nil, fmt.Errorf("convert the stored settings: %w", err)
	}
	shown := viewTable(compared.effectiveFields, effective, rest.SettingsOf(&rest.Settings{}))
	shown["inherited"] = compared.names()
	return shown, nil
}

// viewTable builds the response from the table and the stored spec. fields is the same spec as
// JSON.
func viewTable(fields map[string]any, spec *v1alpha1.UserSettingsSpec, table []rest.Setting) map[string]any {
	shown := map[string]any{}
	for _, setting := range table {
		stored := fields[setting.Spec]
		if stored == nil {
			stored = setting.Default
		}
		switch field := setting.Value.(type) {
		case *rest.Key:
			shown[setting.Name], shown[setting.Name+"_set"] = nil, stored != nil
		case *rest.Field[rest.UserSecrets]:
			shown[setting.Name], shown["provider_tokens_set"] = viewSecrets(secretsOf(spec))
		case *rest.Field[rest.MCPConfig]:
			shown[setting.Name] = viewTools(spec.MCPConfig)
		case plain:
			shown[setting.Name] = field.Shown(stored)
		}
	}
	return shown
}

// hidden is null. In responses, it replaces API keys, tokens and other secret values.
var hidden = rest.Key{Field: rest.Null[string]()}

func viewSecrets(store v1alpha1.SecretsStore) (secrets map[string]any, tokensSet map[string]*string) {
	tokens, custom := map[string]rest.ProviderToken{}, map[string]rest.CustomSecret{}
	tokensSet = map[string]*string{}
	for _, token := range store.ProviderTokens {
		tokens[string(token.Provider)] = rest.ProviderToken{Token: hidden, UserID: present(token.UserID),
			Host: present(token.Host)}
		if token.TokenRef != nil {
			tokensSet[string(token.Provider)] = token.Host
		}
	}
	for _, secret := range store.CustomSecrets {
		custom[secret.Name] = rest.CustomSecret{Secret: hidden, Description: present(secret.Description)}
	}
	// Do not use rest.UserSecrets, which would omit empty maps.
	return map[string]any{"provider_tokens": tokens, "custom_secrets": custom}, tokensSet
}

// present returns a field that is encoded even if its value is empty.
func present(text *string) rest.Field[string] {
	return rest.Field[string]{Present: true, Value: text}
}

func viewTools(config *v1alpha1.MCPConfig) *rest.MCPConfig {
	if config == nil {
		return nil
	}
	shown := &rest.MCPConfig{
		SSEServers:   viewRemote(config.SSEServers),
		StdioServers: []rest.MCPStdioServer{},
		SHTTPServers: viewRemote(config.SHTTPServers),
	}
	for _, server := range config.StdioServers {
		env := map[string]rest.Key{}
		for _, variable := range server.Env {
			env[variable.Name] = hidden
		}
		shown.StdioServers = append(shown.StdioServers, rest.MCPStdioServer{
			Name: server.Name, Command: server.Command, Args: append([]string{}, server.Args...), Env: env,
		})
	}
	return shown
}

func viewRemote(servers []v1alpha1.MCPRemoteServer) []rest.MCPRemoteServer {
	shown := []rest.MCPRemoteServer{}
	for _, server := range servers {
		isSet := server.APIKeyRef != nil
		shown = append(shown, rest.MCPRemoteServer{URL: server.URL, APIKey: hidden, APIKeySet: &isSet})
	}
	return shown
}
