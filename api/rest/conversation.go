package rest

import "time"

// ConversationRequest is the body of POST /api/conversations. Null is the same as left out. The tag
// spec names the field of ConversationSpec.
type ConversationRequest struct {
	Repository               *string           `json:"repository,omitempty" spec:"repository"`
	GitProvider              *string           `json:"git_provider,omitempty" spec:"gitProvider"`
	SelectedBranch           *string           `json:"selected_branch,omitempty" spec:"selectedBranch"`
	InitialUserMsg           *string           `json:"initial_user_msg,omitempty" spec:"initialUserMsg"`
	ImageURLs                []Image           `json:"image_urls,omitempty" spec:"imageURLs"`
	ReplayJSON               *string           `json:"replay_json,omitempty" spec:"replayJSONRef"`
	SuggestedTask            *SuggestedTask    `json:"suggested_task,omitempty" spec:"suggestedTask"`
	CreateMicroagent         *CreateMicroagent `json:"create_microagent,omitempty" spec:"createMicroagent"`
	ConversationInstructions *string           `json:"conversation_instructions,omitempty" spec:"conversationInstructions"`
	MCPConfig                *MCPConfig        `json:"mcp_config,omitempty" spec:"mcpConfig"`
	ConversationID           *string           `json:"conversation_id,omitempty"`
}

// SuggestedTask is a piece of work found at a git provider.
type SuggestedTask struct {
	GitProvider string `json:"git_provider" spec:"gitProvider"`
	TaskType    string `json:"task_type" spec:"taskType"`
	Repo        string `json:"repo" spec:"repo"`
	IssueNumber int64  `json:"issue_number" spec:"issueNumber"`
	Title       string `json:"title" spec:"title"`
}

// CreateMicroagent asks for a microagent to be written.
type CreateMicroagent struct {
	Repo        string  `json:"repo" spec:"repo"`
	GitProvider *string `json:"git_provider,omitempty" spec:"gitProvider"`
	Title       *string `json:"title,omitempty" spec:"title"`
}

// ConversationResponse is the answer to POST /api/conversations and to what changes a conversation.
type ConversationResponse struct {
	Status             string  `json:"status"`
	ConversationID     string  `json:"conversation_id"`
	Message            *string `json:"message"`
	ConversationStatus string  `json:"conversation_status"`
}

// What a conversation came from.
const (
	TriggerGUI           = "gui"
	TriggerSuggestedTask = "suggested_task"
	TriggerMicroagent    = "microagent_management"
)

// How far a session is.
const (
	RuntimeStarting  = "STATUS$STARTING_RUNTIME"
	RuntimeWorkspace = "STATUS$SETTING_UP_WORKSPACE"
	RuntimeReady     = "STATUS$READY"
)

// Conversation is what GET tells of one. Status is what clients of the existing service read;
// conversation_status is the same under the name that the answer to a creation has.
type Conversation struct {
	ConversationID     string  `json:"conversation_id"`
	Title              string  `json:"title"`
	Status             string  `json:"status"`
	ConversationStatus string  `json:"conversation_status"`
	Reason             *string `json:"reason"`
	Message            *string `json:"message"`
	SelectedRepository *string `json:"selected_repository"`
	SelectedBranch     *string `json:"selected_branch"`
	GitProvider        *string `json:"git_provider"`
	Trigger            string  `json:"trigger"`
	// RuntimeStatus is how far the session is, as clients of the existing service show it.
	RuntimeStatus *string `json:"runtime_status"`
	// NumConnections, SessionAPIKey and PRNumber are there for clients that read them, and always
	// say nothing.
	NumConnections int     `json:"num_connections"`
	SessionAPIKey  *string `json:"session_api_key"`
	PRNumber       []int64 `json:"pr_number"`
	// URL is always null: clients send everything to the host that it names, and a session has none
	// that they can reach.
	URL           *string   `json:"url"`
	CreatedAt     time.Time `json:"created_at"`
	LastUpdatedAt time.Time `json:"last_updated_at"`
}

// ConversationPage is the answer to GET /api/conversations.
type ConversationPage struct {
	Results    []Conversation `json:"results"`
	NextPageID *string        `json:"next_page_id"`
}
