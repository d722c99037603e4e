package rest

import (
	"encoding/json"
	"time"
)

// Stored is the answer to POST /api/settings.
type Stored struct {
	Message string `json:"message"`
}

// ConversationResponse is the answer to POST /api/conversations and to what changes a conversation.
type ConversationResponse struct {
	Status             string  `json:"status"`
	ConversationID     string  `json:"conversation_id"`
	Message            *string `json:"message"`
	ConversationStatus string  `json:"conversation_status"`
}

// Conversation is what GET tells of one. Status is what clients of the existing service read; conversation_status
// is the same under the name that the answer to a creation has.
type Conversation struct {
	ConversationID      string    `json:"conversation_id"`
	Title               string    `json:"title"`
	Status              string    `json:"status"`
	ConversationStatus  string    `json:"conversation_status"`
	Reason              *string   `json:"reason"`
	Message             *string   `json:"message"`
	SelectedRepository  *string   `json:"selected_repository"`
	SelectedBranch      *string   `json:"selected_branch"`
	GitProvider         *string   `json:"git_provider"`
	ConversationTrigger string    `json:"conversation_trigger"`
	URL                 *string   `json:"url"`
	CreatedAt           time.Time `json:"created_at"`
	LastUpdatedAt       time.Time `json:"last_updated_at"`
}

// ConversationPage is the answer to GET /api/conversations.
type ConversationPage struct {
	Results    []Conversation `json:"results"`
	NextPageID *string        `json:"next_page_id"`
}

// StoredSettings is the answer to GET /api/settings. Keys are always null; the fields that end in _set say which are there.
// It can be posted back as it is and changes nothing.
type StoredSettings struct {
	Language                     *string            `json:"language"`
	Agent                        *string            `json:"agent"`
	MaxIterations                *int32             `json:"max_iterations"`
	SecurityAnalyzer             *string            `json:"security_analyzer"`
	ConfirmationMode             *bool              `json:"confirmation_mode"`
	LLMModel                     *string            `json:"llm_model"`
	LLMAPIKey                    *string            `json:"llm_api_key"`
	LLMBaseURL                   *string            `json:"llm_base_url"`
	RemoteRuntimeResourceFactor  *int32             `json:"remote_runtime_resource_factor"`
	SecretsStore                 StoredSecrets      `json:"secrets_store"`
	EnableDefaultCondenser       bool               `json:"enable_default_condenser"`
	EnableSoundNotifications     bool               `json:"enable_sound_notifications"`
	EnableProactiveStarters      bool               `json:"enable_proactive_conversation_starters"`
	EnableSolvabilityAnalysis    bool               `json:"enable_solvability_analysis"`
	UserConsentsToAnalytics      *bool              `json:"user_consents_to_analytics"`
	SandboxBaseContainerImage    *string            `json:"sandbox_base_container_image"`
	SandboxRuntimeContainerImage *string            `json:"sandbox_runtime_container_image"`
	MCPConfig                    *StoredMCPConfig   `json:"mcp_config"`
	SearchAPIKey                 *string            `json:"search_api_key"`
	SandboxAPIKey                *string            `json:"sandbox_api_key"`
	MaxBudgetPerTask             *json.Number       `json:"max_budget_per_task"`
	Email                        *string            `json:"email"`
	EmailVerified                *bool              `json:"email_verified"`
	GitUserName                  *string            `json:"git_user_name"`
	GitUserEmail                 *string            `json:"git_user_email"`
	LLMAPIKeySet                 bool               `json:"llm_api_key_set"`
	SearchAPIKeySet              bool               `json:"search_api_key_set"`
	SandboxAPIKeySet             bool               `json:"sandbox_api_key_set"`
	ProviderTokensSet            map[string]*string `json:"provider_tokens_set"`
}

// StoredSecrets are the stored secrets without their values.
type StoredSecrets struct {
	ProviderTokens map[string]StoredProviderToken `json:"provider_tokens"`
	CustomSecrets  map[string]StoredCustomSecret  `json:"custom_secrets"`
}

// StoredProviderToken is a provider token without the token.
type StoredProviderToken struct {
	Token  *string `json:"token"`
	UserID *string `json:"user_id"`
	Host   *string `json:"host"`
}

// StoredCustomSecret is a custom secret without the secret.
type StoredCustomSecret struct {
	Secret      *string `json:"secret"`
	Description *string `json:"description"`
}

// StoredMCPConfig lists the stored tool servers without their keys.
type StoredMCPConfig struct {
	SSEServers   []StoredMCPRemoteServer `json:"sse_servers"`
	StdioServers []StoredMCPStdioServer  `json:"stdio_servers"`
	SHTTPServers []StoredMCPRemoteServer `json:"shttp_servers"`
}

// StoredMCPRemoteServer is a remote tool server without its key.
type StoredMCPRemoteServer struct {
	URL       string  `json:"url"`
	APIKey    *string `json:"api_key"`
	APIKeySet bool    `json:"api_key_set"`
}

// StoredMCPStdioServer is a stdio tool server without the values of its environment.
type StoredMCPStdioServer struct {
	Name    string             `json:"name"`
	Command string             `json:"command"`
	Args    []string           `json:"args"`
	Env     map[string]*string `json:"env"`
}

// Detail is one thing that is wrong with a request, and where. It never repeats what was sent.
type Detail struct {
	Type string   `json:"type"`
	Loc  location `json:"loc"`
	Msg  string   `json:"msg"`
}
