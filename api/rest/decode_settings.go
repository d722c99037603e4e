package rest

import (
	"encoding/json"
	"slices"
)

// gitProviders are the providers that a token may be for.
var gitProviders = []string{"github", "gitlab", "bitbucket", "enterprise_sso"}

// decodeSettings ignores fields that it does not know: clients send back what they were shown, and more.
func decodeSettings(fields map[string]json.RawMessage) (*Settings, []Detail) {
	d := &decoder{}
	o := d.body(fields)
	s := &Settings{
		Language:                     textOrNothing(o, "language"),
		Agent:                        textOrNothing(o, "agent"),
		MaxIterations:                optional(o, "max_iterations", smallInteger),
		SecurityAnalyzer:             textOrNothing(o, "security_analyzer"),
		ConfirmationMode:             optional(o, "confirmation_mode", boolean),
		LLMModel:                     textOrNothing(o, "llm_model"),
		LLMAPIKey:                    key(o, "llm_api_key"),
		LLMBaseURL:                   textOrNothing(o, "llm_base_url"),
		RemoteRuntimeResourceFactor:  optional(o, "remote_runtime_resource_factor", smallInteger),
		EnableDefaultCondenser:       optional(o, "enable_default_condenser", boolean),
		EnableSoundNotifications:     optional(o, "enable_sound_notifications", boolean),
		EnableProactiveStarters:      optional(o, "enable_proactive_conversation_starters", boolean),
		EnableSolvabilityAnalysis:    optional(o, "enable_solvability_analysis", boolean),
		UserConsentsToAnalytics:      optional(o, "user_consents_to_analytics", boolean),
		SandboxBaseContainerImage:    textOrNothing(o, "sandbox_base_container_image"),
		SandboxRuntimeContainerImage: textOrNothing(o, "sandbox_runtime_container_image"),
		MCPConfig:                    optional(o, "mcp_config", mcpDecoder{}.config),
		SearchAPIKey:                 key(o, "search_api_key"),
		SandboxAPIKey:                key(o, "sandbox_api_key"),
		MaxBudgetPerTask:             optional(o, "max_budget_per_task", decimal),
		Email:                        textOrNothing(o, "email"),
		EmailVerified:                optional(o, "email_verified", boolean),
		GitUserName:                  textOrNothing(o, "git_user_name"),
		GitUserEmail:                 textOrNothing(o, "git_user_email"),
	}
	if store := optional(o, "secrets_store", userSecrets).Value; store != nil {
		s.SecretsStore = *store
	}
	return s, d.details
}

func userSecrets(d *decoder, loc location, raw json.RawMessage) (UserSecrets, bool) {
	o := d.object(loc, raw)
	if o == nil {
		return UserSecrets{}, false
	}
	var store UserSecrets
	if tokens := optional(o, "provider_tokens", entries(providerToken, knownProvider)).Value; tokens != nil {
		store.ProviderTokens = *tokens
	}
	if secrets := optional(o, "custom_secrets", entries(customSecret, anyName)).Value; secrets != nil {
		store.CustomSecrets = *secrets
	}
	return store, true
}

// entries are the values of an object by their names; null is nil.
func entries[T any](parse func(*object) T, check func(d *decoder, loc location, name string) bool) func(*decoder, location, json.RawMessage) (map[string]*T, bool) {
	return func(d *decoder, loc location, raw json.RawMessage) (map[string]*T, bool) {
		o := d.object(loc, raw)
		if o == nil {
			return nil, false
		}
		values := map[string]*T{}
		for _, name := range sortedKeys(o.fields) {
			if !check(d, loc, name) {
				continue
			}
			values[name] = nil
			if raw := o.fields[name]; !isNull(raw) {
				if entry := d.object(loc.name(name), raw); entry != nil {
					value := parse(entry)
					values[name] = &value
				}
			}
		}
		return values, true
	}
}

func anyName(*decoder, location, string) bool { return true }

func knownProvider(d *decoder, loc location, name string) bool {
	if !slices.Contains(gitProviders, name) {
		d.fail(loc.name(name), "enum", "Input should be 'github', 'gitlab', 'bitbucket' or 'enterprise_sso'")
		return false
	}
	return true
}

func providerToken(o *object) ProviderToken {
	return ProviderToken{Token: key(o, "token"), UserID: textOrNothing(o, "user_id"), Host: textOrNothing(o, "host")}
}

func customSecret(o *object) CustomSecret {
	return CustomSecret{Secret: key(o, "secret"), Description: textOrNothing(o, "description")}
}
