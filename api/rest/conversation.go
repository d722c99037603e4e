package rest

import "time"

// ConversationRequest is the body of POST /api/conversations. A null field counts as left out.
//
// The tag `spec` names the corresponding field in ConversationSpec. A field without this tag
// corresponds to the field with the same name in camel case: gitProvider for git_provider. The tag
// `spec:"-"` means that ConversationSpec has no such field.
type ConversationRequest struct {
	Repository               *string           `json:"repository,omitempty"`
	GitProvider              *string           `json:"git_provider,omitempty"`
	SelectedBranch           *string           `json:"selected_branch,omitempty"`
	InitialUserMsg           *string           `json:"initial_user_msg,omitempty"`
	ImageURLs                []Image           `json:"image_urls,omitempty" spec:"imageURLs"`
	ReplayJSON               *string           `json:"replay_json,omitempty" spec:"replayJSONRef"`
	SuggestedTask            *SuggestedTask    `json:"suggested_task,omitempty"`
	CreateMicroagent         *CreateMicroagent `json:"create_microagent,omitempty"`
	ConversationInstructions *string           `json:"conversation_instructions,omitempty"`
	Agent                    *string           `json:"agent,omitempty"`
	LLMModel                 *string           `json:"llm_model,omitempty"`
	MCPConfig                *MCPConfig        `json:"mcp_config,omitempty"`
	OneShot                  *bool             `json:"one_shot,omitempty"`
	ConversationID           *string           `json:"conversation_id,omitempty" spec:"-"`
}

// SuggestedTask is a piece of work found at a git provider.
type SuggestedTask struct {
	GitProvider string `json:"git_provider"`
	TaskType    string `json:"task_type"`
	Repo        string `json:"repo"`
	IssueNumber int64  `json:"issue_number"`
	Title       string `json:"title"`
}

// CreateMicroagent names the repository for which a session writes a microagent.
type CreateMicroagent struct {
	Repo        string  `json:"repo"`
	GitProvider *string `json:"git_provider,omitempty"`
	Title       *string `json:"title,omitempty"`
}

// ConversationTemplate is the response to GET /api/conversations/{id}/request: the request that
// would create a copy of the conversation.
type ConversationTemplate struct {
	Repository               *string           `json:"repository"`
	GitProvider              *string           `json:"git_provider"`
	SelectedBranch           *string           `json:"selected_branch"`
	InitialUserMsg           *string           `json:"initial_user_msg"`
	ImageURLs                []string          `json:"image_urls"`
	SuggestedTask            *SuggestedTask    `json:"suggested_task"`
	CreateMicroagent         *CreateMicroagent `json:"create_microagent"`
	ConversationInstructions *string           `json:"conversation_instructions"`
	Agent                    *string           `json:"agent"`
	LLMModel                 *string           `json:"llm_model"`
	// NotCopied lists the parts that the copy would lack, as texts for users.
	NotCopied []string `json:"not_copied"`
}

// ConversationResponse is the response to POST /api/conversations and to requests that change a
// conversation.
type ConversationResponse struct {
	Status             string  `json:"status"`
	ConversationID     string  `json:"conversation_id"`
	Message            *string `json:"message"`
	ConversationStatus string  `json:"conversation_status"`
}

// Triggers of a conversation.
const (
	TriggerGUI           = "gui"
	TriggerSuggestedTask = "suggested_task"
	TriggerMicroagent    = "microagent_management"
)

// Runtime states of a session.
const (
	RuntimeStarting  = "STATUS$STARTING_RUNTIME"
	RuntimeWorkspace = "STATUS$SETTING_UP_WORKSPACE"
	RuntimeReady     = "STATUS$READY"
)

// Conversation is the response to GET /api/conversations/{id}. The field status, which OpenHands
// clients read, equals conversation_status.
type Conversation struct {
	ConversationID     string  `json:"conversation_id"`
	Title              string  `json:"title"`
	Status             string  `json:"status"`
	ConversationStatus string  `json:"conversation_status"`
	Reason             *string `json:"reason"`
	Message            *string `json:"message"`
	// NeedsAttention is set if the session failed, or waits for the user to act.
	NeedsAttention     bool    `json:"needs_attention"`
	SelectedRepository *string `json:"selected_repository"`
	SelectedBranch     *string `json:"selected_branch"`
	GitProvider        *string `json:"git_provider"`
	Trigger            string  `json:"trigger"`
	// Turn is the outcome of the last turn, if a user has to act on it.
	Turn *Turn `json:"turn"`
	// RuntimeStatus is the startup state of the session in OpenHands' terms.
	RuntimeStatus *string `json:"runtime_status"`
	// NumConnections and SessionAPIKey are always empty, but OpenHands clients read them.
	NumConnections int     `json:"num_connections"`
	SessionAPIKey  *string `json:"session_api_key"`
	// PRNumber contains the number of the session's pull request, and PullRequest is its link. Both
	// are empty until the session has ended.
	PRNumber    []int64 `json:"pr_number"`
	PullRequest *string `json:"pull_request"`
	// URL is always null. If it were the URL of the session, OpenHands clients would send their
	// requests to the session, which they cannot reach.
	URL           *string   `json:"url"`
	CreatedAt     time.Time `json:"created_at"`
	LastUpdatedAt time.Time `json:"last_updated_at"`
}

// Turn is the outcome of a turn: NeedsApproval or Failed, and the reason.
type Turn struct {
	State   string `json:"state"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// ConversationPage is the response to GET /api/conversations.
type ConversationPage struct {
	Results    []Conversation `json:"results"`
	NextPageID *string        `json:"next_page_id"`
}
