package rest

// Field is a field of a request: left out, null, or a value.
type Field[T any] struct {
	// Present says that the request names the field.
	Present bool
	// Value is nil for null.
	Value *T
}

// Settings is the body of POST /api/settings. What is left out keeps its stored value, null clears a plain field to its
// default and keeps a key.
type Settings struct {
	Language                     Field[string]
	Agent                        Field[string]
	MaxIterations                Field[int32]
	SecurityAnalyzer             Field[string]
	ConfirmationMode             Field[bool]
	LLMModel                     Field[string]
	LLMAPIKey                    Key
	LLMBaseURL                   Field[string]
	RemoteRuntimeResourceFactor  Field[int32]
	SecretsStore                 UserSecrets
	EnableDefaultCondenser       Field[bool]
	EnableSoundNotifications     Field[bool]
	EnableProactiveStarters      Field[bool]
	EnableSolvabilityAnalysis    Field[bool]
	UserConsentsToAnalytics      Field[bool]
	SandboxBaseContainerImage    Field[string]
	SandboxRuntimeContainerImage Field[string]
	MCPConfig                    Field[MCPConfig]
	SearchAPIKey                 Key
	SandboxAPIKey                Key
	// MaxBudgetPerTask is a decimal of at most six places.
	MaxBudgetPerTask Field[string]
	Email            Field[string]
	EmailVerified    Field[bool]
	GitUserName      Field[string]
	GitUserEmail     Field[string]
}

// Key is a write-only value of a request. Clients never see keys and echo null for them, so that null keeps.
type Key struct{ Field[string] }

// isSet says that the request brings a new key.
func (k Key) isSet() bool { return k.Value != nil && *k.Value != "" && *k.Value != masked }

// isCleared says that the request removes the key.
func (k Key) isCleared() bool { return k.Value != nil && *k.Value == "" }

// masked is what the existing service's models print for a secret. A client that echoes it means the stored one.
const masked = "**********"

// UserSecrets is the value of secrets_store. An entry that is left out is kept, one that is null is removed.
type UserSecrets struct {
	ProviderTokens map[string]*ProviderToken
	CustomSecrets  map[string]*CustomSecret
}

// ProviderToken is the access of a user to a git provider. An empty token keeps the stored one.
type ProviderToken struct {
	Token  Key
	UserID Field[string]
	Host   Field[string]
}

// CustomSecret is a secret of the user for the agent's environment. An empty secret keeps the stored one.
type CustomSecret struct {
	Secret      Key
	Description Field[string]
}

// MCPConfig lists tool servers. It replaces the stored lists; keys that it does not name are kept.
type MCPConfig struct {
	SSEServers   []MCPRemoteServer
	StdioServers []MCPStdioServer
	SHTTPServers []MCPRemoteServer
}

// MCPRemoteServer is a tool server that runs elsewhere.
type MCPRemoteServer struct {
	URL    string
	APIKey Key
}

// MCPStdioServer is a tool server run as a process in the session.
type MCPStdioServer struct {
	Name    string
	Command string
	Args    []string
	Env     []MCPEnvVar
}

// MCPEnvVar is one environment variable of a tool server. Its value is kept like a key, since nothing tells whether it is one.
type MCPEnvVar struct {
	Name  string
	Value Key
}

// ConversationRequest is the body of POST /api/conversations. Null is the same as left out.
type ConversationRequest struct {
	Repository               *string
	GitProvider              *string
	SelectedBranch           *string
	InitialUserMsg           *string
	ImageURLs                []string
	ReplayJSON               *string
	SuggestedTask            *SuggestedTask
	CreateMicroagent         *CreateMicroagent
	ConversationInstructions *string
	MCPConfig                *MCPConfig
	ConversationID           *string
}

// SuggestedTask is a piece of work found at a git provider.
type SuggestedTask struct {
	GitProvider string
	TaskType    string
	Repo        string
	IssueNumber int64
	Title       string
}

// CreateMicroagent asks for a microagent to be written.
type CreateMicroagent struct {
	Repo        string
	GitProvider *string
	Title       *string
}
