package rest

import "encoding/json"

// Settings is the body of POST /api/settings, and it lists all settings. The struct tag "json" is
// the name of a setting over HTTP. The struct tag "spec" is the name of its field in
// UserSettingsSpec. Without this tag, the field has the JSON name in camel case. A setting's type
// decides how it is stored: a Key is stored in a Secret, UserSecrets are merged entry by entry,
// MCPConfig replaces the stored value, and all other settings are plain values.
//
// For a new Key, also add the name of its Secret to api/v1alpha1/managed_names.go and to the
// admission policy. Otherwise the facade is not allowed to write the Secret.
//
// A setting that is left out of a request keeps its stored value. A plain value that is null is
// reset to its default. A Key that is null keeps the stored key.
type Settings struct {
	Language                     Field[string]      `json:"language,omitzero"`
	Agent                        Field[string]      `json:"agent,omitzero"`
	MaxIterations                Field[int32]       `json:"max_iterations,omitzero"`
	SecurityAnalyzer             Field[string]      `json:"security_analyzer,omitzero"`
	ConfirmationMode             Field[bool]        `json:"confirmation_mode,omitzero"`
	LLMModel                     Field[string]      `json:"llm_model,omitzero"`
	LLMAPIKey                    Key                `json:"llm_api_key,omitzero" spec:"llmAPIKeyRef"`
	LLMBaseURL                   Field[string]      `json:"llm_base_url,omitzero" spec:"llmBaseURL"`
	LLMReasoningEffort           Field[string]      `json:"llm_reasoning_effort,omitzero"`
	LLMTemperature               Field[json.Number] `json:"llm_temperature,omitzero"`
	RemoteRuntimeResourceFactor  Field[int32]       `json:"remote_runtime_resource_factor,omitzero"`
	SecretsStore                 Field[UserSecrets] `json:"secrets_store,omitzero"`
	EnableDefaultCondenser       Field[bool]        `json:"enable_default_condenser,omitzero" default:"true"`
	EnableSoundNotifications     Field[bool]        `json:"enable_sound_notifications,omitzero" default:"false"`
	EnableProactiveStarters      Field[bool]        `json:"enable_proactive_conversation_starters,omitzero" default:"true"`
	EnableSolvabilityAnalysis    Field[bool]        `json:"enable_solvability_analysis,omitzero" default:"true"`
	UserConsentsToAnalytics      Field[bool]        `json:"user_consents_to_analytics,omitzero"`
	SandboxBaseContainerImage    Field[string]      `json:"sandbox_base_container_image,omitzero"`
	SandboxRuntimeContainerImage Field[string]      `json:"sandbox_runtime_container_image,omitzero"`
	MCPConfig                    Field[MCPConfig]   `json:"mcp_config,omitzero"`
	SearchAPIKey                 Key                `json:"search_api_key,omitzero" spec:"searchAPIKeyRef"`
	SandboxAPIKey                Key                `json:"sandbox_api_key,omitzero" spec:"sandboxAPIKeyRef"`
	// MaxBudgetPerTask has at most six decimals.
	MaxBudgetPerTask Field[json.Number] `json:"max_budget_per_task,omitzero"`
	Email            Field[string]      `json:"email,omitzero"`
	EmailVerified    Field[bool]        `json:"email_verified,omitzero"`
	GitUserName      Field[string]      `json:"git_user_name,omitzero"`
	GitUserEmail     Field[string]      `json:"git_user_email,omitzero"`
	// OpenHands does not have the settings ExposeSecretsToModel, ExposeGitTokenToAgent,
	// LLMReasoningEffort and LLMTemperature.
	ExposeSecretsToModel  Field[bool] `json:"expose_secrets_to_model,omitzero"`
	ExposeGitTokenToAgent Field[bool] `json:"expose_git_token_to_agent,omitzero"`
}

// UserSecrets is the value of secrets_store. An entry that is left out stays; a null entry is
// removed.
type UserSecrets struct {
	ProviderTokens map[string]*ProviderToken `json:"provider_tokens,omitempty"`
	CustomSecrets  map[string]*CustomSecret  `json:"custom_secrets,omitempty"`
}

// ProviderToken is a user's token for a git provider. An empty token keeps the stored token.
type ProviderToken struct {
	Token  Key           `json:"token,omitzero" spec:"tokenRef"`
	UserID Field[string] `json:"user_id,omitzero" spec:"userID"`
	Host   Field[string] `json:"host,omitzero"`
}

// CustomSecret is a user's secret for the agent's environment. An empty secret keeps the stored
// secret.
type CustomSecret struct {
	Secret      Key           `json:"secret,omitzero" spec:"secretRef"`
	Description Field[string] `json:"description,omitzero"`
}

// MCPConfig lists tool servers. In a POST /api/settings, it replaces the stored lists, but a server
// without a key keeps its stored key.
type MCPConfig struct {
	SSEServers   []MCPRemoteServer `json:"sse_servers"`
	StdioServers []MCPStdioServer  `json:"stdio_servers"`
	SHTTPServers []MCPRemoteServer `json:"shttp_servers"`
}

// MCPRemoteServer is a tool server outside the session.
type MCPRemoteServer struct {
	URL    string `json:"url"`
	APIKey Key    `json:"api_key,omitzero" spec:"apiKeyRef"`
	// APIKeySet reports in a response whether a key is stored. Requests do not contain it.
	APIKeySet *bool `json:"api_key_set,omitempty" spec:"-"`
}

// MCPStdioServer is a tool server that runs as a process in the session. All values of its
// environment are stored like keys, because each of them may be a key.
type MCPStdioServer struct {
	Name    string         `json:"name"`
	Command string         `json:"command"`
	Args    []string       `json:"args"`
	Env     map[string]Key `json:"env"`
}

// StoredSettings is the response to GET /api/settings: the effective settings, with inherited values.
// Keys are always null; the fields that end in _set show which keys are stored or inherited. Posting
// the response back changes nothing.
type StoredSettings struct {
	Settings
	LLMAPIKeySet     bool `json:"llm_api_key_set"`
	SearchAPIKeySet  bool `json:"search_api_key_set"`
	SandboxAPIKeySet bool `json:"sandbox_api_key_set"`
	// ProviderTokensSet maps each git provider that has a stored token to the provider's host.
	ProviderTokensSet map[string]*string `json:"provider_tokens_set"`
	// Inherited lists the names of the settings whose values, or parts of them, are inherited.
	Inherited []string `json:"inherited"`
}

// Stored is the response to POST /api/settings.
type Stored struct {
	Message string `json:"message"`
}
