package rest

import "time"

// ConversationRequest is the body of POST /api/conversations. Null is the same as left out. The tag
// spec names the field of ConversationSpec where that is not the JSON name in camel case; - is none.
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
	MCPConfig                *MCPConfig        `json:"mcp_config,omitempty"`
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

// CreateMicroagent asks for a microagent to be written.
type CreateMicroagent struct {
	Repo        string  `json:"repo"`
	GitProvider *string `json:"git_provider,omitempty"`
	Title       *string `json:"title,omitempty"`
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
