package rest

import "encoding/json"

// Settings is the body of POST /api/settings, and the table of all settings, one a line: what HTTP
// calls it (json), the field of UserSettingsSpec where it is stored (spec), and what it is if
// nobody has set it (default). Its kind is its type: a Key is kept in a Secret, UserSecrets are
// merged entry by entry, MCPConfig replaces what is stored, and all others are plain. Decoding,
// storing, showing, who owns a field and what an error calls it follow from here. A new key also
// needs the name of its Secret in api/v1alpha1/managed_names.go and in the policy: who may write which
// Secrets is not widened by the way.
//
// What a request leaves out keeps its stored value, null clears a plain field to its default and
// keeps a key.
type Settings struct {
	Language                     Field[string]      `json:"language,omitzero" spec:"language"`
	Agent                        Field[string]      `json:"agent,omitzero" spec:"agent"`
	MaxIterations                Field[int32]       `json:"max_iterations,omitzero" spec:"maxIterations"`
	SecurityAnalyzer             Field[string]      `json:"security_analyzer,omitzero" spec:"securityAnalyzer"`
	ConfirmationMode             Field[bool]        `json:"confirmation_mode,omitzero" spec:"confirmationMode"`
	LLMModel                     Field[string]      `json:"llm_model,omitzero" spec:"llmModel"`
	LLMAPIKey                    Key                `json:"llm_api_key,omitzero" spec:"llmAPIKeyRef"`
	LLMBaseURL                   Field[string]      `json:"llm_base_url,omitzero" spec:"llmBaseURL"`
	RemoteRuntimeResourceFactor  Field[int32]       `json:"remote_runtime_resource_factor,omitzero" spec:"remoteRuntimeResourceFactor"`
	SecretsStore                 Field[UserSecrets] `json:"secrets_store,omitzero" spec:"secretsStore"`
	EnableDefaultCondenser       Field[bool]        `json:"enable_default_condenser,omitzero" spec:"enableDefaultCondenser" default:"true"`
	EnableSoundNotifications     Field[bool]        `json:"enable_sound_notifications,omitzero" spec:"enableSoundNotifications" default:"false"`
	EnableProactiveStarters      Field[bool]        `json:"enable_proactive_conversation_starters,omitzero" spec:"enableProactiveConversationStarters" default:"true"`
	EnableSolvabilityAnalysis    Field[bool]        `json:"enable_solvability_analysis,omitzero" spec:"enableSolvabilityAnalysis" default:"true"`
	UserConsentsToAnalytics      Field[bool]        `json:"user_consents_to_analytics,omitzero" spec:"userConsentsToAnalytics"`
	SandboxBaseContainerImage    Field[string]      `json:"sandbox_base_container_image,omitzero" spec:"sandboxBaseContainerImage"`
	SandboxRuntimeContainerImage Field[string]      `json:"sandbox_runtime_container_image,omitzero" spec:"sandboxRuntimeContainerImage"`
	MCPConfig                    Field[MCPConfig]   `json:"mcp_config,omitzero" spec:"mcpConfig"`
	SearchAPIKey                 Key                `json:"search_api_key,omitzero" spec:"searchAPIKeyRef"`
	SandboxAPIKey                Key                `json:"sandbox_api_key,omitzero" spec:"sandboxAPIKeyRef"`
	// MaxBudgetPerTask has at most six decimals.
	MaxBudgetPerTask Field[json.Number] `json:"max_budget_per_task,omitzero" spec:"maxBudgetPerTask"`
	Email            Field[string]      `json:"email,omitzero" spec:"email"`
	EmailVerified    Field[bool]        `json:"email_verified,omitzero" spec:"emailVerified"`
	GitUserName      Field[string]      `json:"git_user_name,omitzero" spec:"gitUserName"`
	GitUserEmail     Field[string]      `json:"git_user_email,omitzero" spec:"gitUserEmail"`
}

// UserSecrets is the value of secrets_store. An entry that is left out is kept, one that is null is
// removed.
type UserSecrets struct {
	ProviderTokens map[string]*ProviderToken `json:"provider_tokens,omitempty" spec:"providerTokens"`
	CustomSecrets  map[string]*CustomSecret  `json:"custom_secrets,omitempty" spec:"customSecrets"`
}

// ProviderToken is the access of a user to a git provider. An empty token keeps the stored one.
type ProviderToken struct {
	Token  Key           `json:"token,omitzero" spec:"tokenRef"`
	UserID Field[string] `json:"user_id,omitzero" spec:"userID"`
	Host   Field[string] `json:"host,omitzero" spec:"host"`
}

// CustomSecret is a secret of the user for the agent's environment. An empty secret keeps the
// stored one.
type CustomSecret struct {
	Secret      Key           `json:"secret,omitzero" spec:"secretRef"`
	Description Field[string] `json:"description,omitzero" spec:"description"`
}

// MCPConfig lists tool servers. In settings it replaces the stored lists; keys that it does not
// name are kept.
type MCPConfig struct {
	SSEServers   []MCPRemoteServer `json:"sse_servers" spec:"sseServers"`
	StdioServers []MCPStdioServer  `json:"stdio_servers" spec:"stdioServers"`
	SHTTPServers []MCPRemoteServer `json:"shttp_servers" spec:"shttpServers"`
}

// MCPRemoteServer is a tool server that runs elsewhere.
type MCPRemoteServer struct {
	URL    string `json:"url" spec:"url"`
	APIKey Key    `json:"api_key,omitzero" spec:"apiKeyRef"`
	// APIKeySet says in an answer whether there is a key. A request does not have it.
	APIKeySet *bool `json:"api_key_set,omitempty"`
}

// MCPStdioServer is a tool server run as a process in the session. The values of its environment
// are kept like keys, since nothing tells whether they are.
type MCPStdioServer struct {
	Name    string         `json:"name" spec:"name"`
	Command string         `json:"command" spec:"command"`
	Args    []string       `json:"args" spec:"args"`
	Env     map[string]Key `json:"env" spec:"env"`
}

// StoredSettings is the answer to GET /api/settings. Keys are always null; the fields that end in
// _set say which are there. It can be posted back as it is and changes nothing.
type StoredSettings struct {
	Settings
	LLMAPIKeySet     bool `json:"llm_api_key_set"`
	SearchAPIKeySet  bool `json:"search_api_key_set"`
	SandboxAPIKeySet bool `json:"sandbox_api_key_set"`
	// ProviderTokensSet are the hosts of the providers that have a token.
	ProviderTokensSet map[string]*string `json:"provider_tokens_set"`
}

// Stored is the answer to POST /api/settings.
type Stored struct {
	Message string `json:"message"`
}
